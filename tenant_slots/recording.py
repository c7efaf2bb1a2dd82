"""Noting in the database that a job began and how it ended, whatever the database does meanwhile.

Recording never changes the outcome of a job: it is tried for half a minute, then left to the sweep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError, Error, InterfaceError, InternalError, OperationalError, connections
from django.db.models import UUIDField

from tenant_slots import line, shared, signals, slots
from tenant_slots.compiled import Parameter, Statement
from tenant_slots.conf import app_settings
from tenant_slots.holders import Holder, this_process
from tenant_slots.models import State, TenantJob

T = TypeVar("T")

Outcome = dict[str, Any]
"""New field values of a job that leaves its slot, as JSON, and `later` as in `slots.release`."""

logger = logging.getLogger("tenant_slots")

JOB = Statement(lambda: TenantJob.objects.filter(uuid=Parameter("uuid", UUIDField())))

LEFT = ("result", "error", "progress", "stats")
"""What of an outcome a database may refuse to store."""

ERROR_LENGTH = 20_000
"""Characters kept of an error, from its end, where a traceback says what happened."""

PASSING = (OperationalError, InterfaceError, InternalError)
"""What a database answers while it restarts or fails over: InternalError is a standby's refusal to write."""

PAUSES = (0.05, 0.1, 0.2, 0.5, *[1.0] * 29)
"""Seconds between tries to record something: together the half minute that a database needs to restart."""


def begin(uuid: UUID, attempt: int, worker: str) -> TenantJob | None:
    """Mark an admitted job as running in this process, or in the work-horse that it is about to fork.

    None when this attempt is not to be run: it ended, was canceled or runs elsewhere.
    """
    for job in persistently(lambda: JOB.rows(uuid=uuid)) or []:
        if job.attempt == attempt and start(job, worker):
            return job  # type: ignore[no-any-return]
    return None


def start(job: TenantJob, worker: str) -> bool:
    """As `begin`, for a job that is at hand."""
    shared.this.witness.taking(job)
    if not persistently(_starting(job, this_process(worker, beats=shared.this.beats))):
        shared.this.witness.idle()
        return False
    shared.this.witness.holding(job)
    signals.job_started.send_robust(sender=TenantJob, job=job)
    return True


def end(job: TenantJob, outcome: Outcome) -> None:
    """Record how a job ended, and push the one that got its slot."""
    shared.this.witness.ending()
    released = persistently(lambda: release(job, outcome), between=lambda: keep_lease(job))
    if released is None:
        logger.error("the end of job %s could not be recorded; the sweep will find it", job.uuid)
        return
    shared.this.witness.idle()
    if not released:
        logger.warning("job %s ended after its slot had been taken away", job.uuid)
        return
    line.push(released.admitted)
    line.end_signal(job, released.state, outcome.get("error", ""))


def warm_up() -> None:
    """Load what the first queries of a process load; work-horses that are forked afterwards have it."""
    nobody = TenantJob(pk=0, attempt=0, tenant_queue_id=0)
    JOB.rows(uuid=nobody.uuid)
    slots.start(nobody, this_process("", beats=False))
    slots.release(nobody, state=State.FINISHED)


def persistently(action: Callable[[], T], between: Callable[[], object] = lambda: None) -> T | None:
    """The action's answer; None when the database stayed out of reach for the sum of `PAUSES`."""
    for pause in PAUSES:
        try:
            _leave_users_transaction()
            return action()
        except PASSING as error:
            logger.warning("the database did not answer, trying again: %s", error)
            connections[app_settings.DATABASE].close()
            between()
            time.sleep(pause)
    return None


def storable_error(text: str) -> str:
    """The end of a text as every database takes it."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()[-ERROR_LENGTH:]


def keep_lease(job: TenantJob) -> None:
    """The tenant's row may be locked by somebody for longer than a lease; the job has ended and is not to run again."""
    with suppress(Error):
        slots.beat(job.pk, job.attempt)


def _starting(job: TenantJob, holder: Holder) -> Callable[[], bool]:
    """A start that may be tried again: the first try may have been committed although its answer was lost."""
    tries = 0

    def start() -> bool:
        nonlocal tries
        tries += 1
        return slots.start(job, holder) or (tries > 1 and slots.is_run_by(job, holder))

    return start


def release(job: TenantJob, outcome: Outcome) -> slots.Release:
    """Give the slot back, at least without what the database refuses to store."""
    try:
        return slots.release(job, **outcome)
    except PASSING:
        raise
    except DatabaseError:
        logger.exception("what job %s left cannot be stored; its end is", job.uuid)
        bare = {name: value for name, value in outcome.items() if name not in LEFT}
        return slots.release(job, **bare)


def _leave_users_transaction() -> None:
    """A function that switched autocommit off and left work behind must not swallow what we record."""
    connection = connections[app_settings.DATABASE]
    if connection.connection is not None and not connection.autocommit and not connection.in_atomic_block:
        connection.close()
