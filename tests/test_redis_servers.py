"""A Redis that is away holds nobody up: neither who enqueues, nor the sweep, nor what is on another server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import django_rq
import pytest
import redis
from django.test import override_settings
from redis.connection import AbstractConnection
from redis.sentinel import Sentinel

from tenant_slots import dispatch, redis_servers
from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import in_rq, work
from tests.faults.servers import django_on_redis

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["a closed port", "a black hole"])
def away(request: pytest.FixtureRequest) -> Iterator[None]:
    """Django is pointed at a Redis that is away: connecting is refused, or works and then nothing is answered."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "a black hole":
            server.listen()
        with django_on_redis(f"redis://127.0.0.1:{server.getsockname()[1]}/0"):
            yield


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[AbstractConnection]:
    """The connections that were tried to open since."""
    tried: list[AbstractConnection] = []
    connect = redis.Connection._connect

    def counted(self: redis.Connection) -> Any:
        tried.append(self)
        return connect(self)

    monkeypatch.setattr(redis.Connection, "_connect", counted)
    return tried


def test_many_jobs_are_left_to_the_sweep_after_one_push_that_failed(away: None, attempts: list[Any]) -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=5)
    jobs.fail.enqueue_many([(("acme",), {})] * 5)
    assert 1 <= len(attempts) <= 2, "the second try is for a connection that the server had closed meanwhile"
    assert TenantJob.objects.queued().count() == 5


def test_the_next_caller_does_not_wait_for_it_again(away: None, attempts: list[Any]) -> None:
    jobs.fail.enqueue("acme")
    assert attempts, "or nothing has been tried, and nothing is proven below"
    attempts.clear()
    jobs.fail.enqueue("another")
    assert attempts == []
    assert dispatch.workers_alive() is None
    assert attempts == []
    assert TenantJob.objects.queued().count() == 2


def test_after_a_while_one_caller_looks_again(away: None, attempts: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_servers, "AWAY_SECONDS", 0)
    jobs.fail.enqueue("acme")
    attempts.clear()
    jobs.fail.enqueue("another")
    assert attempts


def test_nobody_waits_for_longer_than_our_own_timeouts(away: None, attempts: list[Any]) -> None:
    jobs.fail.enqueue("acme")
    for connection in attempts:
        assert connection.socket_connect_timeout == redis_servers.CONNECT_SECONDS
        assert connection.socket_timeout == redis_servers.ANSWER_SECONDS


def test_what_the_project_connects_with_is_left_as_it_was() -> None:
    mine = django_rq.get_queue("imports")
    options = dict(mine.connection.connection_pool.connection_kwargs)
    dispatch.use_queue(mine)
    ours: dict[str, Any] = dispatch.queue_named("imports").connection.connection_pool.connection_kwargs
    assert ours["socket_timeout"] == redis_servers.ANSWER_SECONDS
    assert mine.connection.connection_pool.connection_kwargs == options
    shared = {name for name, value in ours.items() if name in options and value is options[name]}
    assert not shared & {"himport_registry", "maint_notifications_pool_handler"}, "they belong to the other pool"


def test_a_shorter_timeout_of_the_projects_own_is_kept() -> None:
    theirs = redis.Redis(socket_timeout=0.5, socket_connect_timeout=0.25)
    options = redis_servers.impatient(theirs).connection_pool.connection_kwargs
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (0.5, 0.25)


def test_a_connection_that_the_server_has_closed_is_opened_anew_and_is_no_absence() -> None:
    queue = dispatch.queue_named("imports")
    with queue.connection.client() as own:
        number = own.client_id()
    django_rq.get_connection("imports").client_kill_filter(_id=number)
    job = jobs.fail.enqueue("acme")
    assert in_rq() == 1
    work()
    job.refresh_from_db()
    assert job.state == State.FAILED


def test_a_server_without_memory_is_not_away(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = dispatch.queue_named("imports").connection
    with pytest.raises(redis.ResponseError), redis_servers.asked(connection):
        raise redis.exceptions.OutOfMemoryError
    with redis_servers.asked(connection):
        assert connection.ping()


def sentinel_service(name: str, port: int = 26379) -> redis.Redis:
    return Sentinel([("127.0.0.1", port)], socket_timeout=30).master_for(name)


def test_the_connection_to_a_sentinels_service_asks_sentinels_that_are_not_waited_for_either() -> None:
    theirs = sentinel_service("one")
    pool: Any = redis_servers.impatient(theirs).connection_pool
    assert (pool.service_name, pool.is_master) == ("one", True)
    assert pool.connection_class is theirs.connection_pool.connection_class
    assert pool.connection_kwargs["socket_timeout"] == redis_servers.ANSWER_SECONDS
    (sentinel,) = pool.sentinel_manager.sentinels
    assert sentinel.connection_pool.connection_kwargs["socket_timeout"] == redis_servers.ANSWER_SECONDS
    (other,) = theirs.connection_pool.sentinel_manager.sentinels
    assert other.connection_pool.connection_kwargs["socket_timeout"] == 30


def test_the_connection_to_a_unix_socket_is_bounded_too() -> None:
    theirs = redis.Redis(unix_socket_path="/nowhere/redis.sock")
    with pytest.raises(redis.ConnectionError):
        redis_servers.impatient(theirs).ping()


def test_services_of_one_sentinel_are_different_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a name each, and no address: the workers of only one of them were counted."""
    queues = {
        "first": {"SENTINELS": [("127.0.0.1", 26379)], "MASTER_NAME": "one"},
        "again": {"SENTINELS": [("127.0.0.1", 26379)], "MASTER_NAME": "one"},
        "second": {"SENTINELS": [("127.0.0.1", 26379)], "MASTER_NAME": "two"},
        "elsewhere": {"SENTINELS": [("127.0.0.1", 26380)], "MASTER_NAME": "one"},
    }
    monkeypatch.setattr("django_rq.settings.QUEUES", queues)
    with override_settings(RQ_QUEUES=queues):
        assert dispatch._one_queue_per_server() == ["first", "second", "elsewhere"]
