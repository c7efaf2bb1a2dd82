"""The charts of the overview, with deploys and the changes of limits as marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext, ngettext

from tenant_slots.admin import audit
from tenant_slots.admin.charts import SECONDS, Chart, Mark, Series
from tenant_slots.admin.queue_charts import Span, moments_of, ticks_of
from tenant_slots.models import KeptChange
from tenant_slots.stats.changes import Together
from tenant_slots.stats.deploys import Deploy
from tenant_slots.stats.minutes import Period

MOST_NAMED = 3
"""Changes that one mark names."""


def marks(changes: Mapping[int, Together], deploys: Iterable[Deploy], span: Span, now: datetime) -> list[Mark]:
    """One for all deploys and changes between two points of the charts."""
    titles: defaultdict[int, list[str]] = defaultdict(list)
    for deploy in deploys:
        back = int((now - deploy.at).total_seconds() // span.seconds)
        titles[_place(back, span)].append(gettext("Deploy of %(version)s") % {"version": deploy.version})
    for back, together in changes.items():
        titles[_place(back, span)] += _titles(together)
    return [Mark(x, "\n".join(titles[x])) for x in sorted(titles)]


def _place(back: int, span: Span) -> int:
    """Where the points have what was so many periods ago."""
    return max(0, span.periods - back)


def _titles(together: Together) -> list[str]:
    texts = [_title(change) for change in together.named]
    if more := together.number - len(texts):
        texts.append(ngettext("and %(count)d more", "and %(count)d more", more) % {"count": more})
    return texts


def _title(change: KeptChange) -> str:
    line = audit.line_of(change)
    return f"{change.tenant_queue}: {line.what} {line.old} → {line.new} ({line.user})"


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
