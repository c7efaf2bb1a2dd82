"""How long the jobs of each function ran, by the latest ones that have ended: percentiles by nearest rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import DurationField, ExpressionWrapper, Q

from tenant_slots.db.clock import InCalendar
from tenant_slots.models import State
from tenant_slots.stats.expressions import in_seconds
from tenant_slots.stats.latest import latest
from tenant_slots.stats.percentiles import nearest_rank, ranked

SAMPLE = 10_000
"""Jobs, of all functions together."""


@dataclass(frozen=True)
class RunTime:
    """Of the last attempt of each job, in seconds."""

    task: str
    jobs: int
    p50: float
    p95: float


def run_times(jobs: Any) -> tuple[list[RunTime], bool]:
    """By function, the longest p95 first; and whether there are more jobs than were looked at. Two queries."""
    ran = jobs.ended().jobs().filter(state__in=(State.FINISHED, State.FAILED), started_at__isnull=False)
    sample, are_more = latest(ran, SAMPLE)
    time = ExpressionWrapper(InCalendar("ended_at") - InCalendar("started_at"), output_field=DurationField())
    with_ranks = ranked(sample.order_by(), by="task", value=time)
    chosen = with_ranks.filter(Q(rank=nearest_rank(50)) | Q(rank=nearest_rank(95)))
    found: dict[str, list[tuple[int, float]]] = {}
    for task, count, _rank, value in chosen.order_by("task", "rank").values_list("task", "count", "rank", "value"):
        found.setdefault(task, []).append((count, in_seconds(value) or 0.0))
    # Of one job both are the same row.
    times = [RunTime(task, rows[0][0], rows[0][1], rows[-1][1]) for task, rows in found.items()]
    return sorted(times, key=lambda one: (-one.p95, one.task)), are_more
