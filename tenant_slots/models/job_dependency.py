"""Which jobs run after which others."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from tenant_slots.models.fields import ToOurRow
from tenant_slots.models.manager import InConfiguredDatabase
from tenant_slots.models.tenant_job import TenantJob


class JobDependency(models.Model):
    """A job waits for another one, or did: see ``using(after=)``.

    A job can only name jobs that are stored already, so that no circle comes about. The database keeps neither of the
    two from being deleted: whoever waits for a job that is gone is told so.
    """

    job = ToOurRow(TenantJob, models.DO_NOTHING, related_name="dependencies", db_index=False, db_constraint=False)
    after = ToOurRow(TenantJob, models.DO_NOTHING, related_name="dependents", db_index=False, db_constraint=False)
    any_outcome = models.BooleanField(default=False)
    """Whether it is enough that the other one ends, however it does."""
    is_open = models.BooleanField(default=True)
    """Whether the job has not been told yet that the other one has ended."""

    objects = InConfiguredDatabase()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["job", "after"], name="tenant_slots_dependency_unique")]
        indexes = [
            models.Index(fields=["after", "job"], name="tenant_slots_dependents"),
            models.Index(fields=["after"], condition=Q(is_open=True), name="tenant_slots_untold"),
            models.Index(fields=["job"], condition=Q(is_open=True), name="tenant_slots_waits_for"),
        ]

    def __str__(self) -> str:
        return f"job {self.job_id} after job {self.after_id}"
