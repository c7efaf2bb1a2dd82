"""Those who take part beside a person: workers in threads, RQ's scheduler, and sweeps; and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import django_rq
import pytest
import rq.scheduler
from rq.scheduler import RQScheduler
from rq.timeouts import BaseDeathPenalty
from rq.utils import current_timestamp, now

from tenant_slots import owners
from tenant_slots.db.clock import in_seconds
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.repair import steps
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.workers import TenantSimpleWorker
from tests.factories import DeafWorker, counters_match, damage_found, in_rq
from tests.fuzz.baton import actor_here
from tests.repair.sweeps import LongContact

QUEUES = ("imports", "imports_bulk")

HOURS = 7200
"""Seconds by which RQ's scheduler is ahead: whatever is put off is due."""

broken: list[str] = []
"""What sweeps have met that must never be."""

_numbers = count()


class _NoAlarm(BaseDeathPenalty):
    """A thread has none."""

    def setup_death_penalty(self) -> None: ...

    def cancel_death_penalty(self) -> None: ...


class _InThread:
    death_penalty_class = _NoAlarm

    def _install_signal_handlers(self) -> None: ...

    def subscribe(self) -> None: ...

    def unsubscribe(self) -> None: ...

    def handle_job_success(self, *args: Any, **kwargs: Any) -> None:
        with alone():
            super().handle_job_success(*args, **kwargs)  # type: ignore[misc]

    def handle_job_failure(self, *args: Any, **kwargs: Any) -> None:
        with alone():
            super().handle_job_failure(*args, **kwargs)  # type: ignore[misc]


class StockWorker(_InThread, DeafWorker): ...  # type: ignore[misc]


class OwnWorker(_InThread, TenantSimpleWorker): ...  # type: ignore[misc]


_alone: list[str] = []


@contextmanager
def alone() -> Iterator[None]:
    """What RQ does in two steps, between which it loses what it is told (RQ 2.12): nobody tells it anything then.

    It reads a record and writes it: at the end of a run, and as its scheduler enqueues a job.
    """
    actor = actor_here()
    while _alone and actor:
        actor.rest()
    _alone.append("one")
    try:
        yield
    finally:
        _alone.clear()


def work(kind: type[Any]) -> None:
    """Until there is nothing in the lists."""
    queues = [django_rq.get_queue(name) for name in QUEUES]
    worker = kind(queues, name=f"worker-{next(_numbers)}", connection=queues[0].connection)
    worker.last_cleaned_at = now()  # RQ cleans its registries when a worker begins
    worker.work(burst=True, logging_level="CRITICAL")


def schedule() -> None:
    """RQ's scheduler, for which all that was put off is due."""
    queues = [django_rq.get_queue(name) for name in QUEUES]
    scheduler: Any = RQScheduler(queues, connection=queues[0].connection)
    scheduler.acquire_locks()
    with alone():
        scheduler.enqueue_scheduled_jobs()
    scheduler.release_locks()


def let_time_pass() -> None:
    """Whatever waits for a time is due."""
    TenantJob.objects.scheduled().update(run_after=in_seconds(-1))
    TenantQueue.objects.filter(rests_until__isnull=False).update(rests_until=in_seconds(-1))


def sweep() -> None:
    """For which nothing was admitted but a moment ago."""
    TenantJob.objects.queued().update(admitted_at=in_seconds(-60))
    sweeper = Sweeper("fuzz")
    sweeper.contact = LongContact()
    report = sweeper.run((*steps.LOCAL_STEPS, *steps.STEPS))
    broken.extend(report.failed)
    broken.extend(["a sweep has found a counter that is wrong"] * bool(report.repaired))


def remains() -> list[str]:
    """What is left that should not be, once all has come to its end."""
    found = [f"{job.rq_job_id or job.task} {job.state}" for job in TenantJob.objects.not_ended()]
    for name in QUEUES:
        queue = django_rq.get_queue(name)
        executions = queue.connection.zrange(queue.started_job_registry.key, 0, -1)
        scheduled = queue.connection.zrange(queue.scheduled_job_registry.key, 0, -1, withscores=True)
        found += [f"{name} has {in_rq(name)} in its list"] * bool(in_rq(name))
        found += [f"{name} executes {executions}"] * bool(executions)
        found += [f"{name} has scheduled {scheduled}"] * bool(scheduled)
    return found


def damage() -> list[str]:
    """What must be wrong at no time at all, or is told by the doctor."""
    wrong = [] if counters_match() else ["a counter is wrong"]
    return [*broken, *wrong, *(str(finding) for finding in damage_found())]


class _Everything(set[int]):
    def __contains__(self, token: object) -> bool:
        return True


@contextmanager
def one_process() -> Iterator[None]:
    """All workers are in this one, so that it runs what any of them does; and for RQ's scheduler it is later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owners, "runs_here", _Everything())
        patch.setattr(rq.scheduler, "current_timestamp", lambda: current_timestamp() + HOURS)
        yield
