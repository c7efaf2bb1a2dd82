"""The page of a job: which jobs it runs after, and which ones after it, with links to them."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import ngettext

from tenant_slots.admin.pages import address
from tenant_slots.models import TenantJob
from tenant_slots.stats import dependencies
from tenant_slots.stats.dependencies import Named

MOST_SHOWN = 20

RUNS_AFTER, DEPENDENTS = "runs_after", "dependents"

_ATTRIBUTE = "tenant_slots_chains"


class _Shown(NamedTuple):
    model_admin: Any
    seen: QuerySet[TenantJob] | None
    named: dict[str, Named]


def show(model_admin: Any, request: HttpRequest, job: TenantJob) -> None:
    """Look, for one viewer. A job is an object of one request, which the admin is not."""
    restricted = model_admin.tenant_queues_for(request) is not None
    seen = model_admin.get_queryset(request) if restricted else None
    found = {RUNS_AFTER: dependencies.named(dependencies.named_after(job), MOST_SHOWN, seen)}
    if job.awaited:
        found[DEPENDENTS] = dependencies.named(dependencies.dependents(job), MOST_SHOWN, seen)
    setattr(job, _ATTRIBUTE, _Shown(model_admin, seen, found))


def seen_of(job: TenantJob) -> QuerySet[TenantJob] | None:
    """The jobs that this viewer may see; None for all."""
    shown: _Shown | None = getattr(job, _ATTRIBUTE, None)
    return shown.seen if shown else None


def empty_fields(job: TenantJob | None) -> set[str]:
    """The fields that have nothing to say."""
    shown: _Shown | None = getattr(job, _ATTRIBUTE, None)
    found = shown.named if shown else {}
    return {field for field in (RUNS_AFTER, DEPENDENTS) if not any(found.get(field, ()))}


def links(job: TenantJob, field: str) -> SafeString:
    shown: _Shown = getattr(job, _ATTRIBUTE)
    named = shown.named[field]
    lines = [_link(shown.model_admin, one) for one in named.jobs]
    if named.others:
        text = ngettext("and %(count)d other job", "and %(count)d other jobs", named.others)
        lines.append(format_html("{}", text % {"count": named.others}))
    return format_html_join(SafeString("<br>"), "{}", ((line,) for line in lines))


def _link(model_admin: Any, job: TenantJob) -> SafeString:
    url = address(model_admin, "change", job.pk)
    return format_html('<a href="{}">{}</a> · {}', url, job, job.get_state_display())
