"""What a worker still has to do for plain RQ jobs that depend on one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import django_rq
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from rq.job import Job, JobStatus
from rq.queue import Queue

from tenant_slots.workers import TenantPreforkWorker, dependents
from tenant_slots.workers.aside import Aside
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


def ended_job(queue: Queue, of: str = "acme", name: str = "dependent") -> Job:
    """A job that has ended, and on which another one depends."""
    job = queue.enqueue(jobs.note, "/dev/null", "start", "plain", "first", description=f"a job for {of!r}")
    queue.enqueue(jobs.note, "/dev/null", "start", "plain", name, job_id=name, depends_on=job)
    queue.remove(job)
    job.set_status(JobStatus.FINISHED)
    return job


def test_where_redis_cannot_be_asked_how_many_there_are_they_are_enqueued_all_the_same(
    worker: TenantPreforkWorker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> int:
        raise RedisConnectionError("away")

    ended = ended_job(queue)
    with monkeypatch.context() as patched:
        patched.setattr(Redis, "scard", away)
        queue.enqueue_dependents(ended)
    worker.see_all_dependents_through(20)
    assert len(queue) == 1


@pytest.mark.parametrize(
    ("other", "order"),
    [
        ("acme", ["whale-0", "acme", "whale-1", "whale-2"]),
        pytest.param("whale", ["whale-0", "whale-1", "whale-2", "acme"], id="control"),
    ],
)
def test_those_of_one_tenant_do_not_wait_for_all_of_another_one(
    worker: TenantPreforkWorker, queue: Queue, other: str, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whales = [ended_job(queue, "whale", f"whale-{nth}") for nth in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(Aside, "start", lambda *_: False)  # before all have ended
        for job in (*whales, ended_job(queue, other, "acme")):
            queue.enqueue_dependents(job)
    worker.see_all_dependents_through(20)
    assert queue.job_ids == order


@pytest.mark.parametrize("has_room", [False, pytest.param(True, id="control")])
def test_a_worker_that_ends_says_what_it_has_not_come_to(
    worker: TenantPreforkWorker,
    queue: Queue,
    has_room: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """For a process that does it, and for a lease."""
    if not has_room:
        monkeypatch.setattr(Aside, "start", lambda *_: False)
        monkeypatch.setattr(dependents, "app_settings", SimpleNamespace(LEASE_TTL=0))
    job = ended_job(queue)
    queue.enqueue_dependents(job)
    worker._part()
    said = [(one.levelname, vars(one)["queue"]) for one in caplog.records if job.id in one.getMessage()]
    assert said == ([] if has_room else [("WARNING", "imports")])
    assert len(queue) == has_room
