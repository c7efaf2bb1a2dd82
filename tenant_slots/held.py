"""Tenant queues that somebody held when this process last looked: many of them must not keep it from all others.

One is waited for as long as a statement of ours may take. Where somebody holds hundreds, as by one UPDATE in a
transaction that stays open, to wait so long for each would be all that workers do.
"""

from __future__ import annotations

import time
from itertools import islice

LONGEST_LOOK = 0.2
"""Seconds for which one tenant's locked row may hold up the turns of others, while no other one is known to be held."""

SHORT_LOOK = 0.01
"""Seconds for which it may in any case: until a statement of ours that is under way is through."""

SHORTEST_LOOK = 0.001
"""The same for one that was held the last time, where many are."""

MANY = 5
"""Where fewer are held it may be no foreign transaction that holds one, but many workers that take turns with it."""

MOMENT = 1.0
"""Seconds after which a tenant queue that somebody held comes back by itself."""

LONGEST_MOMENT = 10.0
"""Seconds after which it does where very many are: nobody says so when they are free again."""

TIMES_AS_LONG = 5
"""As it takes to look at all that are held, nobody looks at one: others have most of a worker's time."""

REMEMBERED = 30
"""Seconds for which one counts that was held once. It is looked at again before that, though not always by us."""

FORGOTTEN_AT_ONCE = 100
"""Of those that count no more. A look takes no longer however many there were."""

_seen: dict[int, float] = {}
"""By primary key, when it was found held, by `time.monotonic`; the one that was found last comes last. A thread that
changes it beside another does no harm."""


def seconds_to_wait(tenant_queue_id: int) -> float:
    """For this one: the more are held, the sooner it is given up. The first hundred cost two seconds together."""
    others = len(_seen) - is_known(tenant_queue_id)
    if is_known(tenant_queue_id) and others >= MANY:
        return SHORTEST_LOOK
    return max(SHORT_LOOK, LONGEST_LOOK / (1 + others))


def is_known(tenant_queue_id: int) -> bool:
    """Whether it was held the last time."""
    return tenant_queue_id in _seen


def note(tenant_queue_id: int, seconds: float) -> float:
    """It is held, which it took so many seconds to see. Returns those until it comes back."""
    now = time.monotonic()
    _seen.pop(tenant_queue_id, None)
    _seen[tenant_queue_id] = now
    for pk in list(islice(_seen, FORGOTTEN_AT_ONCE)):
        if _seen.get(pk, now) < now - REMEMBERED:
            _seen.pop(pk, None)
    return min(LONGEST_MOMENT, max(MOMENT, TIMES_AS_LONG * len(_seen) * seconds))


def forget(tenant_queue_id: int) -> None:
    """It is not held any more."""
    _seen.pop(tenant_queue_id, None)
