"""What the worker classes do once for all of their jobs."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from typing import Any

import django_rq
import pytest
from django.conf import settings
from django.db import InternalError, connections
from django.db import connection as django_connection
from redis import Redis
from redis.client import PubSub
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeout
from rq import Worker
from rq.command import handle_stop_job_command

from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, base
from tenant_slots.workers.children import Child
from tests.factories import owner
from tests.processes import wait_until


def connection(**options: Any) -> Redis:
    return Redis.from_url(settings.RQ_QUEUES["default"]["URL"], **options)


def made_by(redis: Redis) -> Any:
    """What one new connection of the pool says of its driver."""
    with redis.client() as client:
        assert client.ping()
        return client.connection.driver_info


def test_every_connection_of_a_worker_has_the_driver_that_was_named_once() -> None:
    pytest.importorskip("redis.driver_info", reason="redis-py below 8 names its driver without looking")
    redis = connection()
    base.name_driver_once(redis)
    named = redis.connection_pool.connection_kwargs["driver_info"]
    assert made_by(redis) is named
    assert (named.name, named.lib_version) == (made_by(connection()).name, made_by(connection()).lib_version)


def test_the_name_that_a_project_gives_its_driver_is_kept() -> None:
    driver_info = pytest.importorskip("redis.driver_info", reason="redis-py below 8 has no such option")
    mine = driver_info.DriverInfo(name="mine")
    redis = connection(driver_info=mine)
    base.name_driver_once(redis)
    assert made_by(redis) is mine


def worker(worker_class: type[Any]) -> Any:
    return worker_class([django_rq.get_queue("imports")], connection=django_rq.get_connection("imports"))


def test_an_outage_that_a_run_meets_is_the_workers() -> None:
    one = worker(TenantSimpleWorker)
    one.owner = owner()
    one.sweeper.contact._since -= 3600
    assert one.sweeper.contact.covers_a_lease()
    one.new_run()._on_outage()
    assert not one.sweeper.contact.covers_a_lease()


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(django_connection.vendor != "postgresql", reason="SQLite has no sessions that only read")
def test_a_session_in_which_nobody_may_write_is_not_kept() -> None:
    """As one that was begun while a server with a full disk, or a pooler after a failover, took no writes."""
    one = worker(TenantPreforkWorker)
    with closing(one._session):
        with one._database():
            _execute("SET default_transaction_read_only = on")
        with pytest.raises(InternalError), one._database():
            _execute("UPDATE tenant_slots_tenantqueue SET max_job = max_job")
        with one._database():
            _execute("UPDATE tenant_slots_tenantqueue SET max_job = max_job")


def _execute(statement: str) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.django_db
def test_a_stop_command_that_comes_when_the_horse_has_ended_kills_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ alone, the control, kills the group of process 0: the worker's own, with all of a pool's workers."""
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: killed.append(group))
    for worker_class in (TenantWorker, TenantPreforkWorker, Worker):
        one = worker(worker_class)
        monkeypatch.setattr(one, "get_current_job_id", lambda: "job")
        one._horse_pid = 0
        handle_stop_job_command(one, {"job_id": "job"})
    assert killed == [os.getpgid(0)]


@pytest.mark.parametrize("worker_class", [TenantWorker, pytest.param(Worker, id="control")])
@pytest.mark.parametrize("error", [RedisTimeout("Timeout reading from socket"), ResponseError("LOADING")])
def test_a_worker_hears_commands_after_redis_has_not_answered_the_thread_that_waits_for_them(
    worker_class: type[Any], error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ ends it for whatever is no lost connection."""
    errors, get_message, heard = iter([error]), PubSub.get_message, threading.Event()

    def get_or_fail(*args: Any, **options: Any) -> Any:
        for one in errors:
            raise one
        return get_message(*args, **options)

    monkeypatch.setattr(PubSub, "get_message", get_or_fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    one, redis = worker(worker_class), connection()
    one.handle_payload = lambda _: heard.set()
    one.subscribe()
    wait_until(
        lambda: heard.is_set() or not (one.pubsub_thread.is_alive() and redis.publish(one.pubsub_channel_name, ""))
    )
    one.unsubscribe()
    assert heard.is_set() is (worker_class is not Worker)


def test_a_signal_that_comes_while_a_worker_looks_at_its_horse_kills_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler runs in the thread that it interrupts, and would wait for itself."""
    horse = Child(signal.pause)
    look = os.waitpid

    def interrupted(*args: int) -> tuple[int, int]:
        monkeypatch.setattr(os, "waitpid", look)
        horse.kill()
        return look(*args)

    def too_late(*_: object) -> None:
        raise TimeoutError("it waits for itself")

    monkeypatch.setattr(os, "waitpid", interrupted)
    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(10)
    try:
        wait_until(horse.has_ended)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert os.WTERMSIG(horse.status or 0) == signal.SIGKILL
