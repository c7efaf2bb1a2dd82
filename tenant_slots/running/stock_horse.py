"""A work-horse of a stock worker: it runs one job, and ends without what a process does at its exit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process

from rq import get_current_job
from rq.job import Job

from tenant_slots import alarm
from tenant_slots.parting import granting_wishes

SYNCHRONOUS = "sync"
"""The worker of a job that RQ runs where it is enqueued (RQ 2.12, ``Queue.run_sync``): without a timeout."""


@contextmanager
def parting_after_it() -> Iterator[None]:
    """Around what RQ calls for a job: after it, and not in the job's time, the process does what it has to do last.

    Work-horses of ours do so by themselves, once their worker has recorded the end.
    """
    rq_job = get_current_job()
    if rq_job is None or not _ends_after(rq_job):
        yield
        return
    with granting_wishes():
        try:
            yield
        finally:
            alarm.disarm()


def _ends_after(rq_job: Job) -> bool:
    """As RQ tells the environment (2.12): ``Worker`` the job, ``SpawnWorker`` the execution. Or it is one of a pool.

    Not which process has loaded what: that depends on whether a worker checks the settings when it starts, and a
    spawned process loads everything itself.
    """
    if rq_job.worker_name == SYNCHRONOUS:
        return False  # as part of another job, or of a request
    is_horse = os.environ.get("RQ_JOB_ID") == rq_job.id or "RQ_EXECUTION_ID" in os.environ
    return is_horse or parent_process() is not None
