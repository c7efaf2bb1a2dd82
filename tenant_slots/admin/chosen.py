"""The set of objects that the page of an action has shown, as text that its form sends back.

The gaps between ascending primary keys, and how often each comes in a row: ``7 1x3 5`` is 7, 8, 9, 10 and 15. So
100,000 jobs fit into a form.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise

MOST = 200_000
"""Objects that one action may touch: a larger page would be more than Django takes back."""

HIGHEST = 2**63 - 1

LONGEST_NUMBER = 19
"""Digits of the largest primary key."""


def as_text(pks: Iterable[int]) -> str:
    gaps = (pk - before for before, pk in pairwise([0, *sorted(pks)]))
    counted = ((gap, len(list(same))) for gap, same in groupby(gaps))
    return " ".join(f"{gap}x{times}" if times > 1 else str(gap) for gap, times in counted)


def from_text(text: str) -> list[int]:
    """Raises ValueError for what `as_text` has not written."""
    pks: list[int] = []
    last = 0
    for part in text.split():
        gap, is_repeated, times = part.partition("x")
        repeated = _number(times) if is_repeated else 1
        if len(pks) + repeated > MOST:
            raise ValueError(f"more than {MOST} objects")
        step = _number(gap)
        pks += range(last + step, last + step * repeated + 1, step)
        last = pks[-1]
        if last > HIGHEST:
            raise ValueError(f"no primary key: {last}")
    return pks


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > LONGEST_NUMBER or int(text) < 1:
        raise ValueError(f"not a number above 0: {text[:LONGEST_NUMBER]!r}")
    return int(text)
