"""Tenant queues that somebody held when this process last looked: many of them must not keep it from all others.

One is waited for as long as statements of ours may take, many workers' one after the other. Where somebody holds
hundreds, as by one UPDATE in a transaction that stays open, to wait so long for each would be all that workers do.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import NamedTuple

LONGEST_LOOK = 0.2
"""Seconds for which one tenant's locked row may hold up the turns of others, while no other one is known to be held."""

SHORT_LOOK = 0.02
"""Seconds for which it may in any case. Workers that take turns with a row mostly are through by then."""

SHORTEST_LOOK = 0.001
"""The same for one that has been held time and again, where many are."""

SEVERAL = 4
"""Others that are held halve how long the next one is waited for."""

TIME_AND_AGAIN = 2
"""Looks in a row, a moment apart: then it is a transaction that stays open, and not ours by turns."""

FIRST_MOMENT = 0.2
"""Seconds after which a tenant queue comes back by itself that somebody holds for the first time."""

MOMENT = 1.0
"""Seconds after which it does later, and one whose trigger has met what would be about all."""

LONGEST_MOMENT = 10.0
"""Seconds after which it does where very many are: nobody says so when they are free again."""

TIMES_AS_LONG = 5
"""As it takes to look at all that are held, nobody looks at one: others have most of a worker's time."""

REMEMBERED = 30
"""Seconds for which one counts that was held once. It is looked at again before that, though not always by us."""

FORGOTTEN_AT_ONCE = 100
"""Of those that count no more. A look takes no longer however many there were."""


class Seen(NamedTuple):
    """A tenant queue was held."""

    at: float
    """When that was found last, by `time.monotonic`."""
    times: int
    """In a row."""


_seen: dict[int, Seen] = {}
"""By primary key; the one that was found last comes last. A thread that changes it beside another does no harm."""


def is_known(tenant_queue_id: int) -> bool:
    """Whether it was held the last time."""
    return tenant_queue_id in _seen


def seconds_to_wait(tenant_queue_id: int) -> float:
    """For this one: the more others are held, the sooner it is given up."""
    others = len(_seen) - is_known(tenant_queue_id)
    if others >= SEVERAL and _is_held_for_long(tenant_queue_id):
        return SHORTEST_LOOK
    return max(SHORT_LOOK, LONGEST_LOOK / (1 + others / SEVERAL))


def note(tenant_queue_id: int, seconds: float) -> float:
    """It is held, which it took so many seconds to see. Returns those until it comes back."""
    now = time.monotonic()
    before = _seen.pop(tenant_queue_id, Seen(now, 0))
    for pk in list(islice(_seen, FORGOTTEN_AT_ONCE)):
        if _seen.get(pk, before).at < now - REMEMBERED:
            _seen.pop(pk, None)
    comes_back = MOMENT if before.times else FIRST_MOMENT
    if _is_seen_for_long(before):
        comes_back = min(LONGEST_MOMENT, max(MOMENT, TIMES_AS_LONG * (1 + len(_seen)) * seconds))
    _seen[tenant_queue_id] = Seen(now, before.times + 1)
    return comes_back


def forget(tenant_queue_id: int) -> None:
    """It is not held any more."""
    _seen.pop(tenant_queue_id, None)


def _is_held_for_long(tenant_queue_id: int) -> bool:
    seen = _seen.get(tenant_queue_id)
    return seen is not None and _is_seen_for_long(seen)


def _is_seen_for_long(seen: Seen) -> bool:
    return seen.times >= TIME_AND_AGAIN
