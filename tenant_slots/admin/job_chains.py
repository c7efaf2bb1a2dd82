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


class Chains(NamedTuple):
    """What one viewer sees of them, as HTML; empty where there are none."""

    runs_after: SafeString
    dependents: SafeString


def of(model_admin: Any, request: HttpRequest, job: Any) -> Chains:
    """Asks only where the job, as the page has read it, says that there are any."""
    seen = seen_by(model_admin, request)

    def links(jobs: QuerySet[TenantJob]) -> SafeString:
        return _links(model_admin, dependencies.named(jobs, MOST_SHOWN, seen))

    return Chains(
        links(dependencies.named_after(job)) if job.has_dependencies else SafeString(),
        links(dependencies.dependents(job)) if job.awaited else SafeString(),
    )


def seen_by(model_admin: Any, request: HttpRequest) -> QuerySet[TenantJob] | None:
    """The jobs that this viewer may see; None for all."""
    if model_admin.own_tenant_queues(request) is None:
        return None
    found: QuerySet[TenantJob] = model_admin.get_queryset(request)
    return found


def _links(model_admin: Any, named: Named) -> SafeString:
    lines = [_link(model_admin, one) for one in named.jobs]
    if named.others:
        text = ngettext("and %(count)d other job", "and %(count)d other jobs", named.others)
        lines.append(format_html("{}", text % {"count": named.others}))
    return format_html_join(SafeString("<br>"), "{}", ((line,) for line in lines))


def _link(model_admin: Any, job: TenantJob) -> SafeString:
    url = address(model_admin, "change", job.pk)
    return format_html('<a href="{}">{}</a> · {}', url, job, job.get_state_display())
