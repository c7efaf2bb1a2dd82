"""What staff have changed in one go, of more rows than a request should, and how far that is."""

from __future__ import annotations

from enum import StrEnum
from uuid import uuid4

from django.db import models
from django.db.models import Value
from django.utils.translation import gettext_lazy as _

from tenant_slots.db.clock import DatabaseNow
from tenant_slots.models import shapes
from tenant_slots.models.fields import Moment, StoredJSON, ToOurRow, UnreadableDict, UnreadableList
from tenant_slots.models.manager import InConfiguredDatabase


class Ending(StrEnum):
    """Why nothing more of a bulk change is done."""

    GOES_ON = ""
    DONE = "done"
    STOPPED = "stopped"
    FORBIDDEN = "forbidden"
    """Whoever has confirmed it may not do so any more."""


class BulkChange(models.Model):
    """One action of the admin on many rows, which a worker carries out.

    Who confirmed it is kept by key and name: the tables of users may be in another database, or be one in each schema.
    """

    site = models.CharField(max_length=100, help_text="The name of the admin site.")
    model = models.CharField(max_length=100)
    action = models.CharField(max_length=100)
    values = StoredJSON(default=dict, fits=shapes.are_form_values, empty=UnreadableDict)
    language = models.CharField(max_length=20)
    user_key = models.CharField(max_length=255)
    by = models.CharField(max_length=150)
    reason = models.TextField()
    total = models.PositiveIntegerField()
    confirmation = models.UUIDField(
        default=uuid4, unique=True, help_text="Of the form that was sent: a second click is no second change."
    )
    job = models.UUIDField(help_text="Of the tenant job that carries it out.")
    created_at = Moment(db_default=DatabaseNow())
    started_at = Moment(null=True)
    cancel_requested_at = Moment(null=True)
    ended_at = Moment(null=True)
    ending = models.CharField(max_length=10, default="", db_default="")
    outcomes = StoredJSON(
        default=dict,
        fits=shapes.are_counts,
        empty=UnreadableDict,
        db_default=Value({}, models.JSONField()),
        help_text="How many came to what, beside those in the chunks.",
    )
    problems = StoredJSON(
        default=list, fits=shapes.are_texts, empty=UnreadableList, db_default=Value([], models.JSONField())
    )

    objects = InConfiguredDatabase()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("bulk change")
        verbose_name_plural = _("bulk changes")
        default_permissions = ("view",)
        indexes = [models.Index(fields=["model", "-id"], name="tenant_slots_bulk_changes")]

    def __str__(self) -> str:
        return f"{self.action} {self.pk}"


class BulkChunk(models.Model):
    """A part of the rows of a bulk change: those that are left of it, and what the others came to.

    What is left is written in the transaction that changes rows, so that whoever goes on after a crash does nothing
    twice and counts everything once.
    """

    change = ToOurRow(BulkChange, models.CASCADE, related_name="chunks", db_index=False)
    left = StoredJSON(default=list, fits=shapes.are_parts, empty=UnreadableList)
    step = models.PositiveIntegerField(default=0, db_default=0)
    outcomes = StoredJSON(default=dict, fits=shapes.are_counts, empty=UnreadableDict)
    problems = StoredJSON(default=list, fits=shapes.are_texts, empty=UnreadableList)

    objects = InConfiguredDatabase()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        indexes = [models.Index(fields=["change", "id"], name="tenant_slots_bulk_chunks")]

    def __str__(self) -> str:
        return f"{self.pk} of bulk change {self.change_id}"
