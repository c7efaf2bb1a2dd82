"""The rules by which a tenant's jobs go to slower RQ queues; `lanes` applies them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tenant_slots.exceptions import InvalidOption


@dataclass(frozen=True)
class Throttle:
    """One rule: a tenant's jobs over a threshold go to another queue.

    Args:
        threshold: jobs of one function and tenant within `per`; the next one is over it.
        per: the length of the sliding window, which ends now.
        queue: the RQ queue to go to. The job keeps to the slots of its own queue.

    Raises:
        InvalidOption: a value has the wrong type or is out of range.
    """

    threshold: int
    per: timedelta
    queue: str

    def __post_init__(self) -> None:
        for option, problem in self._problems().items():
            if problem:
                raise InvalidOption(option=option, value=getattr(self, option), task="Throttle", problem=problem)

    def _problems(self) -> dict[str, str]:
        whole = isinstance(self.threshold, int) and not isinstance(self.threshold, bool) and self.threshold >= 0
        longer = isinstance(self.per, timedelta) and self.per > timedelta(0)
        return {
            "threshold": "" if whole else "it must be a whole number, 0 or above",
            "per": "" if longer else "it must be a timedelta longer than nothing",
            "queue": "" if isinstance(self.queue, str) and self.queue else "it must be the name of a queue",
        }
