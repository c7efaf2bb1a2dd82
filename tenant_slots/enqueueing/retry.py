"""Running a failed or canceled job again, at its old position."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from tenant_slots import chains, transitions
from tenant_slots.enqueueing import unique
from tenant_slots.exceptions import NotRetryable
from tenant_slots.layering import implements
from tenant_slots.locks import locked
from tenant_slots.models import State, TenantJob, TenantQueue


@implements(TenantJob.retry)
def retry(job: TenantJob) -> None:
    fresh: dict[str, Any] = {
        "state": State.WAITING,
        "asks": False,
        "crashes": 0,
        "interruptions": 0,
        "failures": 0,
        "cancel_requested_at": None,
        "ended_at": None,
        "expires_at": None,
    }
    try:
        with locked(job.tenant_queue_id):
            if after := chains.wait_again(job):
                fresh |= {"state": State.SCHEDULED, "run_after": None}
            revived = unique.revive(TenantJob.objects.retryable().filter(pk=job.pk), **fresh)
        if not revived:
            job.refresh_from_db()
    except (TenantJob.DoesNotExist, TenantQueue.DoesNotExist):
        raise NotRetryable(job=job.uuid, state="deleted") from None
    if not revived:
        raise NotRetryable(job=job.uuid, state=_why_not(job))
    if after:
        transitions.await_jobs(after)
    else:
        transitions.after_commit(partial(transitions.offer, job.tenant_queue_id, job.rq_queue_name))
    with suppress(TenantJob.DoesNotExist):  # deleted since, or run and pruned
        job.refresh_from_db()


def _why_not(job: TenantJob) -> str:
    if job.is_reservation:
        return "a reservation, so there is nothing to run"
    return "RQ's own, to be requeued there" if job.rq_job_id else job.state
