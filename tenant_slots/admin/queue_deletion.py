"""The action that deletes tenant queues. Those that have changed, or got jobs, since the page was shown are left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from django import forms
from django.db.models import Count, Max
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, ngettext_lazy

from tenant_slots.admin import audit, spared
from tenant_slots.admin.bulk.chunks import Part
from tenant_slots.admin.bulk.ways import CHANGED_MEANWHILE
from tenant_slots.admin.bulk.work import Step, Work
from tenant_slots.admin.confirmed import DONE, FAILED, GONE, JOBS, Confirmed
from tenant_slots.admin.forms import ReasonForm, SeenForm, seen
from tenant_slots.admin.queue_actions import LEFT, describe
from tenant_slots.admin.snapshots import forget_shared
from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import among
from tenant_slots.db.transactions import bounded_at_once
from tenant_slots.enqueueing.queue_deletion import Unused, delete_unused, has_work, lock_free, with_work
from tenant_slots.models import TenantJob, TenantQueue

IN_USE = "in use"
NEW_JOBS = "new jobs"
BY_ITSELF = ""
"""The outcome of one that is not deleted together with others."""

JOBS_TOGETHER = 1000
"""Most jobs of a tenant queue that is deleted with others, so that these are not held for long."""


class DeleteForm(SeenForm, ReasonForm):
    last_job = forms.IntegerField(widget=forms.HiddenInput, required=False)
    """The last job that there was: those of the deleted rows up to this one were counted."""


def _shown(pks: list[int]) -> dict[str, Any]:
    return {**seen(pks), "last_job": TenantJob.objects.aggregate(last=Max("pk"))["last"]}


def _delete(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    """With its ended jobs, and with the entry or not at all."""
    if not model_admin.has_delete_permission(request, row):
        return FAILED
    alias = app_settings.DATABASE
    with bounded_at_once(alias, row):
        if outcome := _changed_since(row, values):
            return outcome
        audit.note_deletions(request, [row], values["reason"])
        row.delete()
    forget_shared()
    return DONE


def _changed_since(row: TenantQueue, values: dict[str, Any]) -> str:
    """The outcome for a row, locked, that is not any more what the page has shown."""
    current = TenantQueue.objects.select_for_update().filter(pk=row.pk).first()
    if current is None:
        return GONE
    if values["seen"].get(row.pk, current.version) != current.version:
        return CHANGED_MEANWHILE
    if with_work([current]):
        return IN_USE
    newer = TenantJob.objects.filter(tenant_queue=row.pk, pk__gt=values["last_job"] or 0)
    return NEW_JOBS if newer.exists() else ""


def _by_use(pks: list[int]) -> tuple[list[int], int]:
    """Those that can be deleted, and how many others are there."""
    rows = dict(TenantQueue.objects.filter(among(pks)).order_by().annotate(used=has_work()).values_list("pk", "used"))
    unused = [pk for pk, used in rows.items() if not used]
    return unused, len(rows) - len(unused)


def _jobs_of(pks: list[int]) -> int:
    return TenantJob.objects.filter(among(pks, "tenant_queue")).count()


def _rows_deleted(pks: list[int], values: dict[str, Any]) -> int:
    return len(pks) + _jobs_of(_by_use(pks)[0])


def _effects(model_admin: Any, request: HttpRequest, pks: list[int], values: dict[str, Any]) -> list[str]:
    unused, used = _by_use(pks)
    jobs = _jobs_of(unused)
    with_them = ngettext(
        "%(count)d job of theirs is deleted with them.", "%(count)d jobs of theirs are deleted with them.", jobs
    )
    left = ngettext(
        "%(count)d of them will be left alone: jobs hold its slots or wait.",
        "%(count)d of them will be left alone: jobs hold their slots or wait.",
        used,
    )
    return [text % {"count": count} for text, count in ((with_them, jobs), (left, used)) if count]


class _Jobs(NamedTuple):
    """Of one tenant queue."""

    number: int
    last: int


NO_JOBS = _Jobs(0, 0)


def delete_together(work: Work) -> Iterator[None]:
    """All of a part in one transaction, as far as nobody holds them and they have few jobs; then the others, each in
    one of its own.
    """
    part = work.chunk.part
    if part.one_by_one:
        work.tried(partial(_delete_first, work, part), part.without_first(), holding=part.pks[0])
    else:
        with work.step() as step:
            alone = _delete_those(work, part, lock_free(part.pks), step, most=JOBS_TOGETHER)
            step.left = _only(part, alone)
    yield


def _delete_first(work: Work, part: Part, step: Step) -> None:
    first = part.pks[:1]
    rows = list(TenantQueue.objects.select_for_update().filter(among(first)))
    _delete_those(work, _only(part, first), rows, step)


def _delete_those(
    work: Work, part: Part, locked: list[TenantQueue], step: Step, most: float = float("inf")
) -> list[int]:
    """Those of the part that can be. Returns the ones that others hold, or that have more than so many jobs."""
    rows = {row.pk: row for row in locked}
    visible, used, jobs = work.visible(part.pks), with_work(locked), _jobs_by_queue(list(rows))
    versions = part.shown

    def outcome(pk: int) -> str:
        row, its_jobs = rows.get(pk), jobs.get(pk, NO_JOBS)
        if pk not in visible:
            return GONE
        if row is None:
            return BY_ITSELF
        if not work.model_admin.has_delete_permission(work.request, row):
            return FAILED
        if versions.get(pk, row.version) != row.version:
            return CHANGED_MEANWHILE
        if pk in used:
            return IN_USE
        if its_jobs.last > (work.values["last_job"] or 0):
            return NEW_JOBS
        return DONE if its_jobs.number <= most else BY_ITSELF

    outcomes = {pk: outcome(pk) for pk in part.pks}
    leaving = Unused(rows[pk] for pk, one in outcomes.items() if one == DONE)
    audit.note_deletions(work.request, leaving, work.reason)
    step.outcomes.update(one for one in outcomes.values() if one != BY_ITSELF)
    step.outcomes[JOBS] += delete_unused(leaving)
    return [pk for pk, one in outcomes.items() if one == BY_ITSELF]


def _jobs_by_queue(pks: list[int]) -> dict[int, _Jobs]:
    jobs = TenantJob.objects.filter(among(pks, "tenant_queue")).order_by()
    counted = jobs.values_list("tenant_queue").annotate(number=Count("pk"), last=Max("pk"))
    return {pk: _Jobs(number, last) for pk, number, last in counted}


def _only(part: Part, pks: Sequence[int]) -> Part:
    return replace(part.only(pks), one_by_one=True)


DELETE = Confirmed(
    permission="delete",
    label=_("Delete selected tenant queues"),
    title=_("Delete tenant queues"),
    form=DeleteForm,
    apply=_delete,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d tenant queue was deleted.", "%(count)d tenant queues were deleted.", "count"),
        JOBS: ngettext_lazy(
            "%(count)d job was deleted with its tenant queue.",
            "%(count)d jobs were deleted with their tenant queues.",
            "count",
        ),
        IN_USE: ngettext_lazy(
            "%(count)d tenant queue was left alone: jobs hold its slots or wait.",
            "%(count)d tenant queues were left alone: jobs hold their slots or wait.",
            "count",
        ),
        NEW_JOBS: ngettext_lazy(
            "%(count)d tenant queue was left alone: jobs have come to it since the page was shown.",
            "%(count)d tenant queues were left alone: jobs have come to them since the page was shown.",
            "count",
        ),
        CHANGED_MEANWHILE: LEFT[CHANGED_MEANWHILE],
        **spared.OF_QUEUES,
    },
    initial=_shown,
    warnings=_effects,
    rows_changed=_rows_deleted,
    in_background=delete_together,
)
