"""What is read off the finished jobs: how many ran at once, and how long they waited."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tenant_slots.models import State, TenantJob


@dataclass(frozen=True)
class Figures:
    """Of the jobs of one shop, or of several."""

    jobs: int
    overlap: int
    """The most jobs that ran at one moment, from the times at which they started and ended."""
    p50: float
    """Seconds from enqueue to start that half of the jobs waited at most."""
    p95: float


def figures_of(jobs: Sequence[TenantJob]) -> Figures:
    runs = [(job.started_at, job.ended_at) for job in jobs if job.started_at and job.ended_at]
    waits = [(job.started_at - job.enqueued_at).total_seconds() for job in jobs if job.started_at]
    return Figures(len(jobs), highest_overlap(runs), percentile(waits, 50), percentile(waits, 95))


def waits_first_in_first_out(jobs: Iterable[TenantJob], workers: int) -> dict[TenantJob, float]:
    """Seconds that each of them would have waited on one queue for all tenants, as plain django-rq has it.

    Computed from when they were enqueued and how long they ran. That a worker needs time between two jobs is left out.
    """
    free_at = [0.0] * workers
    waits = {}
    for job in sorted(jobs, key=lambda job: (job.enqueued_at, job.pk)):
        if job.started_at and job.ended_at:
            enqueued_at = job.enqueued_at.timestamp()
            started_at = max(enqueued_at, heapq.heappop(free_at))
            heapq.heappush(free_at, started_at + (job.ended_at - job.started_at).total_seconds())
            waits[job] = started_at - enqueued_at
    return waits


def highest_overlap(runs: Iterable[tuple[datetime, datetime]]) -> int:
    """An end counts before a start at the same moment: that is a slot handed on."""
    events = sorted(event for start, end in runs for event in ((start, 1), (end, -1)))
    highest = running = 0
    for _, step in events:
        running += step
        highest = max(highest, running)
    return highest


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least `percent` of 100 values do not exceed; 0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def unfinished(jobs: Iterable[TenantJob]) -> list[TenantJob]:
    return [job for job in jobs if job.state != State.FINISHED]
