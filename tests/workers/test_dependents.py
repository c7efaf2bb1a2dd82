"""What a worker still has to do for plain RQ jobs that depend on one of ours."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
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
from tenant_slots.workers.base import SweepingWorker
from tenant_slots.workers.horses import RQEnd
from tenant_slots.workers.records import Ended
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


def ended_job(queue: Queue, name: str = "dependent", also: Sequence[Job] = ()) -> Job:
    """A job that has ended, and on which another one depends, and that perhaps on others too."""
    job = queue.enqueue(jobs.note, "/dev/null", "start", "plain", "first", description=f"for {name}")
    queue.enqueue(jobs.note, "/dev/null", "start", "plain", name, job_id=name, depends_on=[job, *also])
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
    tenant_queues = {"whale": 1, "acme": 2}
    with monkeypatch.context() as patched:
        patched.setattr(Aside, "start", lambda *_: False)  # before all have ended
        for name, tenant in (("whale-0", "whale"), ("whale-1", "whale"), ("whale-2", "whale"), ("acme", other)):
            job = ended_job(queue, name)
            worker.tenant_queues[job] = tenant_queues[tenant]
            queue.enqueue_dependents(job)
    worker.see_all_dependents_through(20)
    assert queue.job_ids == order


def test_rq_may_have_forgotten_the_job_by_then(
    worker: TenantPreforkWorker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose result it keeps for a moment, while what depends on others takes longer."""
    job = ended_job(queue)
    with monkeypatch.context() as patched:
        patched.setattr(Aside, "start", lambda *_: False)
        queue.enqueue_dependents(job)
    queue.connection.delete(job.key)
    worker.see_all_dependents_through(20)
    assert queue.job_ids == ["dependent"]


@pytest.mark.parametrize(("result_ttl", "kept"), [(0, [-2]), (100, range(90, 101)), (-1, [-1])])
def test_what_waits_for_another_job_too_is_known_no_longer_than_the_job(
    worker: TenantPreforkWorker, queue: Queue, result_ttl: int, kept: Sequence[int]
) -> None:
    job = ended_job(queue, also=[queue.enqueue(jobs.note, "/dev/null", "start", "plain", "runs never")])
    job.result_ttl = result_ttl
    worker.tell_rq_of_successes([Ended(job, queue, RQEnd(time.time(), time.time(), None))])
    worker.see_all_dependents_through(20)
    assert "dependent" not in queue.job_ids, "the control: it waits"
    assert queue.connection.ttl(job.dependents_key) in kept
    assert queue.connection.ttl(job.key) in kept


def test_they_are_written_to_no_transaction_of_another_process(worker: TenantPreforkWorker, queue: Queue) -> None:
    job = ended_job(queue)
    with queue.connection.pipeline() as pipeline, pytest.raises(AssertionError, match="never be sent"):
        queue.enqueue_dependents(job, pipeline=pipeline)


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


def test_one_that_is_to_end_at_once_says_so_too(
    worker: TenantPreforkWorker, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A second signal comes while it still waits for something else."""

    def to_end_at_once(self: SweepingWorker) -> None:
        raise SystemExit

    monkeypatch.setattr(Aside, "start", lambda *_: False)
    monkeypatch.setattr(SweepingWorker, "_part", to_end_at_once)
    left: list[bool] = []
    monkeypatch.setattr("tenant_slots.fair_order.leave", lambda *_, is_over: left.append(is_over))
    job = ended_job(queue)
    queue.enqueue_dependents(job)
    with pytest.raises(SystemExit):
        worker._part()
    assert [one.levelname for one in caplog.records if job.id in one.getMessage()] == ["WARNING"]
    assert left == [True], "and no tenant's turn is kept for it"
