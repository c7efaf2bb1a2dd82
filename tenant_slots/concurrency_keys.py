"""Who is next where no concurrency key, such as one user of the tenant, may take all its slots.

A job whose key is at its cap is passed over and keeps its position; the first one of another key goes. Nothing is
stored about it, so a cap that is raised, or a job that ends, is seen by the next look.

Who is next stands near the head of the backlog as a rule. Behind many jobs that are passed over it is looked for by
key: one user's 50,000 waiting jobs do not make each start of another user's job slow. Where there are many keys, those
are only asked for that a part of the backlog without the full ones has not answered; where there are too many, the
backlog is walked along, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable
from contextlib import closing

from django.db.models import Count

from tenant_slots import waiting_keys
from tenant_slots.models import TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.waiting_keys import Head, Lane

Heads = Generator[Head, None, None]

NEAR = 256
"""Waiting jobs that are read before anybody is looked for by key. It takes about as long as to look for 50 keys."""

FEW_KEYS = 500
"""Keys that are looked for one by one without further ado. It takes a few milliseconds."""

FAR = 100_000
"""Waiting jobs of which the database reads those without a full key, where there are more. A dozen milliseconds."""

MOST_KEYS = 10_000
"""Keys that are looked for one by one after that: a tenth of a second, which a walk along a million jobs takes too."""


def heads(tenant_queue: TenantQueue, slots: int, rq_queue: str, reservations: Collection[TenantJob] = ()) -> list[int]:
    """Primary keys of the next `slots` waiting jobs that their key's cap lets go, in their order.

    Args:
        tenant_queue, slots: as told.
        rq_queue: as their rows have it.
        reservations: others that wait, which come in their order too and are not counted. A job whose key they bring to
            its cap is passed over.
    """
    held = Counter(waiting_keys.held(tenant_queue.pk))
    found = _heads(tenant_queue, Lane(tenant_queue.pk, rq_queue), slots + len(reservations), held)
    if reservations:
        found = _in_order_below_cap(tenant_queue, [*found, *_as_heads(reservations)], held)
    return [head.pk for head in found]


def reservations_and_next_job(tenant_queue: TenantQueue, reservations: Collection[TenantJob]) -> list[int]:
    """Primary keys of those of a tenant queue's reservations that their key's cap lets go, and of the next job in its
    own RQ queue, in their order.
    """
    held = Counter(waiting_keys.held(tenant_queue.pk))
    beside = _as_heads(reservations)
    found = _heads(tenant_queue, Lane(tenant_queue.pk, ""), 1 + len(beside), held)
    job = [head for head in found if head not in beside][:1]
    return [head.pk for head in _in_order_below_cap(tenant_queue, [*job, *beside], held)]


def _as_heads(jobs: Collection[TenantJob]) -> list[Head]:
    return [Head(-1 - job.priority, job.pk, job.key) for job in jobs]


def _in_order_below_cap(tenant_queue: TenantQueue, jobs: list[Head], held: Counter[str]) -> list[Head]:
    return _below_cap(tenant_queue, sorted(jobs), len(jobs), held)


def is_passed_over(job: TenantJob) -> bool:
    """Whether the job's key is at its cap, as of now."""
    held = Counter({job.key: slots_of_key(job)})
    return not _is_below_cap(job.tenant_queue, job.key, held)


def not_passed_over(jobs: TenantJobQuerySet, tenant_queue: TenantQueue, by: str) -> int:
    """How many of these waiting jobs a later one with this key does not pass, if slots were free for all.

    None of its own key, and of others as many as could have a slot now.
    """
    held = waiting_keys.held(tenant_queue.pk)
    by_key = jobs.order_by().values_list("key").annotate(Count("pk"))
    return sum(
        number if key == by else min(number, _room(tenant_queue, key, held.get(key, 0), number))
        for key, number in by_key
    )


def _room(tenant_queue: TenantQueue, key: str, held: int, most: int) -> int:
    """Below the key's cap; `most` where it has none."""
    if not key or tenant_queue.max_job_per_key is None:
        return most
    return max(0, tenant_queue.max_job_per_key - held)


def slots_of_key(job: TenantJob) -> int:
    """How many slots the job's key has, as of now; 0 where that is no matter."""
    row = job.tenant_queue
    if not job.key or row.max_job_per_key is None:
        return 0
    return row.jobs.holding().filter(key=job.key).count()


def _heads(tenant_queue: TenantQueue, lane: Lane, slots: int, held: Counter[str]) -> list[Head]:
    number = max(NEAR, 2 * slots)
    near = waiting_keys.first(lane, number)
    found = _below_cap(tenant_queue, near, slots, held)
    if len(found) == slots or len(near) < number:
        return found
    with closing(_far(tenant_queue, lane, slots, number, held)) as far:
        return _below_cap(tenant_queue, far, slots, held)


def _far(tenant_queue: TenantQueue, lane: Lane, slots: int, number: int, held: Counter[str]) -> Heads:
    """All that `_below_cap` could take, in order, found in the way that is the shortest for so many keys."""
    keys = waiting_keys.keys(lane, FEW_KEYS + 1)
    if len(keys) > FEW_KEYS:
        ahead = waiting_keys.first_without(lane, _full(tenant_queue, held), FAR, number)
        if len(_below_cap(tenant_queue, ahead, slots, held)) == slots:
            yield from ahead
            return
        keys = waiting_keys.keys(lane, MOST_KEYS + 1)
    if len(keys) > MOST_KEYS:
        yield from _walk(tenant_queue, lane, number, held)
    else:
        yield from _by_key(tenant_queue, lane, keys, slots, held)


def _by_key(tenant_queue: TenantQueue, lane: Lane, keys: list[str], slots: int, held: Counter[str]) -> Heads:
    """All that `_below_cap` could take, in order."""
    below = [key for key in keys if _is_below_cap(tenant_queue, key, held)]
    each = min(slots, tenant_queue.max_job_per_key or slots)
    number = slots + sum(held[key] for key in below)  # of each key as many as it holds may turn out to be too many
    with_key = waiting_keys.first_of_each(lane, below, each, number)
    yield from sorted([*with_key, *waiting_keys.first_without_key(lane, slots)])


def _walk(tenant_queue: TenantQueue, lane: Lane, number: int, held: Counter[str]) -> Heads:
    """The whole backlog without the keys that are at their cap already, fetched so many at a time."""
    full = _full(tenant_queue, held)
    backlog = tenant_queue.jobs.backlog().filter(rq_queue=lane.rq_queue).exclude(key__in=full)
    rows = backlog.values_list(waiting_keys.URGENCY, "pk", "key").iterator(number)
    yield from (Head(*row) for row in rows)


def _below_cap(tenant_queue: TenantQueue, backlog: Iterable[Head], slots: int, held: Counter[str]) -> list[Head]:
    """Go along a backlog and take every job whose key is below its cap by then."""
    held = held.copy()
    taken: list[Head] = []
    for head in backlog:
        if len(taken) == slots:
            break
        if _is_below_cap(tenant_queue, head.key, held):
            taken.append(head)
            held[head.key] += 1
    return taken


def _full(tenant_queue: TenantQueue, held: Counter[str]) -> list[str]:
    """The keys that are at their cap already."""
    return [key for key in held if not _is_below_cap(tenant_queue, key, held)]


def _is_below_cap(tenant_queue: TenantQueue, key: str, held: Counter[str]) -> bool:
    return not key or tenant_queue.max_job_per_key is None or held[key] < tenant_queue.max_job_per_key
