"""The charts of the overview, with deploys and the changes of limits as marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext, ngettext

from tenant_slots.admin import audit
from tenant_slots.admin.charts import SECONDS, Chart, Mark, Series
from tenant_slots.admin.queue_charts import Span, moments_of, ticks_of
from tenant_slots.models import KeptChange
from tenant_slots.stats.deploys import Deploy
from tenant_slots.stats.minutes import Period

LATEST_CHANGES = 500
"""That are looked at: the table has no index of their times, and a chart no room for more marks."""

MOST_NAMED = 3
"""Changes that one mark names."""


def changes_within(span: Span, queue: str, now: datetime) -> list[KeptChange]:
    """The latest ones of the tenant queues of a queue, or of all, the latest first. One query."""
    since = now - timedelta(seconds=span.periods * span.seconds)
    latest = KeptChange.objects.select_related("tenant_queue").order_by("-pk")[:LATEST_CHANGES]
    return [change for change in latest if change.at > since and queue in ("", change.tenant_queue.queue)]


def marks(changes: Iterable[KeptChange], deploys: Iterable[Deploy], span: Span, now: datetime) -> list[Mark]:
    """One for all deploys and changes between two points of the charts."""
    by_place: defaultdict[int, list[KeptChange]] = defaultdict(list)
    deployed: defaultdict[int, list[str]] = defaultdict(list)

    def place(at: datetime) -> int:
        return max(0, span.periods - int((now - at).total_seconds() // span.seconds))

    for change in changes:
        by_place[place(change.at)].append(change)
    for deploy in deploys:
        deployed[place(deploy.at)].append(gettext("Deploy of %(version)s") % {"version": deploy.version})
    places = sorted(by_place.keys() | deployed.keys())
    return [Mark(x, "\n".join([*deployed.get(x, ()), *_titles(by_place.get(x, ()))])) for x in places]


def _titles(changes: Sequence[KeptChange]) -> list[str]:
    lines = [audit.line_of(change) for change in changes[:MOST_NAMED]]
    texts = [
        f"{change.tenant_queue}: {line.what} {line.old} → {line.new} ({line.user})"
        for change, line in zip(changes, lines, strict=False)
    ]
    if more := len(changes) - len(texts):
        texts.append(ngettext("and %(count)d more", "and %(count)d more", more) % {"count": more})
    return texts


def charts_of(periods: Sequence[Period | None], span: Span, marked: Sequence[Mark]) -> list[Chart]:
    def line(name: Any, css: str, field: str) -> Series:
        return Series(name, css, [getattr(period, field) if period else None for period in periods])

    def delay(name: Any, css: str, percent: int) -> Series:
        return Series(name, css, [period.start_delay(percent) if period else None for period in periods])

    def chart(title: Any, series: list[Series], unit: str = "") -> Chart:
        return Chart(title, moments_of(span), series, unit=unit, marks=marked, ticks=ticks_of(span))

    return [
        chart(
            gettext("Running against workers"),
            [
                line(gettext("running jobs"), "slots-ran", "running"),
                line(gettext("workers alive"), "slots-limit", "workers"),
            ],
        ),
        chart(
            gettext("Waiting"),
            [
                line(gettext("could run: a slot is free"), "slots-waiting", "runnable"),
                line(gettext("held back: limit, pause, rest, rate or key"), "slots-held", "held_back"),
            ],
        ),
        chart(
            gettext("Start delay"),
            [
                delay(gettext("p50, seconds"), "slots-p50", 50),
                delay(gettext("p95, seconds"), "slots-p95", 95),
            ],
            unit=SECONDS,
        ),
        chart(
            gettext("Ended per minute, the busiest minute of each point"),
            [
                line(gettext("ended"), "slots-ran", "most_ended"),
                line(gettext("failed"), "slots-failed", "most_failed"),
            ],
        ),
    ]
