"""The worker without work-horses, and what it tells Redis."""

from __future__ import annotations

import time
from typing import Any

import django_rq
import psycopg
import pytest
from django.db import connection
from rq.job import Job, JobStatus

from tenant_slots import redis_servers, tenant_job
from tenant_slots.models import State, TenantJob
from tenant_slots.running import run
from tenant_slots.workers import TenantSimpleWorker, simple
from tests.processes import test_database_url as database_url

pytestmark = pytest.mark.django_db(transaction=True)


def lose_redis() -> None:
    """Somebody in this process asks it while it stands still for a moment: it counts as away for a while."""
    server = redis_servers.server_of(django_rq.get_connection("imports"))
    redis_servers._away[server] = redis_servers.Absence(time.monotonic() + 3600, "it did not answer")


def lose_redis_and_fail() -> None:
    lose_redis()
    raise ValueError("not that")


@pytest.mark.parametrize(
    ("function", "status"), [(lose_redis, JobStatus.FINISHED), (lose_redis_and_fail, JobStatus.FAILED)]
)
def test_redis_is_told_the_end_of_a_plain_rq_job_though_it_was_away_a_moment_ago(
    function: object, status: JobStatus
) -> None:
    """Nobody else knows of it: RQ would take the job for lost, and perhaps run it again."""
    queue = django_rq.get_queue("imports")
    job: Job = queue.enqueue(function)
    try:
        TenantSimpleWorker([queue], connection=queue.connection).work(max_jobs=1, logging_level="ERROR")
    finally:
        redis_servers.forget_absences()
    assert job.get_status(refresh=True) == status
    assert len(queue.started_job_registry) == 0


def end_session() -> None:
    """As the server does when it was idle for too long."""
    if connection.connection is not None and not connection.connection.closed:
        backend = connection.connection.info.backend_pid
        with psycopg.connect(database_url(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])  # waits until it has ended


@tenant_job("imports", tenant="tenant")
def last(tenant: str) -> None:
    end_session()


class IdleWorker(TenantSimpleWorker):
    def dequeue_job_and_maintain_ttl(self, *args: Any, **kwargs: Any) -> Any:
        end_session()
        return super().dequeue_job_and_maintain_ttl(*args, **kwargs)

    def execute_job(self, *args: Any, **kwargs: Any) -> None:
        end_session()
        super().execute_job(*args, **kwargs)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions of PostgreSQL")
@pytest.mark.parametrize("does_not_look", [None, simple, run], ids=["looks", "control: before it", "control: after it"])
def test_a_session_that_was_idle_before_a_job_or_during_it_is_no_outage(
    does_not_look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has met one judges no dead worker for a lease."""
    if does_not_look is not None:
        name = "close_ended_sessions" if does_not_look is simple else "close_if_ended"
        monkeypatch.setattr(does_not_look, name, lambda *_: None)
    queue = django_rq.get_queue("imports")
    last.enqueue("acme")
    queue.enqueue(last, "acme")
    worker = IdleWorker([queue], connection=queue.connection)
    worker.work(burst=True, logging_level="ERROR")
    assert list(TenantJob.objects.values_list("state", flat=True)) == [State.FINISHED] * 2
    assert (worker.sweeper.contact.breaks == 0) is (does_not_look is None)
