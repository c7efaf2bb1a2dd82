"""What becomes of a job whose process died: it runs again in its old place, a few times, then fails."""

from __future__ import annotations

from typing import Any

from tenant_slots import line, slots
from tenant_slots.conf import app_settings
from tenant_slots.models import DatabaseNow, State, TenantJob


def after_dead_horse(worker: str, *, stopped: bool) -> None:
    """Free the slot of the job that a worker's dead work-horse left running.

    Args:
        worker: the name of the worker; it runs one job at a time.
        stopped: RQ's stop command killed the horse.
    """
    for job in TenantJob.objects.running().filter(worker=worker).select_related("tenant_queue"):
        end_lost_run(job, f"its process on worker {worker} died", canceled=stopped)


def end_lost_run(job: TenantJob, reason: str, *, canceled: bool = False) -> bool:
    """Release the slot of a run that is known to be dead. False when somebody else already has.

    Args:
        job: the row as read while it held its slot.
        reason: what happened, for the job's error text.
        canceled: the run was stopped on request.
    """
    changes = _next_state(job, reason, canceled=canceled or job.cancel_requested_at is not None)
    released = slots.release(job, **changes)
    line.push(released.admitted)
    if released:
        line.end_signal(job, **changes)
    return bool(released)


def _next_state(job: TenantJob, reason: str, *, canceled: bool) -> dict[str, Any]:
    crashes = job.crashes + 1
    story = f"{job.error}\nattempt {job.attempt}: {reason}".lstrip()
    if canceled:
        return {"state": State.CANCELED, "ended_at": DatabaseNow(), "error": story}
    if crashes > app_settings.MAX_CRASHES or job.rq_job_id:
        return {"state": State.FAILED, "ended_at": DatabaseNow(), "error": story, "crashes": crashes}
    return {"state": State.WAITING, "error": story, "crashes": crashes}
