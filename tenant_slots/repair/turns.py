"""Tenants share the time that a step of the sweep has: what one of them has very much of holds up no other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

SECONDS_OF_ONE = 0.2
"""A tenant's share of a turn: where callables are slow, or the database refuses each of very many jobs, the others have
theirs too."""


def in_turns(tenants: Iterable[int], until: float, turn: Callable[[int], object]) -> None:
    """Tenants take turns until the time is over. The next sweep goes on; nobody is first in all of them.

    Args:
        tenants: primary keys of tenant queues.
        until: when to leave the rest, by `time.monotonic`.
        turn: false where the tenant needs no other one in this sweep.
    """
    left = list(tenants)
    random.shuffle(left)
    while left:
        left = [pk for pk in left if time.monotonic() < until and turn(pk)]


def share_of(until: float) -> float:
    """When a turn that begins now is over."""
    return min(until, time.monotonic() + SECONDS_OF_ONE)
