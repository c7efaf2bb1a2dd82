"""The overview: what needs a person now, and how all tenants together fare, over an hour, a day or a week."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from django.utils.formats import localize
from django.utils.translation import gettext

from tenant_slots.admin import attention, audit, overview_charts
from tenant_slots.admin.attention import MODELS, Facts, Links, LostChange
from tenant_slots.admin.bulk.commission import key_of
from tenant_slots.admin.bulk.pages import SEES_ALL
from tenant_slots.admin.pages import address, address_of, view_name
from tenant_slots.admin.permissions import may
from tenant_slots.admin.queue_charts import SPANS, Span
from tenant_slots.admin.snapshots import shared_changes, shared_deploys, shared_facts, shared_periods
from tenant_slots.admin.words import NOTHING, duration
from tenant_slots.admin.workers import WorkersPage
from tenant_slots.models import TenantJob
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.queue_names import usable_queues
from tenant_slots.stats import minutes
from tenant_slots.stats.changes import Changes, last_changes
from tenant_slots.stats.deploys import Deploy, last_deploys
from tenant_slots.stats.minutes import Period

MOST_CHANGES = 20
"""That are listed below the charts, the latest ones."""

INTERVALS = (0, 5, 15, 30)
"""Seconds between two updates. The charts change once a minute, what needs a person at any time."""


class OverviewPage(WorkersPage):
    def get_urls(self) -> list[Any]:
        page = path("overview/", self.admin_site.admin_view(self.overview_view), name=view_name(self, "overview"))
        return [page, *super().get_urls()]

    def overview_view(self, request: HttpRequest) -> TemplateResponse:
        if not self.has_overview_permission(request):
            raise PermissionDenied
        span = SPANS.get(request.GET.get("span", ""), SPANS["1h"])
        names = usable_queues()
        queue = request.GET.get("queue", "")
        queue = queue if queue in names else ALL_QUEUES
        now = timezone.now()
        changes = changes_within(queue, span)
        periods = periods_of(queue, span.periods, span.seconds)
        deploys = deploys_within(span)
        marks = overview_charts.marks(changes.by_period, deploys, span, now)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": gettext("Overview"),
            "media": self.media,
            "back": address(self, "changelist"),
            "sentences": attention.sentences(facts_now(), self._links(request), partial(self._sees_lost, request)),
            "queue": queue,
            "queues": names,
            "span": span,
            "spans": SPANS.values(),
            "tiles": tiles(_latest(queue), minutes.added_up(periods), span),
            "charts": overview_charts.charts_of(periods, span, marks),
            "deploys": deploys[::-1][:MOST_CHANGES],
            "changes": [(change, audit.line_of(change)) for change in changes.latest],
            "row_url": f"{self.admin_site.name}:{view_name(self, 'change')}",
            "workers_url": address(self, "workers"),
            "failures_url": self._of_jobs(request, "failures"),
            "zone": f"{timezone.localtime():%Z}",
            "slots_intervals": INTERVALS,
            "slots_every": 15,
        }
        return TemplateResponse(request, "admin/tenant_slots/overview.html", context)

    def has_overview_permission(self, request: HttpRequest) -> bool:
        """The figures are those of all tenants together."""
        return self.has_view_permission(request) and self.own_tenant_queues(request) is None

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {**self.overview_link(request), **(extra_context or {})})

    def workers_view(self, request: HttpRequest) -> TemplateResponse:
        response = super().workers_view(request)
        response.context_data = {**(response.context_data or {}), **self.overview_link(request)}
        return response

    def overview_link(self, request: HttpRequest) -> dict[str, str]:
        """For the pages that lead here."""
        return {"slots_overview_url": address(self, "overview")} if self.has_overview_permission(request) else {}

    def _sees_lost(self, request: HttpRequest, change: LostChange) -> bool:
        is_theirs = change.user_key == key_of(request.user) or may(request, SEES_ALL)
        return change.site == self.admin_site.name and is_theirs

    def _links(self, request: HttpRequest) -> Links:
        return Links(
            workers=address(self, "workers"),
            queues=address(self, "changelist"),
            jobs=self._of_jobs(request, "changelist"),
            bulk_changes=dict(
                zip(MODELS, (address(self, "bulk_changes"), self._of_jobs(request, "bulk_changes")), strict=True)
            ),
        )

    def _of_jobs(self, request: HttpRequest, page: str) -> str:
        """The address of a page of jobs, "" for those who have none."""
        return address_of(self, request, TenantJob, page)


def periods_of(queue: str, periods: int, seconds: int) -> list[Period | None]:
    asked = (queue, periods, seconds)
    return shared_periods.get([asked], lambda _: {asked: minutes.last_periods(*asked)})[asked]


def changes_within(queue: str, span: Span) -> Changes:
    asked = (queue, span.periods, span.seconds)
    most = (MOST_CHANGES, overview_charts.MOST_NAMED)
    return shared_changes.get([asked], lambda _: {asked: last_changes(*asked, *most)})[asked]


def deploys_within(span: Span) -> list[Deploy]:
    seconds = span.periods * span.seconds
    return shared_deploys.get([seconds], lambda _: {seconds: last_deploys(seconds)})[seconds]


def facts_now() -> Facts:
    return shared_facts.get(["all"], lambda _: {"all": attention.facts()})["all"]


def _latest(queue: str) -> Period | None:
    """The last minute in which somebody looked, unless that is long ago."""
    looked = [period for period in periods_of(queue, 2, 60) if period and period.running is not None]
    return looked[-1] if looked else None


def tiles(latest: Period | None, total: Period, span: Span) -> list[tuple[Any, str]]:
    """Title and text: what was at the end of the last minute, and what the whole time has brought."""

    def of_latest(name: str) -> str:
        value = getattr(latest, name) if latest else None
        return NOTHING if value is None else str(localize(value))

    time = {"time": span.name}
    return [
        (gettext("Running / workers alive"), f"{of_latest('running')} / {of_latest('workers')}"),
        (gettext("Waiting: could run"), of_latest("runnable")),
        (gettext("Waiting: held back"), of_latest("held_back")),
        (gettext("Start delay p95, %(time)s") % time, duration(total.start_delay(95))),
        (gettext("Ended, %(time)s") % time, str(localize(total.ended))),
        (gettext("Failed, %(time)s") % time, str(localize(total.failed))),
    ]
