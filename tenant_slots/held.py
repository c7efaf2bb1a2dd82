"""Tenant queues that somebody held when this process last looked: many of them must not keep it from all others.

One is waited for as long as statements of ours may take, many workers' one after the other. Where somebody holds
hundreds, as by one UPDATE in a transaction that stays open, to wait so long for each would be all that workers do.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

LONGEST_LOOK = 0.2
"""Seconds for which one tenant's locked row may hold up the turns of others, while no other one is known to be held."""

SHORT_LOOK = 0.02
"""Seconds for which it may in any case. Workers that take turns with a row mostly are through by then."""

SHORTEST_LOOK = 0.001
"""The same for one that has been held time and again, where many are."""

SEVERAL = 4
"""So many others that are held halve how long the next one is waited for."""

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


class Seen(NamedTuple):
    """A tenant queue was held."""

    at: float
    """When that was found last, by `time.monotonic`."""
    times: int
    """In a row."""


NEVER = Seen(0.0, 0)

_seen: OrderedDict[int, Seen] = OrderedDict()
"""By primary key; the one that was found last comes last. A thread that changes it beside another does no harm."""


def is_known(tenant_queue_id: int) -> bool:
    """Whether it was held the last time."""
    return tenant_queue_id in _seen


def seconds_to_wait(tenant_queue_id: int) -> float:
    """For this one: the more others are held, the sooner it is given up."""
    _forget_old()
    seen = _seen.get(tenant_queue_id, NEVER)
    others = len(_seen) - (seen is not NEVER)
    if others >= SEVERAL and seen.times >= TIME_AND_AGAIN:
        return SHORTEST_LOOK
    return max(SHORT_LOOK, LONGEST_LOOK / (1 + others / SEVERAL))


def note(tenant_queue_id: int, seconds: float) -> float:
    """It is held, which it took so many seconds to see. Returns those until it comes back."""
    now = _forget_old()
    times = _seen.pop(tenant_queue_id, NEVER).times
    _seen[tenant_queue_id] = Seen(now, times + 1)
    if times >= TIME_AND_AGAIN:
        return min(LONGEST_MOMENT, max(MOMENT, TIMES_AS_LONG * len(_seen) * seconds))
    return MOMENT if times else FIRST_MOMENT


def forget(tenant_queue_id: int) -> None:
    """It is not held any more."""
    _seen.pop(tenant_queue_id, None)


def _forget_old() -> float:
    """Those that count no more, which come first. Returns the time."""
    now = time.monotonic()
    with suppress(RuntimeError):  # another thread has just noted or forgotten one: the next look forgets the old ones
        while (oldest := next(iter(_seen), None)) is not None and _seen.get(oldest, NEVER).at < now - REMEMBERED:
            _seen.pop(oldest, None)
    return now
