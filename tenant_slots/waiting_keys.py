"""Reads of a backlog by concurrency key, for ``concurrency_keys.py``.

One index has a tenant's waiting jobs in their order, another one has those of each key together. What is read from the
second takes as long as there are keys, and not as there are jobs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import CharField, Count, F, IntegerField

from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import Parameter, Statement
from tenant_slots.models import TenantJob

PK = Parameter("pk", IntegerField())
RQ_QUEUE = Parameter("rq_queue", CharField())

_HELD = Statement(
    lambda: TenantJob.objects.filter(tenant_queue=PK).holding().exclude(key="").values_list("key").annotate(Count("pk"))
)


URGENCY = -1 - F("priority")
"""The smallest one goes first. The lowest priority that the column holds has no negative one there."""


class Head(NamedTuple):
    """A waiting job; the next one is the smallest."""

    urgency: int
    """`URGENCY`."""
    pk: int
    key: str


class Lane(NamedTuple):
    """Where jobs of a tenant wait for workers."""

    tenant_queue: int
    rq_queue: str
    """As their rows have it."""


def held(tenant_queue_id: int) -> dict[str, int]:
    """How many slots each concurrency key has of a tenant queue."""
    return dict(_HELD.lists(pk=tenant_queue_id))


def first(lane: Lane, number: int) -> list[Head]:
    """The head of the backlog, of about so many jobs: as many, up to twice as many, or all."""
    return _heads(_first(_power_of_two(number)), lane)


def first_without_key(lane: Lane, number: int) -> list[Head]:
    """As `first`, of the jobs that have no key."""
    return _heads(_first_without_key(_power_of_two(number)), lane)


def _heads(statement: Statement, lane: Lane) -> list[Head]:
    return [Head(*row) for row in statement.lists(pk=lane.tenant_queue, rq_queue=lane.rq_queue)]


def _power_of_two(number: int) -> int:
    """A LIMIT is part of the text of a statement, which is compiled once."""
    return 1 << (number - 1).bit_length()


@functools.lru_cache(maxsize=16)
def _first(number: int) -> Statement:
    backlog = TenantJob.objects.filter(tenant_queue=PK, rq_queue=RQ_QUEUE).backlog()
    return Statement(lambda: backlog.values_list(URGENCY, "pk", "key")[:number])


@functools.lru_cache(maxsize=16)
def _first_without_key(number: int) -> Statement:
    waiting = TenantJob.objects.waiting_by_key().filter(tenant_queue=PK, rq_queue=RQ_QUEUE, key="")
    return Statement(lambda: waiting.order_by("-priority", "pk").values_list(URGENCY, "pk", "key")[:number])


_WAITING = """{jobs} AS waiting
    WHERE tenant_queue_id = %(row)s AND rq_queue = %(rq_queue)s AND crashes >= 0 AND stage > 1 AND stage < 3"""
"""The jobs of `TenantJobQuerySet.waiting_by_key`: Django has no recursive queries, and no LATERAL."""

_KEYS = """
    WITH RECURSIVE keys (key) AS (
        SELECT (SELECT key FROM {waiting} AND key > '' ORDER BY key LIMIT 1)
        UNION ALL
        SELECT (SELECT key FROM {waiting} AND key > keys.key ORDER BY key LIMIT 1) FROM keys WHERE key IS NOT NULL
    ) SELECT key FROM keys WHERE key IS NOT NULL LIMIT %(limit)s
"""

_OF_KEY = "{waiting} AND waiting.key = keys.key ORDER BY priority DESC, id LIMIT %(each)s"

_OF_EACH_KEY = {
    "postgresql": """
        SELECT -1 - priority, id, key FROM unnest(%(keys)s::text[]) AS keys (key)
        CROSS JOIN LATERAL (SELECT id, priority FROM {of_key}) AS found ORDER BY priority DESC, id LIMIT %(limit)s
    """,
    "sqlite": """
        SELECT -1 - found.priority, found.id, keys.key FROM (SELECT value AS key FROM json_each(%(keys)s)) AS keys
        JOIN {jobs} AS found ON found.id IN (SELECT id FROM {of_key})
        ORDER BY found.priority DESC, found.id LIMIT %(limit)s
    """,
}

_WITHOUT = """
    SELECT -1 - priority, id, key FROM (
        SELECT priority, id, key FROM {jobs} WHERE tenant_queue_id = %(row)s AND rq_queue = %(rq_queue)s AND stage = 2
        ORDER BY priority DESC, id LIMIT %(jobs)s
    ) AS ahead WHERE NOT {is_one_of} ORDER BY priority DESC, id LIMIT %(limit)s
"""
"""Django's slices cannot be filtered. The condition is that of the index of the backlog."""

_IS_ONE_OF = {"postgresql": "key = ANY(%(keys)s)", "sqlite": "key IN (SELECT value FROM json_each(%(keys)s))"}


def keys(lane: Lane, number: int) -> list[str]:
    """The concurrency keys of which jobs wait, so many of them at most: from key to key in the index."""
    return [key for (key,) in _rows(_KEYS, lane, limit=number)]


def first_without(lane: Lane, keys: Sequence[str], jobs: int, number: int) -> list[Head]:
    """Those of the first `jobs` that have none of these keys, so many of them at most, in their order."""
    return [Head(*row) for row in _rows(_WITHOUT, lane, keys=_listed(keys), jobs=jobs, limit=number)]


def first_of_each(lane: Lane, keys: Sequence[str], each: int, number: int) -> list[Head]:
    """The first jobs of these keys, in their order.

    Args:
        each: most jobs of a key.
        number: most jobs altogether.
    """
    return [Head(*row) for row in _rows(_OF_EACH_KEY[_vendor()], lane, keys=_listed(keys), each=each, limit=number)]


def _listed(keys: Sequence[str]) -> object:
    """As one parameter."""
    return json.dumps(list(keys)) if _vendor() == "sqlite" else list(keys)


def _vendor() -> str:
    return connections[app_settings.DATABASE].vendor


def _rows(sql: str, lane: Lane, **values: Any) -> list[Any]:
    connection = connections[app_settings.DATABASE]
    names = {"jobs": connection.ops.quote_name(TenantJob._meta.db_table)}
    names["waiting"] = _WAITING.format(**names)
    names["of_key"] = _OF_KEY.format(**names)
    names["is_one_of"] = _IS_ONE_OF[_vendor()]
    with connection.cursor() as cursor:
        cursor.execute(sql.format(**names), {"row": lane.tenant_queue, "rq_queue": lane.rq_queue, **values})
        found: list[Any] = cursor.fetchall()
    return found
