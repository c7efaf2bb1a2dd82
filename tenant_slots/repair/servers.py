"""What is wrong with the Redis servers of the project's queues that is not about a job or a tenant queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from redis.exceptions import ResponseError

from tenant_slots import queue_directory
from tenant_slots.conf import rq_queues

NO_EVICTION = "noeviction"

NEVER_THERE = ("rq:tenant_slots:never-there", "tenant_slots:never-there")

NO_WRITE = "for _, key in ipairs(KEYS) do redis.call('SET', key, '', 'XX', 'PX', 1) end"
"""A script, as the order of tenants is one. Whoever may not write may not do that either, which changes nothing: XX."""


def evicting() -> Iterator[tuple[str, str]]:
    """Servers that delete what they were given when their memory is full: one of their queues, and the policy.

    Not those that do not tell.
    """
    for name in queue_directory.by_server(list(rq_queues())):
        with suppress(*queue_directory.OUT_OF_REACH), queue_directory.reaching(name) as queue:
            memory = queue.connection.info("memory")
            policy = str(memory.get("maxmemory_policy", NO_EVICTION))
            if memory.get("maxmemory") and policy != NO_EVICTION:
                yield name, policy


def refusing_writes() -> Iterator[tuple[str, str]]:
    """Queues whose Redis answers and takes no writes, if only from their user, and what it says of that.

    It is asked to change two keys that are never there, one named as RQ does and one as we do: nothing is written.
    """
    for name in rq_queues():
        try:
            with queue_directory.reaching(name) as queue:
                queue.connection.eval(NO_WRITE, len(NEVER_THERE), *NEVER_THERE)
        except ResponseError as error:
            yield name, f"{type(error).__name__}: {error}"
        except queue_directory.OUT_OF_REACH:
            continue
