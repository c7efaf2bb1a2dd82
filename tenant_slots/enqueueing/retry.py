"""Running a failed or canceled job again, at its old position."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

from tenant_slots import chains, transitions
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.commits import after_commit
from tenant_slots.db.compiled import among
from tenant_slots.enqueueing import unique
from tenant_slots.exceptions import NotRetryable
from tenant_slots.layering import implements
from tenant_slots.locks import locked
from tenant_slots.models import State, TenantJob, TenantQueue

AS_NEW: dict[str, Any] = {
    "state": State.WAITING,
    "run_after": DatabaseNow(),
    "asks": False,
    "crashes": 0,
    "interruptions": 0,
    "failures": 0,
    "cancel_requested_at": None,
    "ended_at": None,
    "error_class": None,
    "expires_at": None,
}
"""What a job has anew that is to run again. It has not waited since it was enqueued: it could not start before now."""


@implements(TenantJob.retry)
def retry(job: TenantJob) -> None:
    try:
        with locked(job.tenant_queue_id):
            after = chains.wait_again(job)
            revived = unique.revive(TenantJob.objects.retryable().filter(pk=job.pk), **_as_new(after))
        if not revived:
            job.refresh_from_db()
    except (TenantJob.DoesNotExist, TenantQueue.DoesNotExist):
        raise NotRetryable(job=job.uuid, state="deleted") from None
    if not revived:
        raise NotRetryable(job=job.uuid, state=_why_not(job))
    if after:
        transitions.await_jobs(after)
    else:
        after_commit(partial(transitions.offer, job.tenant_queue_id, job.rq_queue_name))
    with suppress(TenantJob.DoesNotExist):  # deleted since, or run and pruned
        job.refresh_from_db()


def retry_all(row: TenantQueue, jobs: list[TenantJob]) -> list[TenantJob]:
    """As `TenantJob.retry`, of those of a tenant's jobs that can be. Returns these.

    In a transaction that holds the row, and in which the jobs were read. Unique ones are revived in the order in which
    `enqueue_many` stores them: whoever waits for one of the other's jobs has not got any that the other still wants.
    """
    retryable = [job for job in jobs if _is_retryable(job)]
    in_chains = chains.among_dependents(retryable)
    alone = [job for job in retryable if job.unique_key or job.pk in in_chains]
    together = [job.pk for job in retryable if job not in alone]
    TenantJob.objects.retryable().filter(among(together)).update(**AS_NEW)
    for job in sorted(alone, key=attrgetter("unique_key", "pk")):
        # A duplicate of it may be under way, or a job that it runs after.
        after = chains.wait_again(job, [one.pk for one in retryable])
        unique.revive(TenantJob.objects.retryable().filter(pk=job.pk), **_as_new(after))
        if after:
            transitions.await_jobs(after)
    for job in retryable:
        job.tenant_queue = row
    for rq_queue in {job.rq_queue_name: None for job in retryable}:
        after_commit(partial(transitions.offer, row.pk, rq_queue, row.share))
    return retryable


def _as_new(after: list[int]) -> dict[str, Any]:
    return {**AS_NEW, "state": State.SCHEDULED, "run_after": None} if after else AS_NEW


def _is_retryable(job: TenantJob) -> bool:
    """As `TenantJobQuerySet.retryable`."""
    return job.state in (State.FAILED, State.CANCELED) and not job.is_reservation and not job.rq_job_id


def _why_not(job: TenantJob) -> str:
    if job.is_reservation:
        return "a reservation, so there is nothing to run"
    return "RQ's own, to be requeued there" if job.rq_job_id else job.state
