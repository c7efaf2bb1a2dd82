"""What happens in a job's own process: find the function, run it in the job's slot, record how it ended.

The runner of our own jobs and of plain RQ's, the run and its recording, coroutines, progress, and ``hold_slot``.
"""
