"""Redis servers: connections that nobody waits for, which server a connection leads to, and which servers are away.

A push happens in a web request, a sweep between two heartbeats. Neither can wait as long as the project's own
connection may: redis-py 8 tries ten times with five seconds each, and a worker's connection waits for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from copy import copy
from functools import partial
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, UnixDomainSocketConnection, parse_url
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError, TimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

T = TypeVar("T")

CONNECT_SECONDS = 1
"""A server on the same continent answers within a tenth of that."""

ANSWER_SECONDS = 2
"""Our commands take milliseconds; a server may be busy with somebody else's long one before. Nobody is busy at a
Sentinel, so that all of a service's have this time together, before that of the server itself.
"""

AWAY_SECONDS = 5
"""For which a server that was away is not asked again by this process. What was not pushed is the sweep's."""

MOST_SECONDS_AWAY = 30
"""For which a sweep leaves out a server that has been away for long, while others answer. It costs 2 s to ask it."""

OF_ONE_POOL = {
    "connection_pool",
    "himport_registry",
    "maint_notifications_pool_handler",
    "orig_host_address",
    "orig_socket_connect_timeout",
    "orig_socket_timeout",
    "retry_on_error",
    "retry_on_timeout",
}
"""Options that a pool of redis-py 8 has added to those that it was given, and those that our own replace."""

NO_MASTER = "no Sentinel that answers knows the master of its service"
"""In place of the error, which with redis-py 6 and 7 quotes the passwords of the Sentinels that are away."""


BY_DEFAULT = {"host": "localhost", "port": 6379, "path": "", "db": 0}
"""What redis-py takes for what an address does not say: two that lead to one database need not be written alike."""


class Absence(NamedTuple):
    """A server is away."""

    until: float
    """When it is asked again, by `time.monotonic`, which is the same for all processes of a host."""
    problem: str
    """What was wrong when it was asked."""
    pause: float = AWAY_SECONDS
    """Seconds for which a sweep has last left it out."""


_away: dict[Hashable, Absence] = {}
"""By server."""


NO_ADDRESS = (ValueError, TypeError, AttributeError, OverflowError)
"""What the socket module makes of a value that redis-py hands to it unseen; UnicodeError is a ValueError."""


ALL_IN_USE = "Too many connections"
"""What a pool says that may make no more of them (redis-py 5.1 to 8.1)."""

SECONDS_BETWEEN_LOOKS = 0.001
"""Others give theirs back when a command is answered."""


class OwnPool(ConnectionPool):
    """One whose server counts as away where a wrong setting shows only when it is connected to."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        try:
            return _as_soon_as_one_is_free(partial(super().get_connection, *args, **options))
        except NO_ADDRESS as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error


class OwnSentinelPool(SentinelConnectionPool):
    def get_connection(self, *args: Any, **options: Any) -> Any:
        return _as_soon_as_one_is_free(partial(super().get_connection, *args, **options))


def _as_soon_as_one_is_free(get: Callable[[], T]) -> T:
    """A connection of a pool that may have no more than threads ask for, by ``max_connections`` of the project or of
    redis-py, is waited for: no server is away then.
    """
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return get()
        except ConnectionError as error:
            if str(error) != ALL_IN_USE or time.monotonic() > until:
                raise
        time.sleep(SECONDS_BETWEEN_LOOKS)


class OnceMore(Retry):
    """One try more, for a connection that the server has closed since it was last used; none after a timeout.

    Nor for a master that no Sentinel knows: redis-py takes that for a connection that was closed, and would ask all of
    them again, each of which may have kept it waiting.
    """

    def __init__(self) -> None:
        super().__init__(NoBackoff(), 1, (ConnectionError,))

    def call_with_retry(self, do: Callable[[], T], *args: Any, **options: Any) -> T:
        def do_or_tell() -> T | MasterNotFoundError:
            try:
                return do()
            except MasterNotFoundError as error:
                return error

        result = super().call_with_retry(do_or_tell, *args, **options)
        if isinstance(result, MasterNotFoundError):
            raise result
        return result


class ServerAway(ConnectionError):
    """It was away a moment ago, and is not asked again yet. Has the text of the error that it was away with."""


@contextmanager
def asked(connection: Redis) -> Iterator[None]:
    """Around a question to a server: fails at once while it is known to be away.

    After `AWAY_SECONDS` one caller looks whether it is back, and the others do not wait for what comes of it.

    Raises:
        ServerAway: it did not answer lately.
    """
    server = server_of(connection)
    now = time.monotonic()
    if absence := _away.get(server):
        if now < absence.until:
            raise ServerAway(absence.problem)
        absence = _away[server] = absence._replace(until=now + AWAY_SECONDS)
    known = absence
    try:
        with telling_no_password():
            yield
    except ServerAway:
        raise
    except (AuthenticationError, ResponseError):  # an answer; and other queues there may have another user or database
        _away.pop(server, None)
        raise
    except (ConnectionError, TimeoutError) as error:
        if _away.get(server) == known:  # else somebody who has not waited for this answer has noted more meanwhile
            _note_absence(server, str(error), AWAY_SECONDS)
        raise
    _away.pop(server, None)


def _note_absence(server: Hashable, problem: str, pause: float) -> None:
    _away[server] = Absence(time.monotonic() + pause, problem, pause)


def look_at(connections: Collection[Redis], seconds: float, *, ever_more_seldom: bool = False) -> None:
    """Ask servers at once whether they are there: those that are away are waited for together, and noted.

    Args:
        seconds: for which they are waited for.
        ever_more_seldom: where some answer, one that does not is left out for twice as long as the last time: it may
            be gone for days. Where none does, the first that is back is noticed soon.
    """
    servers = {server_of(connection): connection for connection in connections}
    before = dict(_away)
    _look_at_all(servers, time.monotonic() + seconds)
    away = _away.keys() & servers.keys()
    if ever_more_seldom and len(away) < len(servers):
        _leave_out_for_longer(away, before)


def _look_at_all(servers: Mapping[Hashable, Redis], until: float) -> None:
    """By a thread for each, which is left alone after that: it may look up a name, or have a pool that is patient.

    Each is in the trace of the request or the job that this is for.
    """
    looks = {
        server: Thread(target=copy_context().run, args=[_look, connection], daemon=True)
        for server, connection in servers.items()
    }
    for look in looks.values():
        look.start()
    for server, look in looks.items():
        look.join(max(0.0, until - time.monotonic()))
        if look.is_alive():
            _note_absence(server, "it has not answered so far", AWAY_SECONDS)


def _leave_out_for_longer(servers: Collection[Hashable], before: Mapping[Hashable, Absence]) -> None:
    """Those that were asked: of the others is known what was known before."""
    for server in servers:
        last, now = before.get(server), _away.get(server)
        if now and now != last:
            _note_absence(server, now.problem, min(2 * (last.pause if last else AWAY_SECONDS), MOST_SECONDS_AWAY))


def _look(connection: Redis) -> None:
    with suppress(RedisError), asked(connection):
        connection.ping()


@contextmanager
def telling_no_password() -> Iterator[None]:
    """Around what may raise the error of redis-py that quotes one."""
    try:
        yield
    except MasterNotFoundError:
        raise MasterNotFoundError(NO_MASTER) from None


def forget_absence(connection: Redis) -> None:
    """Whoever asks this server next does ask it."""
    _away.pop(server_of(connection), None)


def forget_absences() -> None:
    """The settings have changed, and may name another server under the same address."""
    _away.clear()


def absences() -> dict[Hashable, Absence]:
    """What this process knows, for the one that it was forked from."""
    return dict(_away)


def take_over(learnt: Mapping[Hashable, Absence], *, but_of: Redis) -> None:
    """What another process of this host has learnt is known here too.

    Args:
        but_of: a connection to the server whose return this process is to notice by itself, as it needs it.
    """
    own = server_of(but_of)
    _away.update((server, absence) for server, absence in learnt.items() if server != own)


def server_of(connection: Redis) -> Hashable:
    """What tells the server of a connection from others: it is away with all its databases.

    A service of Sentinel has a name, no address.
    """
    pool = connection.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        return pool.service_name, frozenset(server_of(sentinel) for sentinel in pool.sentinel_manager.sentinels)
    return tuple(_option(connection, name) for name in ("host", "port", "path"))


def database_of(connection: Redis) -> Hashable:
    """The server and the number of its database: what is in one of them is in no other."""
    return server_of(connection), _option(connection, "db")


def _option(connection: Redis, name: str) -> str:
    """As a text: settings that come from the environment have one where others have a number."""
    value = str(connection.connection_pool.connection_kwargs.get(name) or BY_DEFAULT[name])
    return value.lower() if name == "host" else value


def impatient(connection: Redis, seconds: float = ANSWER_SECONDS) -> Redis:
    """A connection to the same server with short timeouts; what the given one is used for otherwise stays as it is.

    A pool of a kind that we do not know is taken as it is.
    """
    pool = connection.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        manager = copy(pool.sentinel_manager)
        share = seconds / max(1, len(manager.sentinels))  # redis-py asks one after the other until one knows the master
        manager.sentinels = [impatient(sentinel, share) for sentinel in manager.sentinels]
        options = _bounded(pool, seconds) | {"is_master": pool.is_master, "check_connection": pool.check_connection}
        own = OwnSentinelPool(pool.service_name, manager, **options)  # type: ignore[no-untyped-call]
        return Redis(connection_pool=own)
    if type(pool) in (ConnectionPool, BlockingConnectionPool, OwnPool):
        return Redis(connection_pool=OwnPool(**_bounded(pool, seconds)))
    return connection


def try_once_more(connection: Redis) -> None:
    """Where the project does not say how often to try: of a connection by ``URL`` redis-py makes one that never does
    (5.1 to 8.1), while one by host tries again.
    """
    says_so = {"retry", "retry_on_error", "retry_on_timeout"}
    options = connection.connection_pool.connection_kwargs
    if not any(options.get(name) for name in says_so):
        options["retry_on_error"] = [ConnectionError]  # without it, before 6.0, no command is sent a second time
        with suppress(AttributeError):  # of a BlockingConnectionPool, which has noted it by then (5.1 to 8.1)
            connection.set_retry(OnceMore())


def require_options(connection: Redis) -> None:
    """Raises what is wrong with the options of a connection, which show when one is made; it connects nowhere.

    A pool of a kind that we do not know is not asked to make one.
    """
    own = impatient(connection)
    if own is not connection:
        own.connection_pool.make_connection()
        if (host := own.connection_pool.connection_kwargs.get("host")) is not None:
            host.encode("idna")  # as the socket module does before it asks who has that name


def is_readable(url: object) -> bool:
    """Whether redis-py can take a text apart as an address; what is no text has no parts that an error could quote."""
    if not isinstance(url, str):
        return True
    try:
        parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


def _bounded(pool: ConnectionPool, seconds: float) -> dict[str, Any]:
    """The options of a pool, those that say how long to wait replaced."""
    options = {name: value for name, value in pool.connection_kwargs.items() if name not in OF_ONE_POOL}
    options |= {"connection_class": pool.connection_class, "max_connections": pool.max_connections}
    options["retry"] = OnceMore()
    options["socket_timeout"] = min(options.get("socket_timeout") or seconds, seconds)
    if not issubclass(pool.connection_class, UnixDomainSocketConnection):
        to_connect = min(CONNECT_SECONDS, seconds)
        options["socket_connect_timeout"] = min(options.get("socket_connect_timeout") or to_connect, to_connect)
    return options
