"""The charts of a tenant queue: what ran and waited, and how long, over an hour, a day or a week."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import formats, timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin.charts import Chart, Series
from tenant_slots.models import TenantQueue
from tenant_slots.stats import percentiles, series


@dataclass(frozen=True)
class Span:
    """A time that the charts may show: so many points, so many seconds apart."""

    key: str
    name: Any
    periods: int
    seconds: int


SPANS = {
    span.key: span
    for span in (
        Span("1h", _("1 hour"), 60, 60),
        Span("24h", _("24 hours"), 96, 900),
        Span("7d", _("7 days"), 84, 7200),
    )
}


def charts_of(row: TenantQueue, span: Span) -> list[Chart]:
    """Four queries, however many jobs: what ran, what waited and waits, how long."""
    moments = moments_of(span)
    grid = (span.periods, span.seconds)
    delays = percentiles.start_delays_by_period(row, *grid)
    return [
        Chart(
            gettext("Running, waiting and limit"),
            moments,
            [
                Series(gettext("running"), "slots-ran", series.ran([row.pk], *grid)[row.pk].running),
                Series(gettext("waiting"), "slots-waiting", series.waiting(row, *grid)),
                Series(
                    gettext("limit"), "slots-limit", series.limits(row.max_job, row.limit_history, *grid), stepped=True
                ),
            ],
        ),
        Chart(
            gettext("Start delay"),
            moments,
            [
                Series(gettext("p50, seconds"), "slots-p50", delays[50]),
                Series(gettext("p95, seconds"), "slots-p95", delays[95]),
            ],
            unit="s",
        ),
    ]


def moments_of(span: Span) -> list[str]:
    now = timezone.localtime()
    style = "TIME_FORMAT" if span.periods * span.seconds <= 24 * 3600 else "SHORT_DATETIME_FORMAT"
    return [
        formats.date_format(now - timedelta(seconds=back * span.seconds), style) for back in range(span.periods, -1, -1)
    ]
