"""A plain RQ job to which something happens while it runs, and what a test does with RQ's queue meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rq import Queue, get_current_job
from rq.job import Job
from rq.scheduler import RQScheduler

from tenant_slots import tenant_job
from tests import jobs
from tests.factories import DeafWorker

meanwhile: list[Callable[[Job], Any]] = []
"""What the first run does."""


@tenant_job("imports", tenant="tenant")
def meets(tenant: str, name: str, history: str, fails: bool = False) -> None:
    jobs.note(history, "start", tenant, name)
    rq_job = get_current_job()
    assert rq_job is not None
    if meanwhile:
        meanwhile.pop()(rq_job)
    if fails:
        raise ValueError(name)


def work_once(queue: Queue) -> None:
    DeafWorker([queue], connection=queue.connection).work(burst=True, max_jobs=1, logging_level="ERROR")


def make_due(queue: Queue, rq_job: Job) -> None:
    """And let RQ's scheduler take it."""
    assert queue.connection.zadd(queue.scheduled_job_registry.key, {rq_job.id: 1}, xx=True, ch=True)
    scheduler = RQScheduler([queue], connection=queue.connection)
    scheduler.acquire_locks()
    scheduler.enqueue_scheduled_jobs()
    scheduler.release_locks()  # type: ignore[no-untyped-call]
