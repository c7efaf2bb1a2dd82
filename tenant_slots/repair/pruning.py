"""Ended jobs leave the table when they have been kept for ``RETENTION``.

A project's own tables may refer to jobs. What is to go with a job goes, and a job that is to stay stays, without
keeping the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.db import IntegrityError
from django.db.models import CASCADE, DO_NOTHING, PROTECT, RESTRICT, Exists, Model, OuterRef, Q, QuerySet
from django.db.models.deletion import get_candidate_relations_to_delete

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import ago
from tenant_slots.models import JobDependency, TenantJob
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.together import in_halves
from tenant_slots.repair.turns import fitting_lease
from tenant_slots.repair.unlocked import unlocked

logger = logging.getLogger("tenant_slots")

JOBS_PER_BATCH = 1000
"""Most jobs that one transaction deletes."""

SECONDS_TO_PRUNE = 1
"""After which a sweep leaves what is old to the next one."""

Place = tuple[datetime | None, int]
"""When a job ended, and its key."""


def prune(report: Report, contact: Contact) -> None:
    """Ended jobs older than ``RETENTION``, the oldest first.

    Jobs that could not be deleted, or were locked, are not looked at again for a while.
    """
    deadline = time.monotonic() + fitting_lease(SECONDS_TO_PRUNE)
    while places := list(old_jobs(contact.pruned.place).values_list("ended_at", "pk")[:JOBS_PER_BATCH]):
        for part in contact.pace.parts(places, JOBS_PER_BATCH):
            with contact.pace.noting(part):
                report.pruned += in_halves(part, partial(_delete, contact), partial(_keep, contact), deadline)
            if time.monotonic() > deadline:
                return
        if len(places) < JOBS_PER_BATCH:
            return


def old_jobs(place: Place | None) -> QuerySet[TenantJob]:
    """The jobs that may go, from a place on, without those that a foreign key of the project protects."""
    jobs: QuerySet[TenantJob] = TenantJob.objects.ended().filter(ended_at__lt=ago(app_settings.RETENTION))
    if place is not None:
        ended_at, pk = place
        jobs = jobs.filter(ended_at__gte=ended_at).exclude(ended_at=ended_at, pk__lte=pk)
    return jobs.exclude(_is_protected(TenantJob)).exclude(_is_awaited()).order_by("ended_at", "pk")


def _is_awaited() -> Exists:
    """Whether some job has not been told yet that it has ended."""
    return Exists(JobDependency.objects.filter(after=OuterRef("pk"), is_open=True))


def _delete(contact: Contact, places: Sequence[Place]) -> int:
    """Whoever wants to run after one of them keeps it until his transaction is over, and then it is awaited."""
    with unlocked(TenantJob.objects.ended().filter(pk__in=[pk for _, pk in places]), to_delete=True) as ours:
        jobs = ours.exclude(_is_awaited())
        JobDependency.objects.filter(job__in=jobs).delete()
        _, by_model = QuerySet.delete(jobs)  # not ours, which looks for slots: these have ended
    contact.pruned.move(places[-1])
    return by_model.get(TenantJob._meta.label, 0)


def _keep(contact: Contact, place: Place, error: Exception) -> None:
    """That a row is referred to is no fault; anything else is, and is told until the next look at it."""
    level = logging.DEBUG if isinstance(error, IntegrityError) else logging.WARNING
    logger.log(level, "an ended job is kept, as the project does not let it go: %s", error)
    contact.pruned.move(place)


def _is_protected(model: type[Model], above: tuple[type[Model], ...] = ()) -> Q:
    """Whether some row of the project does not let a row of this model go, or one that would go with it."""
    protected = Q()
    relations: Iterable[Any] = get_candidate_relations_to_delete(model._meta)
    for relation in relations:
        field, referring = relation.field, relation.related_model
        if referring is JobDependency:
            continue  # ours, which says itself what is to become of them
        rows = referring._base_manager.filter(**{field.attname: OuterRef(field.target_field.attname)})
        if relation.on_delete in (PROTECT, RESTRICT, DO_NOTHING):
            protected |= Q(Exists(rows))
        elif relation.on_delete is CASCADE and referring not in (model, *above):
            below = _is_protected(referring, (model, *above))
            protected |= Q(Exists(rows.filter(below))) if below else Q()
    return protected
