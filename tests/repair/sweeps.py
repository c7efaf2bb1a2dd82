"""One sweep, now."""

from __future__ import annotations

from tenant_slots.db.clock import in_seconds
from tenant_slots.models import SweepClaim
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper


class LongContact(Contact):
    """A sweeper that has watched the database for long enough."""

    def covers_a_lease(self) -> bool:
        return True


def sweep_now(contact: Contact | None = None) -> Report:
    sweeper = Sweeper("test")
    sweeper.contact = contact or LongContact()
    SweepClaim.objects.update(until=in_seconds(-1))
    report = sweeper.sweep()
    assert report is not None
    return report
