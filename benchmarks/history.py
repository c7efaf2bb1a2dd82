"""The outside observer: what truly ran, from the lines that jobs wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SECOND = 1_000_000_000


@dataclass
class Run:
    """One run of a job; times in nanoseconds."""

    tenant: str
    name: str
    pid: int
    start: int
    end: int | None = None


def read(path: Path) -> list[Run]:
    """The runs in the order of their starts."""
    runs: list[Run] = []
    latest: dict[tuple[str, str], Run] = {}
    for time, pid, kind, tenant, name in _lines(path):
        if kind == "start":
            run = latest[pid, name] = Run(tenant, name, int(pid), int(time))
            runs.append(run)
        else:
            latest[pid, name].end = int(time)
    return sorted(runs, key=lambda run: run.start)


def _lines(path: Path) -> Iterable[list[str]]:
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [line.split() for line in whole.splitlines()]


def highest_overlap(runs: Iterable[Run]) -> dict[str, int]:
    """Per tenant, the most jobs that ran at one moment. A run without an end counts as still running."""
    changes: list[tuple[int, int, str]] = []
    for run in runs:
        changes.append((run.start, 1, run.tenant))
        if run.end is not None:
            changes.append((run.end, -1, run.tenant))
    running: Counter[str] = Counter()
    highest: Counter[str] = Counter()
    for _, change, tenant in sorted(changes):
        running[tenant] += change
        highest[tenant] = max(highest[tenant], running[tenant])
    return dict(highest)


def ends(runs: Iterable[Run]) -> list[int]:
    """The times of the ends, in their order."""
    return sorted(run.end for run in runs if run.end is not None)


def gaps(runs: list[Run]) -> list[float]:
    """Seconds from the end of each run to the start of the next, for runs that follow each other."""
    return [(after.start - before.end) / SECOND for before, after in pairwise(runs) if before.end is not None]
