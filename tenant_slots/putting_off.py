"""Jobs that the database does not let be admitted, by a constraint, trigger or policy of the project, are put off.

Nobody is passed over (rule 5 of ``slots.py``), so that all behind such a job would wait for as long as it does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.db import DatabaseError, transaction

from tenant_slots import backlog
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import in_seconds
from tenant_slots.db.transactions import check_deferred
from tenant_slots.locks import locked
from tenant_slots.models import REFUSED, State, TenantJob
from tenant_slots.owners import this_process
from tenant_slots.refusals import is_refusal
from tenant_slots.statements import CLAIM, START
from tenant_slots.validation import HIGHEST_COUNT

SECONDS_PUT_OFF = 60
"""After which a job is tried again that the database did not let be admitted."""

MOST_PUT_OFF = 200
"""In one transaction: each is tried by itself, while the tenant queue is locked. A minute later they are first again:
if fewer are put off meanwhile than come back, no job behind them has its turn.
"""

SECONDS_TO_PUT_OFF = 0.5
"""For which that goes on: a job may be refused because a trigger takes too long. One is put off in any case."""


@dataclass(frozen=True)
class PutOff:
    """What became of a backlog whose next jobs the database did not let be admitted."""

    jobs: list[TenantJob]
    """Those that are tried again later, with the reason in `error`."""
    has_next: bool = False
    """Others can be admitted now."""


def put_off_refused(tenant_queue_id: int, rq_queue: str, most: int = 1) -> PutOff:
    """Schedule those of the next jobs for later that the database does not let be admitted. Neither a reservation nor a
    plain RQ job is put off.

    Args:
        tenant_queue_id, rq_queue, most: as of `slots.admit`, whose jobs are admitted all together or not at all.

    Raises:
        TenantQueue.DoesNotExist, TenantQueueLocked: as `locked`.
    """
    put_off: list[TenantJob] = []
    has_next = False
    until = time.monotonic() + SECONDS_TO_PUT_OFF
    with locked(tenant_queue_id) as tenant_queue:
        for job in backlog.next_ones(tenant_queue, rq_queue, MOST_PUT_OFF):
            job.tenant_queue = tenant_queue
            if (error := _refusal_of(job)) is None:
                has_next = True
                most -= not job.is_reservation
                if not most:
                    break
            elif job.starts_where_admitted and _put_off(job, error):
                put_off.append(job)
                if time.monotonic() >= until:
                    break
            else:
                return PutOff(put_off)
    return PutOff(put_off, has_next=has_next and bool(put_off))


def _refusal_of(job: TenantJob) -> DatabaseError | None:
    """Why it can be neither admitted nor started, which is tried and undone; None if it can."""
    owner = this_process("", beats=False).as_fields()
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            CLAIM.update(pk=job.pk)
            START.update(pk=job.pk, attempt=job.attempt + 1, **owner)
            check_deferred(app_settings.DATABASE)
            transaction.set_rollback(True, using=app_settings.DATABASE)
    except DatabaseError as error:
        if not is_refusal(error):
            raise
        return error
    return None


def _put_off(job: TenantJob, error: DatabaseError) -> bool:
    """False where that is refused as well, and for a job whose next attempt would have no number: a sweep fails it."""
    if job.attempt >= HIGHEST_COUNT:
        return False
    job.error = f"{REFUSED}: {str(error).partition(chr(10))[0]}"
    later = {"state": State.SCHEDULED, "run_after": in_seconds(SECONDS_PUT_OFF), "error": job.error}
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            is_put_off = bool(TenantJob.objects.waiting().filter(pk=job.pk).update(**later))
            check_deferred(app_settings.DATABASE)
            return is_put_off
    except DatabaseError:
        return False
