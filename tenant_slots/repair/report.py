"""What a sweep did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field


@dataclass
class Report:
    """What one sweep did. `overrides_ended`, `resumed` and `repaired` count tenant queues, the others jobs."""

    overrides_ended: int = 0
    resumed: int = 0
    reclaimed: int = 0
    repushed: int = 0
    promoted: int = 0
    canceled: int = 0
    admitted: int = 0
    repaired: int = 0
    pruned: int = 0
    left: list[str] = field(default_factory=list)
    """Stale owner processes on this host that could not be killed, one sentence each."""
    failed: list[str] = field(default_factory=list)
    """Steps that raised an error, and which one; the others were done."""

    def __bool__(self) -> bool:
        return any(asdict(self).values())

    @classmethod
    def sum_of(cls, reports: Iterable[Report]) -> Report:
        total = cls()
        for report in reports:
            for name, value in vars(report).items():
                setattr(total, name, getattr(total, name) + value)
        return total
