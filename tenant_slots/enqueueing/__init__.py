"""From a call to a stored job, and what people do to a job that has not ended.

Enqueueing one or many, duplicates, overflow queues, a full backlog, what a busy tenant's jobs do (`on_busy`); then
`cancel`, `retry`, `priority` and `deletion`, the bodies of the methods of a job.
"""
