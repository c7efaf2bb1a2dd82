"""What becomes of a job that raised `TenantBusy`: it waits in its old position while its tenant queue rests."""

from __future__ import annotations

from tenant_slots.models import State
from tenant_slots.running.recording import Outcome, storable_error
from tenant_slots.tasks.tenant_busy import TenantBusy, rest_of


def put_back(error: BaseException) -> Outcome | None:
    """Neither a failure nor a crash. None when the error is another, or cannot say what it is about."""
    if not isinstance(error, TenantBusy):
        return None
    try:
        rest = rest_of(error)
    except Exception:  # the second time it was asked, see `possible`: a class of the project answers as it likes
        return None
    text = f"the job said that its tenant is busy: {rest['reason']}".removesuffix(": ")
    return {"state": State.WAITING, "error": storable_error(text), "rest": rest}
