"""The moves of a job between states, each with what follows from it once it is committed: the push and the signal.

``slots.py`` decides and only touches the database; everybody else moves jobs through the functions here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

from django.db import connections, transaction

from tenant_slots import dispatch, signals, slots
from tenant_slots.conf import app_settings
from tenant_slots.models import State, TenantJob
from tenant_slots.releases import Release

logger = logging.getLogger("tenant_slots")


News = tuple[str, dict[str, Any]]
"""The name of a signal and its arguments."""

_collected: ContextVar[list[News] | None] = ContextVar("tenant_slots_collected", default=None)


@contextmanager
def collecting() -> Iterator[list[News]]:
    """Send no signal in the block, but gather what is to be told: its receivers are for another process to call."""
    news: list[News] = []
    token = _collected.set(news)
    try:
        yield news
    finally:
        _collected.reset(token)


def tell(news: Iterable[News]) -> None:
    """Call the receivers; a failing one is logged by Django."""
    for signal, facts in news:
        signals.send(signal, sender=TenantJob, **facts)


def stored(jobs: list[TenantJob]) -> None:
    """Tell that new jobs are in the database."""
    after_commit(partial(_send, "jobs_enqueued", jobs=jobs))


def admit(tenant_queue_id: int) -> list[TenantJob]:
    """Let the head of a tenant's backlog into its free slots, and push it to RQ."""
    return push(slots.admit(tenant_queue_id))


def admit_here(job: TenantJob) -> None:
    """As `admit`, for a job that starts in this process and is therefore not pushed; it is up to date afterwards."""
    push([admitted for admitted in slots.admit(job.tenant_queue_id) if admitted.pk != job.pk])
    job.refresh_from_db(fields=["state", "attempt"])


def push(admitted: list[TenantJob]) -> list[TenantJob]:
    """Hand admitted jobs to RQ once their admission is committed."""
    if admitted:
        after_commit(partial(dispatch.push, admitted))
        after_commit(partial(_send, "jobs_admitted", jobs=admitted))
    return admitted


def started(job: TenantJob) -> None:
    """Tell that a job runs."""
    _send("job_started", job=job)


def release(job: TenantJob, **changes: Any) -> Release:
    """Move a job out of its slot, push the one that got it, and tell where the job went.

    Args:
        job, changes: as of `slots.release`.
    """
    released = slots.release(job, **changes)
    follow(job, released, changes.get("error", ""))
    return released


def follow(job: TenantJob, released: Release, error: str) -> None:
    """What follows from the release of a job's slot, for whoever has something to do in between."""
    push(released.admitted)
    if released.state is not None:
        left([job], released.state, error)


def cancel_unstarted(job: TenantJob, error: str = "") -> bool:
    """Cancel a job or a reservation that has not begun, whether it waits or was admitted, and tell so.

    False when it moved on since the row was read; nothing is changed then.
    """
    if job.state == State.QUEUED:
        values: dict[str, Any] = {"error": error} if error else {}
        released = slots.release(job, states=(State.QUEUED,), state=State.CANCELED, **values)
        push(released.admitted)
        done = bool(released)
    else:
        done = slots.withdraw(job, error)
    if done:
        after_commit(partial(dispatch.remove, job))
        with suppress(TenantJob.DoesNotExist):
            job.refresh_from_db()
        left([job], State.CANCELED, job.error)
    return done


def left(jobs: Iterable[TenantJob], state: State, error: str = "") -> None:
    """Tell where jobs went that have left their slot or the backlog."""
    for job in jobs:
        job.state, job.error = state, error
        if job.has_ended:
            after_commit(partial(_send, "job_ended", job=job))
        else:
            after_commit(partial(_send, "job_put_back", job=job, reason=error))


def after_commit(function: Callable[[], object]) -> None:
    """Run when the current transaction of our database has committed, at once without one.

    Where the caller has switched autocommit off, Django runs it when that is on again after a commit.

    What was committed stands whatever happens here, so an error is logged and left to the sweep.
    """

    def run() -> None:
        try:
            function()
        except Exception:
            logger.exception("a step after a commit failed; the sweep will make up for it")

    # Without autocommit Django takes no function outside of a block, but those from inside one.
    with transaction.atomic(using=app_settings.DATABASE) if _is_manual() else nullcontext():
        transaction.on_commit(run, using=app_settings.DATABASE)


def _is_manual() -> bool:
    connection = connections[app_settings.DATABASE]
    return not connection.in_atomic_block and not connection.get_autocommit()


def _send(signal: str, **facts: Any) -> None:
    collected = _collected.get()
    if collected is None:
        tell([(signal, facts)])
    else:
        collected.append((signal, facts))
