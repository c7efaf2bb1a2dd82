"""Through Sentinels that say nothing a master is looked for no longer than a server is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import override_settings
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from tenant_slots import queue_directory, redis_servers
from tenant_slots.models import TenantJob
from tenant_slots.redis_servers import ANSWER_SECONDS, CONNECT_SECONDS, OnceMore
from tests import jobs
from tests.faults.servers import Valkey
from tests.sentinels import fail_over, port_of, queue_through, sentinel_of, silent_servers

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[redis.Connection]:
    """The connections that were tried to open since."""
    tried: list[redis.Connection] = []
    connect = redis.Connection._connect

    def noted(self: redis.Connection) -> Any:
        tried.append(self)
        return connect(self)

    monkeypatch.setattr(redis.Connection, "_connect", noted)
    return tried


@pytest.fixture
def master() -> Iterator[Valkey]:
    server = Valkey()
    yield server
    server.end()


@contextmanager
def imports_through(*ports: int) -> Iterator[None]:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "imports": queue_through(*ports)}):
        yield


def port_that_answers() -> int:
    """Of the server that the queue leads to."""
    with queue_directory.reaching("imports") as queue:
        return int(queue.connection.config_get("port")["port"])


def longest_wait(opened: list[redis.Connection]) -> float:
    """For servers that accept these connections and say nothing; and for such that do not even accept them."""
    to_connect = sum(connection.socket_connect_timeout for connection in opened)
    return float(max(to_connect, sum(connection.socket_timeout for connection in opened)))


def test_three_silent_ones_are_asked_once_each_and_have_the_time_of_one_together(
    opened: list[redis.Connection],
) -> None:
    with silent_servers(3) as ports, imports_through(*ports):
        jobs.fail.enqueue("acme")
        assert Counter(connection.port for connection in opened) == dict.fromkeys(ports, 1)
        assert longest_wait(opened) <= ANSWER_SECONDS
        opened.clear()
        jobs.fail.enqueue("another")
        assert opened == [], "what follows is the sweep's"
    assert TenantJob.objects.waiting().count() == 2


def test_control_one_more_try_for_whatever_redis_py_takes_for_a_closed_connection_asks_them_twice(
    opened: list[redis.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_servers, "OnceMore", lambda: Retry(NoBackoff(), 1, (redis.ConnectionError,)))
    with silent_servers(1) as ports, imports_through(*ports):
        jobs.fail.enqueue("acme")
        assert Counter(connection.port for connection in opened) == dict.fromkeys(ports, 2)


def test_a_silent_one_beside_healthy_ones_is_waited_for_once_and_shortly(
    opened: list[redis.Connection], master: Valkey
) -> None:
    with (
        silent_servers(1) as (silent,),
        sentinel_of(master.port) as one,
        sentinel_of(master.port) as another,
        imports_through(silent, port_of(one), port_of(another)),
    ):
        assert port_that_answers() == master.port
        (waited,) = (connection for connection in opened if connection.port == silent)
        assert waited.socket_timeout == pytest.approx(ANSWER_SECONDS / 3)
        opened.clear()
        queue_directory.queue_named("imports").connection.connection_pool.disconnect()
        assert port_that_answers() == master.port
        assert silent not in [connection.port for connection in opened], "the one that knew it comes first"


def test_a_failover_is_followed_by_the_question_that_meets_the_closed_connection(master: Valkey) -> None:
    successor = Valkey()
    try:
        with sentinel_of(master.port) as sentinel, imports_through(port_of(sentinel)):
            assert port_that_answers() == master.port
            fail_over(sentinel, successor.port)
            master.stop()
            assert port_that_answers() == successor.port
    finally:
        successor.end()


def test_a_sentinel_alone_has_no_more_time_than_a_server() -> None:
    with imports_through(26379):
        pool: Any = queue_directory.queue_named("imports").connection.connection_pool
        (sentinel,) = pool.sentinel_manager.sentinels
    options = sentinel.connection_pool.connection_kwargs
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (CONNECT_SECONDS, ANSWER_SECONDS)


def times_tried(error: Exception, retry: Retry) -> int:
    tries: list[Callable[[], None]] = []

    def fail() -> None:
        tries.append(fail)
        raise error

    with pytest.raises(type(error)):
        retry.call_with_retry(fail, lambda _: None)
    return len(tries)


@pytest.mark.parametrize(
    ("error", "times"), [(redis.ConnectionError(), 2), (redis.TimeoutError(), 1), (MasterNotFoundError(), 1)]
)
def test_what_is_tried_once_more(error: Exception, times: int) -> None:
    assert times_tried(error, OnceMore()) == times


def test_what_comes_of_the_second_try_is_given() -> None:
    answers: Iterator[Any] = iter([redis.ConnectionError(), "PONG"])

    def ask() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert OnceMore().call_with_retry(ask, lambda _: None) == "PONG"
