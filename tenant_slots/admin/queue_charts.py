"""The charts of a tenant queue: what ran and waited, and how long, over an hour, a day or a week."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django.utils import formats, timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin.charts import SECONDS, Chart, Series
from tenant_slots.models import TenantQueue
from tenant_slots.stats import levels, percentiles
from tenant_slots.stats.levels import Levels


@dataclass(frozen=True)
class Span:
    """A time that the charts may show: so many points, so many seconds apart."""

    key: str
    name: Any
    periods: int
    seconds: int

    @property
    def is_one_day(self) -> bool:
        return self.periods * self.seconds <= 24 * 3600


SPANS = {
    span.key: span
    for span in (
        Span("1h", _("1 hour"), 60, 60),
        Span("24h", _("24 hours"), 96, 900),
        Span("7d", _("7 days"), 84, 7200),
    )
}


class Lately(NamedTuple):
    """What has become of the jobs of a tenant queue, by period."""

    levels: Levels
    start_delays: Mapping[int, list[float | None]]


def read(row: TenantQueue, span: Span) -> Lately:
    """Two queries, which read every job of that time."""
    grid = (span.periods, span.seconds)
    return Lately(levels.most_by_period(row, *grid), percentiles.start_delays_by_period(row, *grid))


def charts_of(row: TenantQueue, span: Span, lately: Lately) -> list[Chart]:
    """What ran, waited and ended, against the limit; and how long they waited."""
    moments, ticks = moments_of(span), ticks_of(span)
    found, delays = lately
    limits = levels.highest_limits(row, span.periods, span.seconds)
    return [
        Chart(
            gettext("Running, waiting and limit"),
            moments,
            [
                Series(gettext("running"), "slots-ran", found.running),
                Series(gettext("waiting"), "slots-waiting", found.waiting),
                Series(gettext("limit"), "slots-limit", limits, stepped=True),
            ],
            ticks=ticks,
        ),
        Chart(
            gettext("Start delay"),
            moments,
            [
                Series(gettext("p50, seconds"), "slots-p50", delays[50]),
                Series(gettext("p95, seconds"), "slots-p95", delays[95]),
            ],
            unit=SECONDS,
            ticks=ticks,
        ),
        Chart(
            gettext("Ended per minute, the busiest minute of each point"),
            moments,
            [
                Series(gettext("ended"), "slots-ran", found.ended),
                Series(gettext("failed"), "slots-failed", found.failed),
            ],
            ticks=ticks,
        ),
    ]


def moments_of(span: Span) -> list[str]:
    return _moments(span, "TIME_FORMAT" if span.is_one_day else "SHORT_DATETIME_FORMAT")


def ticks_of(span: Span) -> list[str]:
    """Short enough for the axis of a small screen."""
    return _moments(span, "H:i" if span.is_one_day else "D j")


def _moments(span: Span, style: str) -> list[str]:
    now = timezone.now()  # in UTC: from a local time Python subtracts hours of the clock on the wall
    moments = (now - timedelta(seconds=back * span.seconds) for back in range(span.periods, -1, -1))
    return [formats.date_format(timezone.localtime(moment), style) for moment in moments]
