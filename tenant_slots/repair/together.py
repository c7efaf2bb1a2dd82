"""Changing many rows in one transaction, one of which the database may refuse: by a trigger of the project, perhaps.

Or the trigger waits for what somebody holds, for longer than the transaction does.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import Error

from tenant_slots.db.transactions import is_locked_out, patience, waiting_at_most
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.repair import faults

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

FEW = 16
"""Of so many each is tried alone: where most are refused, to halve on would take twice as long."""

SECONDS_FOR_PART = 0.02
"""How long the parts of what has waited too long for somebody wait for him: longer than most commits take, and short
enough to find those of many tenants that have to.
"""


def jobs_together(
    pks: Sequence[int],
    what: str,
    change: Callable[[Sequence[int]], int],
    until: float = math.inf,
    known: set[int] | None = None,
) -> int:
    """As `in_halves`, of jobs by primary key. The sweep leaves out those that cannot be changed, and no others.

    Args:
        what: is done to them, for the log: one record, as each sweep meets them again.
        known: takes those that cannot be changed.
    """
    refused: list[tuple[int, Exception]] = []
    changed = in_halves(pks, change, lambda pk, error: refused.append((pk, error)), until, in_order=False)
    if known is not None:
        known.update(pk for pk, _ in refused)
    if refused:
        first, error = refused[0]
        text = "the sweep leaves out jobs that cannot be %s: %s, the first one with the primary key %s"
        logger.error(text, what, len(refused), first, exc_info=error)
    return changed


def in_halves(
    rows: Sequence[T],
    change: Callable[[Sequence[T]], int],
    refused: Callable[[T, Exception], object],
    until: float = math.inf,
    *,
    in_order: bool = True,
) -> int:
    """How many of the rows could be changed: all at once, else each half by itself, in the end each row.

    Args:
        change: one transaction. Returns how many rows it has changed.
        refused: told of each row that cannot be changed even alone.
        until: when to leave the rest, by `time.monotonic`. Something is tried in any case.
        in_order: the first half goes first. Else either does, so that those behind many that are refused have their
            turn in another sweep, where the time is over before all are tried.

    Raises:
        TenantQueueLocked: all of them would wait for it.
    """
    try:
        return change(rows)
    except TenantQueueLocked:
        raise
    except Exception as error:  # also what a receiver of the project's raises, whom Django tells of each row
        if faults.ends_the_step(error):
            raise
        if len(rows) == 1:
            refused(rows[0], error)
            return 0
        has_waited = isinstance(error, Error) and is_locked_out(error)
    parts = _parts(rows)
    if not in_order:
        random.shuffle(parts)
    changed = 0
    with waiting_at_most(min(patience.get(), SECONDS_FOR_PART if has_waited else math.inf)):
        for number, part in enumerate(parts):
            if number and time.monotonic() > until:
                break
            changed += in_halves(part, change, refused, until, in_order=in_order)
    return changed


def _parts(rows: Sequence[T]) -> list[Sequence[T]]:
    size = math.ceil(len(rows) / 2) if len(rows) > FEW else 1
    return [rows[first : first + size] for first in range(0, len(rows), size)]
