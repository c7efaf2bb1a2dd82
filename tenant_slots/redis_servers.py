"""Redis servers: connections that nobody waits for, which server a connection leads to, and which servers are away.

A push happens in a web request, a sweep between two heartbeats. Neither can wait as long as the project's own
connection may: redis-py 8 tries ten times with five seconds each, and a worker's connection waits for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from redis import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, UnixDomainSocketConnection, parse_url
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, SentinelConnectionPool

CONNECT_SECONDS = 1
"""A server on the same continent answers within a tenth of that."""

ANSWER_SECONDS = 2
"""Our commands take milliseconds; a server may be busy with somebody else's long one before."""

AWAY_SECONDS = 5
"""For which a server that was away is not asked again by this process. What was not pushed is the sweep's."""

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

_away: dict[Hashable, tuple[float, str]] = {}
"""By server: until when it is not asked, and what was wrong with it."""


NO_ADDRESS = (ValueError, TypeError, AttributeError, OverflowError)
"""What the socket module makes of a value that redis-py hands to it unseen; UnicodeError is a ValueError."""


class OwnPool(ConnectionPool):
    """One whose server counts as away where a wrong setting shows only when it is connected to."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        try:
            return super().get_connection(*args, **options)
        except NO_ADDRESS as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error


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
        until, problem = absence
        if now < until:
            raise ServerAway(problem)
        _away[server] = now + AWAY_SECONDS, problem
    try:
        with telling_no_password():
            yield
    except ServerAway:
        raise
    except (ConnectionError, TimeoutError) as error:
        _away[server] = time.monotonic() + AWAY_SECONDS, str(error)
        raise
    _away.pop(server, None)


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


def server_of(connection: Redis) -> Hashable:
    """What tells the server and database of a connection from others. A service of Sentinel has a name, no address."""
    pool = connection.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        sentinels = frozenset(server_of(sentinel) for sentinel in pool.sentinel_manager.sentinels)
        return (pool.service_name, sentinels, pool.connection_kwargs.get("db"))
    return tuple(pool.connection_kwargs.get(name) for name in ("host", "port", "path", "db"))


def impatient(connection: Redis) -> Redis:
    """A connection to the same server with short timeouts; what the given one is used for otherwise stays as it is.

    One try more than one, for a connection that the server has closed since it was last used; none after a timeout.
    A pool of a kind that we do not know is taken as it is.
    """
    pool = connection.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        manager = copy(pool.sentinel_manager)
        manager.sentinels = [impatient(sentinel) for sentinel in manager.sentinels]
        options = _bounded(pool) | {"is_master": pool.is_master, "check_connection": pool.check_connection}
        own = SentinelConnectionPool(pool.service_name, manager, **options)  # type: ignore[no-untyped-call]
        return Redis(connection_pool=own)
    if type(pool) in (ConnectionPool, BlockingConnectionPool, OwnPool):
        return Redis(connection_pool=OwnPool(**_bounded(pool)))
    return connection


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


def _bounded(pool: ConnectionPool) -> dict[str, Any]:
    """The options of a pool, those that say how long to wait replaced."""
    options = {name: value for name, value in pool.connection_kwargs.items() if name not in OF_ONE_POOL}
    options |= {"connection_class": pool.connection_class, "max_connections": pool.max_connections}
    options["retry"] = Retry(NoBackoff(), 1, (ConnectionError,))
    options["socket_timeout"] = min(options.get("socket_timeout") or ANSWER_SECONDS, ANSWER_SECONDS)
    if not issubclass(pool.connection_class, UnixDomainSocketConnection):
        options["socket_connect_timeout"] = min(
            options.get("socket_connect_timeout") or CONNECT_SECONDS, CONNECT_SECONDS
        )
    return options
