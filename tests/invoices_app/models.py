from __future__ import annotations

from django.db import models

from tenant_slots.models import TenantJob


class OfJob(models.Model):
    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.pk}"


class Invoice(OfJob):
    """As long as it exists, so does its job."""

    job = models.ForeignKey(TenantJob, models.PROTECT, to_field="uuid")


class Note(OfJob):
    """Goes with its job."""

    job = models.ForeignKey(TenantJob, models.CASCADE, related_name="+")


class Answer(OfJob):
    """Keeps its note, and so the job of that note."""

    note = models.ForeignKey(Note, models.PROTECT)


class Delivery(OfJob):
    """Does without its job."""

    job = models.ForeignKey(TenantJob, models.SET_NULL, null=True)
