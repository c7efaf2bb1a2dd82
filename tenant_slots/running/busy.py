"""What becomes of a job that raised `TenantBusy`: it waits in its old position while its tenant queue rests."""

from __future__ import annotations

from tenant_slots.models import State
from tenant_slots.running.recording import Outcome, storable_error
from tenant_slots.tasks.tenant_busy import TenantBusy


def put_back(error: BaseException) -> Outcome | None:
    """Neither a failure nor a crash. None when the error is another."""
    if not isinstance(error, TenantBusy):
        return None
    until = None if error.until is None else error.until.isoformat()
    reason = f"the job said that its tenant is busy: {error.reason}".removesuffix(": ")
    return {
        "state": State.WAITING,
        "error": storable_error(reason),
        "rest": {"reason": error.reason, "seconds": error.seconds, "until": until},
    }
