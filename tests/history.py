"""The outside observer: replays the start and end lines that jobs wrote."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Event:
    nanoseconds: int
    pid: int
    kind: str
    tenant: str
    name: str


class History:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def events(self) -> list[Event]:
        if not Path(self.path).exists():
            return []
        lines = Path(self.path).read_text().splitlines()
        events = [Event(int(ns), int(pid), *rest) for ns, pid, *rest in map(str.split, lines)]
        return sorted(events, key=lambda event: event.nanoseconds)

    def started(self, tenant: str | None = None) -> list[str]:
        """Names in the order of their starts."""
        return [e.name for e in self.events() if e.kind == "start" and tenant in (None, e.tenant)]

    def highest_overlap(self) -> dict[str, int]:
        """Per tenant, the most jobs that truly ran at one moment."""
        running: Counter[str] = Counter()
        highest: dict[str, int] = defaultdict(int)
        for event in self.events():
            running[event.tenant] += 1 if event.kind == "start" else -1
            highest[event.tenant] = max(highest[event.tenant], running[event.tenant])
        return dict(highest)
