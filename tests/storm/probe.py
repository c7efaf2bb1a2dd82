"""I12: the job of a tenant that has nothing else to run starts soon, whatever others have waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults import jobs
from tests.faults.observer import Event

TENANT = "probe"

LATE = 20.0
"""Seconds: for workers that are killed every two seconds, stopped for five, and begin with an import of Django."""

MANY = 20
"""Starts of others. On a slow machine hardly any worker lives for long enough to start one in that time."""


class Probe:
    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        """When each job was enqueued, by name."""
        self._outages: list[tuple[float, float]] = []

    def enqueue(self, history: str) -> None:
        name, asked = f"{TENANT}{len(self.asked)}", time.time()
        jobs.quick.enqueue(TENANT, name, history, 0.02)
        self.asked[name] = asked

    @contextmanager
    def outage(self) -> Iterator[None]:
        """While it lasts nobody can start, and no wait that it is a part of counts."""
        began = time.time()
        try:
            yield
        finally:
            self._outages.append((began, time.time()))

    def breaches(self, events: list[Event]) -> Iterator[str]:
        """One that was killed holds the slot of those behind it: they wait from its last end on."""
        starts = [(event.name, event.nanoseconds / 1e9) for event in events if event.kind == "start"]
        ends = {event.name: event.nanoseconds / 1e9 for event in events if event.kind == "end"}
        first = dict(reversed(starts))
        had_its_turn = 0.0
        for name, enqueued in self.asked.items():
            asked = max(enqueued, had_its_turn)
            had_its_turn = max(had_its_turn, ends.get(name, 0.0))
            start = first.get(name, asked)
            passed = sum(asked < other < start for _, other in starts)
            if start - asked > LATE and passed > MANY and not self._was_away(asked, start):
                yield f"I12: {name} started after {start - asked:.1f} s and {passed} starts of others"

    def _was_away(self, asked: float, start: float) -> bool:
        return any(began < start and asked < ended for began, ended in self._outages)
