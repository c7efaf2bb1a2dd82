"""The steps share the time of a sweep, and tenants that of a step: what there is very much of holds up nothing else."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tenant_slots.conf import AppSettings, app_settings

T = TypeVar("T")

SECONDS_OF_ONE = 0.2
"""A tenant's share of a turn: where callables are slow, or the database refuses each of very many jobs, the others have
theirs too."""

DEFAULT_LEASE: float = vars(AppSettings)["LEASE_TTL"].default
"""In seconds: what a step may take is said for it."""


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


def fitting_lease(seconds: float) -> float:
    """So many of the seconds that a sweep may last: where leases are shorter than by default it is over sooner."""
    return seconds * min(1.0, app_settings.LEASE_TTL / DEFAULT_LEASE)


def for_seconds(seconds: float, rows: Sequence[T]) -> Iterator[T]:
    """Those of them that there is time for, one in any case. None of them is always behind all others."""
    until = time.monotonic() + fitting_lease(seconds)
    for row in random.sample(rows, len(rows)):
        yield row
        if time.monotonic() > until:
            return


def share_of(until: float) -> float:
    """When a turn that begins now is over."""
    return min(until, time.monotonic() + SECONDS_OF_ONE)
