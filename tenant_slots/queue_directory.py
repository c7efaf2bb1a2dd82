"""The project's RQ queues as this process reaches them: by name, with a connection of ours; which share a database."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

import django_rq
from django.core.signals import setting_changed
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue

from tenant_slots import redis_servers, tenants
from tenant_slots.conf import rq_queues
from tenant_slots.exceptions import UnknownQueue, UnusableQueue
from tenant_slots.queue_names import queue_problem

OUT_OF_REACH = (RedisError, UnknownQueue, UnusableQueue)
"""What asking RQ of a queue raises when its server is away or has no usable address, or when the project has given the
queue up."""

UNREADABLE_URL = (
    "its URL cannot be read; write it as redis://user:password@host:6379/0, with / ? # @ [ ] of the password "
    "percent-encoded"
)
"""In place of the error, which may quote a part of the password."""

SECONDS_TO_LOOK = redis_servers.ANSWER_SECONDS + 0.5
"""For which servers that are away are waited for together: until the last has timed out. One that takes longer, as its
name is looked up or its Sentinels are silent too, counts as away.
"""

_queues: dict[str, Queue] = {}
_sources: dict[str, Queue] = {}
_beside: dict[str, list[str]] = {}


def queue_named(name: str) -> Queue:
    """The RQ queue, one object per process: it keeps its connection and what it learnt of the server.

    The connection is one of our own, which nobody waits for: see `redis_servers`.
    """
    if name not in _queues:
        queue = copy(_sources[name] if name in _sources else _configured(name))
        queue.connection = redis_servers.impatient(queue.connection)
        _queues[name] = queue
    return _queues[name]


def _configured(name: str) -> Queue:
    tenants.require_known(name)
    if problem := queue_problem(name):
        raise UnusableQueue(queue=name, problem=problem)
    try:
        queue = django_rq.get_queue(name)
        redis_servers.require_options(queue.connection)
    except Exception as error:  # whatever Django, RQ and redis-py make of a wrong value, or of one that is missing
        if redis_servers.is_readable(_url_of(name)):
            raise UnusableQueue(queue=name, problem=f"{type(error).__name__}: {error}") from error
        raise UnusableQueue(queue=name, problem=UNREADABLE_URL) from None  # it quotes what it takes for a port
    return queue


def _url_of(name: str) -> object:
    config = rq_queues()[name]
    return config.get("URL") if isinstance(config, Mapping) else None


def unusable() -> Iterator[UnusableQueue]:
    """What is wrong with the settings of the project's queues. Nothing is connected to."""
    for name in rq_queues():
        try:
            queue_named(name)
        except UnusableQueue as error:
            yield error


def use_queue(queue: Queue) -> None:
    """Push to this queue as the worker is told to reach it."""
    _sources[queue.name] = queue
    _queues.pop(queue.name, None)


def queues_beside(name: str) -> list[str]:
    """The project's queues in the same database of a server as this one, itself among them."""
    if name not in _beside:
        tenants.require_known(name)
        database = _database_of(name)
        names = dict.fromkeys([name, *rq_queues()])
        _beside[name] = [one for one in names if _database_of(one) == database]
    return _beside[name]


def by_server(queues: Sequence[str]) -> dict[str, list[str]]:
    """One queue of each server's database, and all of these queues in it; one that the project does not have is by
    itself.
    """
    databases: dict[Hashable, list[str]] = {}
    for name in queues:
        databases.setdefault(_database_of(name), []).append(name)
    return {names[0]: names for names in databases.values()}


def _database_of(name: str) -> Hashable:
    """One that cannot be used shares its database with no other; whoever asks it is told why."""
    try:
        return redis_servers.database_of(queue_named(name).connection)
    except (UnknownQueue, UnusableQueue):
        return name


def look_at_servers(queues: Iterable[str], seconds: float = SECONDS_TO_LOOK, *, ever_more_seldom: bool = False) -> None:
    """Before the servers of these queues are asked one after another: those that are away are waited for together.

    A server that is the only one is asked by whoever needs it.

    Args:
        seconds: for which they are waited for.
        ever_more_seldom: as `redis_servers.look_at` has it, for sweeps. Whoever enqueues in this process would miss for
            as long that one of them is back.
    """
    servers: dict[Hashable, Redis] = {}
    for name in queues:
        with suppress(UnknownQueue, UnusableQueue):
            connection = queue_named(name).connection
            servers[redis_servers.server_of(connection)] = connection
    if len(servers) > 1:
        redis_servers.look_at(servers.values(), seconds, ever_more_seldom=ever_more_seldom)


@contextmanager
def reaching(name: str) -> Iterator[Queue]:
    """The RQ queue, to ask its server something.

    Raises:
        RedisError: the server is away. For a while afterwards this fails at once.
        UnknownQueue: the project has no such queue.
        UnusableQueue: its settings lead to no server.
    """
    queue = queue_named(name)
    with redis_servers.asked(queue.connection):
        yield queue


def unasked() -> dict[str, Exception]:
    """Those of the project's queues whose list cannot be asked for, and why."""
    look_at_servers(rq_queues())
    found: dict[str, Exception] = {}
    for name in rq_queues():
        try:
            window_of(name)
        except OUT_OF_REACH as error:
            found[name] = error
    return found


def window_of(name: str) -> int:
    """How many jobs are in RQ's list of a queue, plain ones among them. Raises as `reaching`."""
    with reaching(name) as queue:
        return int(queue.count)


def _forget_queues(*, setting: str, **_: Any) -> None:
    if setting in ("RQ", "RQ_QUEUES"):
        _queues.clear()
        _sources.clear()
        _beside.clear()
        redis_servers.forget_absences()


setting_changed.connect(_forget_queues)
