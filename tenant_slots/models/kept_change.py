"""The history of tenant queues' limits."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from tenant_slots.models.fields import Moment, ToOurRow
from tenant_slots.models.manager import InConfiguredDatabase
from tenant_slots.models.tenant_queue import TenantQueue


class KeptChange(models.Model):
    """One `Change` of a tenant queue, whoever made it: staff, a command, the project's code or a sweep."""

    tenant_queue = ToOurRow(TenantQueue, models.CASCADE, related_name="kept_changes", db_index=False)
    at = Moment(_("time"))
    what = models.CharField(max_length=20)
    old = models.CharField(max_length=60, null=True)  # noqa: DJ001  None is no limit at all
    new = models.CharField(max_length=60, null=True)  # noqa: DJ001
    until = Moment(null=True)
    by = models.CharField(max_length=150)
    reason = models.TextField()

    objects = InConfiguredDatabase()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        indexes = [
            models.Index(fields=["tenant_queue", "id"], name="tenant_slots_changes"),
            models.Index(fields=["at"], name="tenant_slots_change_times"),
        ]

    def __str__(self) -> str:
        return f"{self.what} of {self.tenant_queue_id}: {self.old} → {self.new}"
