"""Where a process goes on the next time, in a list whose first rows may stay for ever."""

from __future__ import annotations

import time
from typing import Any

SECONDS_KEPT = 3600
"""Then it begins from the start again: what was in the way may have gone."""


class Bookmark:
    """A place in an order, that of the last row that was dealt with."""

    def __init__(self) -> None:
        self._place: Any = None
        self._set_first = 0.0

    @property
    def place(self) -> Any:
        """None for the start."""
        if time.monotonic() - self._set_first >= SECONDS_KEPT:
            self._place = None
        return self._place

    def move(self, place: Any) -> None:
        if self._place is None:
            self._set_first = time.monotonic()
        self._place = place
