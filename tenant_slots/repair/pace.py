"""How many rows of many tenants are changed in one transaction, which has all of them locked until it ends.

A trigger of the project may take its time for each, or wait for a lock that is given to it a moment later. How long
that takes together nobody knows before, so that a sweep begins with few and learns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

SECONDS_TOGETHER = 0.3
"""For which they may be locked: about as long as one is waited for."""

FIRST = 16
"""How many are changed first."""


class Pace:
    """What a process that sweeps has learnt of it."""

    def __init__(self) -> None:
        self._rows = FIRST

    def fitting(self, most: int) -> int:
        """How many are to be changed next, in a block of `noting`: no more than `most`."""
        return min(self._rows, most)

    def parts(self, rows: Sequence[T], most: int) -> Iterator[Sequence[T]]:
        """Each of as many as are `fitting` by then."""
        first = 0
        while first < len(rows):
            part = rows[first : first + self.fitting(most)]
            yield part
            first += len(part)

    @contextmanager
    def noting(self, part: Sequence[object]) -> Iterator[None]:
        """Also where the time of the sweep is over in the midst of it: the next one begins with fewer."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._note(len(part), time.monotonic() - began)

    def _note(self, rows: int, seconds: float) -> None:
        if seconds > SECONDS_TOGETHER:
            self._rows = max(1, int(rows * SECONDS_TOGETHER / seconds))
        elif seconds < SECONDS_TOGETHER / 2:
            self._rows = max(self._rows, 2 * rows)
