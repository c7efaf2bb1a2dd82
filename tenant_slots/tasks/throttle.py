"""The rules by which a tenant's jobs go to overflow queues; ``enqueueing/overflow.py`` applies them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tenant_slots.exceptions import InvalidOption
from tenant_slots.validation import is_whole, name_text

HIGHEST_THRESHOLD = 1_000_000
"""Redis keeps as many enqueues of a tenant, in about 75 bytes each."""

LONGEST_WINDOW = timedelta(days=366)


@dataclass(frozen=True)
class Throttle:
    """One rule: a tenant's jobs over a threshold go to an overflow queue.

    Args:
        threshold: jobs of one function and tenant within `per`; the next one is over it.
        per: the length of the sliding window, which ends now.
        queue: the overflow queue, one of RQ_QUEUES. The job keeps to the slots of its own queue.

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
        object.__setattr__(self, "queue", name_text(self.queue))

    def _problems(self) -> dict[str, str]:
        is_threshold = is_whole(self.threshold, 0, HIGHEST_THRESHOLD)
        is_window = isinstance(self.per, timedelta) and timedelta(0) < self.per <= LONGEST_WINDOW
        return {
            "threshold": "" if is_threshold else f"it must be a whole number from 0 to {HIGHEST_THRESHOLD}",
            "per": "" if is_window else f"it must be a timedelta longer than nothing, at most {LONGEST_WINDOW}",
            "queue": "" if isinstance(self.queue, str) and self.queue else "it must be the name of a queue",
        }
