"""Canceling: what has not begun is canceled here and now; a worker is asked to stop what runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tenant_slots import dispatch, transitions
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.commits import after_commit
from tenant_slots.db.compiled import among
from tenant_slots.layering import implements
from tenant_slots.locks import locked
from tenant_slots.models import CONTENT, State, TenantJob, TenantQueue
from tenant_slots.models.states import UNADMITTED

JOBS_PER_STEP = 1000
"""Most jobs that leave the backlog in one transaction, so that the tenant queue is not locked for long."""


@implements(TenantJob.cancel)
def cancel(job: TenantJob) -> bool:
    with suppress(TenantJob.DoesNotExist, TenantQueue.DoesNotExist):  # deleted: there is nothing left to cancel
        while True:
            job.refresh_from_db()
            if job.has_ended:
                return False
            if _ask_to_stop(job) if job.state == State.RUNNING else transitions.cancel_unstarted(job):
                return True
    return False


def cancel_unstarted(job: TenantJob) -> bool:
    """As `TenantJob.cancel`, but what runs is left alone, also if it begins right now."""
    with suppress(TenantJob.DoesNotExist, TenantQueue.DoesNotExist):
        while True:
            job.refresh_from_db()
            if job.has_ended or job.state == State.RUNNING:
                return False
            if transitions.cancel_unstarted(job):
                return True
    return False


def stop(job: TenantJob) -> bool:
    """Ask the run of which the row was read to stop. False when it has ended, or went back to wait, meanwhile.

    Unlike `TenantJob.cancel` it cancels nothing that waits: who may stop jobs need not be allowed to do that.
    """
    with suppress(TenantQueue.DoesNotExist):
        return job.state == State.RUNNING and _ask_to_stop(job)
    return False


def cancel_waiting(tenant_queue: TenantQueue, pks: Sequence[int]) -> int:
    """Cancel those of a tenant's jobs, by primary key, that wait.

    Returns:
        How many. A job that got a slot meanwhile is not one of them.
    """
    canceled = 0
    for start in range(0, len(pks), JOBS_PER_STEP):
        with locked(tenant_queue.pk) as row:
            canceled += len(cancel_those(row, pks[start : start + JOBS_PER_STEP]))
    return canceled


def cancel_those(row: TenantQueue, pks: Sequence[int]) -> list[TenantJob]:
    """A step of `cancel_waiting`, in a transaction that holds the row."""
    jobs = list(row.jobs.waiting().filter(among(pks)).defer(*CONTENT).order_by("pk"))
    TenantJob.objects.waiting().filter(among([job.pk for job in jobs])).update(**_canceled())
    _tell(row, jobs)
    return jobs


def cancel_unadmitted(row: TenantQueue, jobs: list[TenantJob]) -> list[TenantJob]:
    """Cancel those of a tenant's jobs that hold no slot and have not ended, and tell so. Returns these.

    In a transaction that holds the row, and in which the jobs were read.
    """
    leaving = [job for job in jobs if job.state in UNADMITTED]
    TenantJob.objects.unadmitted().filter(among([job.pk for job in leaving])).update(**_canceled())
    _tell(row, leaving)
    return leaving


def _canceled() -> dict[str, Any]:
    return {"state": State.CANCELED, "ended_at": DatabaseNow()}


def _tell(row: TenantQueue, jobs: list[TenantJob]) -> None:
    """Their rows are ours now, so nobody begins to wait for one of them unseen."""
    awaited = set(TenantJob.objects.filter(among([job.pk for job in jobs]), awaited=True).values_list("pk", flat=True))
    for job in jobs:
        job.tenant_queue, job.awaited = row, job.pk in awaited
        if job.rq_job_id:
            after_commit(partial(dispatch.remove, job))
    transitions.left(jobs, State.CANCELED)


def _ask_to_stop(job: TenantJob) -> bool:
    """False when the job ended, or went back to wait, meanwhile. A run is asked once, however often it is canceled."""
    with locked(job.tenant_queue_id):
        run = TenantJob.objects.held_as(job)
        if run.filter(cancel_requested_at=None).update(cancel_requested_at=DatabaseNow()):
            after_commit(partial(dispatch.stop, job))
            return True
        return bool(run.exists())
