"""A worker that RQ has ask again after a Redis that was away does ask it, and reads what it has popped."""

from __future__ import annotations

import time
from typing import Any

import django_rq
import pytest
import rq
from django.conf import settings
from redis import BlockingConnectionPool, ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from rq import Queue, get_current_job
from rq.job import Job

from tenant_slots import redis_servers
from tenant_slots.models import State
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, turns
from tests import jobs
from tests.factories import fresh
from tests.history import History
from tests.sleeping import replace_sleep

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker] | type[TenantSimpleWorker]


class AskedInVain(BaseException):
    """RQ would have it ask for ever."""


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
@pytest.mark.parametrize("forgets", [True, pytest.param(False, id="control")])
def test_a_server_that_was_away_a_moment_ago_is_asked_for_the_next_job(
    worker_class: Worker, forgets: bool, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ waits for a second, and longer each time: three answers by hearsay would keep it away for seven."""
    job = jobs.record.enqueue("acme", "after", history.path)
    queue = django_rq.get_queue("imports")
    worker = worker_class([queue], connection=queue.connection)
    real, asked = worker._found, []

    def found(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            server = redis_servers.server_of(worker.connection)
            redis_servers._away[server] = redis_servers.Absence(time.monotonic() + 1000, "away")
        elif len(asked) > 2 and not history.started():
            raise AskedInVain
        return real(*arguments)

    monkeypatch.setattr(worker, "_found", found)
    replace_sleep(monkeypatch, lambda seconds: None)
    if not forgets:
        monkeypatch.setattr(turns, "forget_absence", lambda connection: None)
    try:
        worker.work(burst=True, logging_level="CRITICAL")
    except (AskedInVain, SystemExit):
        assert not forgets
    finally:
        redis_servers.forget_absences()
    assert (fresh(job).state == State.FINISHED) is forgets


@pytest.fixture
def times() -> int:
    return 3


@pytest.fixture
def _cut_as_a_job_is_read(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So often, when a worker has popped its id."""
    fetch, read, cuts = Job.fetch, AbstractConnection.read_response, [0, times]

    def fetched(*arguments: Any, **options: Any) -> Job:
        cuts[0], cuts[1] = cuts[1], 0
        return fetch(*arguments, **options)

    def cut(connection: Any, *arguments: Any, **options: Any) -> Any:
        if cuts[0]:
            cuts[0] -= 1
            raise RedisConnectionError("it is away")
        return read(connection, *arguments, **options)

    monkeypatch.setattr(Job, "fetch", fetched)
    monkeypatch.setattr(AbstractConnection, "read_response", cut)


@pytest.mark.usefixtures("_cut_as_a_job_is_read")
@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
@pytest.mark.parametrize("names", [("imports",), ("imports", "reports")], ids=["one queue", "two queues"])
def test_a_plain_job_that_a_worker_has_popped_is_read_as_patiently_as_the_project_would(
    worker_class: Worker, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else has its id by then. The worker waits for a job without patience, as it is asked again."""
    url = str(settings.RQ_QUEUES["imports"]["URL"])
    redis = Redis.from_url(url, retry=Retry(NoBackoff(), 5), retry_on_error=[RedisConnectionError])
    job = django_rq.get_queue("imports").enqueue(abs, -7)
    replace_sleep(monkeypatch, lambda seconds: None)
    queues = [Queue(name, connection=redis) for name in names]
    worker_class(queues, connection=redis).work(burst=True, logging_level="CRITICAL")
    assert job.return_value() == 7


@pytest.mark.usefixtures("_cut_as_a_job_is_read")
@pytest.mark.parametrize("times", [1])
@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
@pytest.mark.parametrize("pool", [ConnectionPool, BlockingConnectionPool])
@pytest.mark.parametrize("says_so", [False, pytest.param(True, id="control")])
def test_a_plain_job_is_read_though_the_connection_that_nobody_has_used_for_long_is_gone(
    worker_class: Worker, says_so: bool, pool: type[ConnectionPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the host of Redis was replaced. By ``URL`` alone redis-py would try it once, as a project may say."""
    options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)} if says_so else {}
    redis = Redis(connection_pool=pool.from_url(str(settings.RQ_QUEUES["imports"]["URL"]), **options))
    job = django_rq.get_queue("imports").enqueue(abs, -7)
    replace_sleep(monkeypatch, lambda seconds: None)
    worker_class([Queue("imports", connection=redis)], connection=redis).work(burst=True, logging_level="CRITICAL")
    assert job.return_value() == (None if says_so else 7)


def asks_for_another_run() -> rq.Retry | int:
    job = get_current_job()
    return 7 if job is not None and job.number_of_retries else rq.Retry(max=1)


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
def test_a_plain_job_begins_as_any_though_its_server_was_away_a_moment_ago(
    worker_class: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it was told of other jobs' ends in vain. RQ runs nothing again of which it has no execution."""
    queue = django_rq.get_queue("imports")
    job = queue.enqueue(asks_for_another_run)
    worker = worker_class([queue], connection=queue.connection)
    execute = worker.execute_job

    def executed(*arguments: Any) -> None:
        server = redis_servers.server_of(worker.connection)
        redis_servers._away[server] = redis_servers.Absence(time.monotonic() + 1000, "away")
        execute(*arguments)

    monkeypatch.setattr(worker, "execute_job", executed)
    try:
        worker.work(burst=True, logging_level="CRITICAL")
    finally:
        redis_servers.forget_absences()
    assert job.return_value() == 7
