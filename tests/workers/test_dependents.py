"""What a worker still has to do for plain RQ jobs that depend on one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import django_rq
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from rq.job import Job, JobStatus
from rq.queue import Queue

from tenant_slots.workers import TenantPreforkWorker
from tests import jobs

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queue() -> Queue:
    found: Queue = django_rq.get_queue("imports")
    return found


@pytest.fixture
def worker(queue: Queue) -> Iterator[TenantPreforkWorker]:
    worker = TenantPreforkWorker([queue], connection=queue.connection)
    worker.enqueue_dependents_aside(queue)
    yield worker
    worker.heartbeats.stop()


@pytest.fixture
def ended(queue: Queue) -> Job:
    """A job that has ended, and on which another one depends."""
    job = queue.enqueue(jobs.note, "/dev/null", "start", "plain", "first")
    queue.enqueue(jobs.note, "/dev/null", "start", "plain", "dependent", depends_on=job)
    queue.remove(job)
    job.set_status(JobStatus.FINISHED)
    return job


def test_where_redis_cannot_be_asked_how_many_there_are_they_are_enqueued_all_the_same(
    worker: TenantPreforkWorker, queue: Queue, ended: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> int:
        raise RedisConnectionError("away")

    with monkeypatch.context() as patched:
        patched.setattr(Redis, "scard", away)
        queue.enqueue_dependents(ended)
    worker.see_all_dependents_through(20)
    assert len(queue) == 1
