"""From a call to a stored job, and what people do to a job that has not ended.

Enqueueing one or many, duplicates, overflow queues, what a busy tenant's jobs do, cancel, retry and priority.
"""
