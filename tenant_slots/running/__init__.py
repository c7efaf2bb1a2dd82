"""What happens in a job's own process: find the function, run it in the job's slot, record how it ended.

The runner of our own jobs and of plain RQ's, coroutines, progress, and ``hold_slot`` (`reservation`). A run may begin
and end in the worker that watches over it: `run` and `recording` serve both, `witness` and `outbox` are shared by them.
"""
