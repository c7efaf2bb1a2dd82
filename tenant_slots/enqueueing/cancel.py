"""Canceling: what has not begun is canceled here and now; a worker is asked to stop what runs."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from tenant_slots import dispatch, transitions
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.layering import implements
from tenant_slots.locks import locked
from tenant_slots.models import CONTENT, State, TenantJob, TenantQueue

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


def cancel_waiting(tenant_queue: TenantQueue, *, up_to: int) -> int:
    """Cancel a tenant's waiting jobs, those that were enqueued later than the job `up_to` aside.

    Returns:
        How many. A job that got a slot meanwhile is not one of them.
    """
    canceled = 0
    while some := _cancel_some(tenant_queue, up_to):
        canceled += len(some)
    return canceled


def _cancel_some(tenant_queue: TenantQueue, up_to: int) -> list[TenantJob]:
    with locked(tenant_queue.pk) as row:
        backlog = row.jobs.waiting().filter(pk__lte=up_to).defer(*CONTENT)
        jobs = list(backlog.select_for_update(no_key=True).order_by("pk")[:JOBS_PER_STEP])  # with who waits for them
        ended = {"state": State.CANCELED, "ended_at": DatabaseNow()}
        TenantJob.objects.waiting().filter(pk__in=[job.pk for job in jobs]).update(**ended)
    for job in jobs:
        job.tenant_queue = row
        if job.rq_job_id:
            transitions.after_commit(partial(dispatch.remove, job))
    transitions.left(jobs, State.CANCELED)
    return jobs


def _ask_to_stop(job: TenantJob) -> bool:
    """False when the job ended, or went back to wait, meanwhile. A run is asked once, however often it is canceled."""
    with locked(job.tenant_queue_id):
        run = TenantJob.objects.held_as(job)
        if run.filter(cancel_requested_at=None).update(cancel_requested_at=DatabaseNow()):
            transitions.after_commit(partial(dispatch.stop, job))
            return True
        return bool(run.exists())
