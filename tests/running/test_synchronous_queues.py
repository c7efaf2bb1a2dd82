"""RQ can run a job where it is enqueued: in a view, in a thread of it, or inside another job's function."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings
from rq import Queue
from rq.job import JobStatus
from rq.worker import BaseWorker, SimpleWorker

from tenant_slots import tenant_job
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests.factories import burst, fresh, owner, running_job, tenant_queue, work
from tests.history import History
from tests.jobs import note, wait_for_door
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

slots_seen: list[int] = []
may_end = threading.Event()


def slots_in_use() -> int:
    return sum(TenantQueue.objects.values_list("current_job", flat=True))


@tenant_job("imports", tenant="tenant")
def look(tenant: str | None, error: str = "") -> None:
    slots_seen.append(slots_in_use())
    if error:
        raise ValueError(error)


@tenant_job("imports", tenant="tenant")
def for_each(tenant: str | None) -> None:
    """Without a tenant it calls itself for three."""
    if tenant is not None:
        slots_seen.append(slots_in_use())
        return
    for one in ("a", "b", "c"):
        for_each(one)


@tenant_job("imports", tenant="tenant")
def wait(tenant: str) -> None:
    slots_seen.append(slots_in_use())
    assert may_end.wait(10)


@tenant_job("imports", tenant="tenant")
def sleep(tenant: str, seconds: float) -> None:
    time.sleep(seconds)


@tenant_job("imports", tenant="tenant")
def run_another_and_go_on(tenant: str, history: str, path: str) -> None:
    """A job with a slot that runs a job of another tenant, then goes on for as long as there is no such file."""
    note(history, "start", tenant, "outer")
    synchronous().enqueue(sleep, "zenith", 0.0)
    wait_for_door(path)
    note(history, "end", tenant, "outer")


@tenant_job("imports", tenant="tenant")
def enqueue_next(tenant: str, more: int) -> None:
    slots_seen.append(slots_in_use())
    if more > 1:
        enqueue_next.enqueue(tenant, more - 1)


@tenant_job("reports", tenant="tenant")
def report(tenant: str) -> None:
    slots_seen.append(slots_in_use())


@tenant_job("imports", tenant="tenant")
def have_it_reported(tenant: str) -> None:
    report.enqueue(tenant)


def run_another(seconds: float) -> None:
    """A function of plain RQ that is no tenant's."""
    synchronous().enqueue(sleep, "acme", seconds)


def synchronous() -> Queue:
    return Queue("imports", connection=django_rq.get_connection("imports"), is_async=False)


@tenant_job("imports", tenant="tenant")
def look_at_alarm(tenant: str, nested: str) -> list[Any]:
    """The seconds that it has before and after another job, and whether it is the same alarm."""
    before, handler = signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM)
    synchronous().enqueue(NESTED[nested], "zenith")
    return [before, signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM) == handler]


@tenant_job("imports", tenant="tenant")
def leave_transaction(tenant: str) -> None:
    connection.cursor().execute("BEGIN")


@tenant_job("imports", tenant="tenant", on_success=lambda job, result: None)
def is_followed(tenant: str) -> None: ...


@tenant_job("imports", tenant="tenant")
def fail(tenant: str) -> None:
    raise ValueError(tenant)


NESTED = {"ends well": look, "fails": fail, "leaves a transaction": leave_transaction, "is followed": is_followed}


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker, SimpleWorker])
@pytest.mark.parametrize("nested", NESTED)
def test_the_job_around_keeps_its_timeout(nested: str, worker_class: type[BaseWorker]) -> None:
    job = look_at_alarm.enqueue("acme", nested)
    burst(worker_class)
    assert fresh(job).state == State.FINISHED, job.error
    before, after, is_same = job.result
    assert (before - 60 < after < before, is_same) == (True, True)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    slots_seen.clear()
    may_end.clear()


@pytest.mark.parametrize("error", ["", "no such feed"])
def test_a_job_that_is_run_again_takes_a_slot_again(error: str) -> None:
    queue = synchronous()
    job = queue.enqueue(look, "acme", error)
    queue.enqueue_job(job)
    assert slots_seen == [1, 1]
    assert (TenantJob.objects.count(), slots_in_use()) == (2, 0)


def test_a_job_that_is_run_again_while_its_tenant_is_paused_does_not_start() -> None:
    queue = synchronous()
    job = queue.enqueue(look, "acme")
    TenantQueue.objects.get().pause()
    queue.enqueue_job(job)
    assert slots_seen == [1]


def test_a_job_without_a_tenant_that_calls_itself_for_some_runs_for_each_of_them_whoever_is_busy() -> None:
    """As any call inside a job. RQ would take no notice of what such a call is told while its tenant is busy."""
    running_job(tenant_queue("a"), owner())
    job = django_rq.get_queue("imports").enqueue(for_each, None)
    work()
    assert slots_seen == [1, 1, 1]
    assert TenantJob.objects.count() == 1
    assert job.get_status(refresh=True) == JobStatus.FINISHED


def test_control_a_job_for_a_tenant_that_it_enqueues_on_a_synchronous_queue_takes_a_slot() -> None:
    queue = synchronous()
    queue.enqueue(look, None)
    queue.enqueue(look, "acme")
    assert slots_seen == [0, 1]


def made_synchronous(*names: str) -> Any:
    own = {name: {**options, "ASYNC": name not in names} for name, options in settings.RQ_QUEUES.items()}
    return override_settings(RQ_QUEUES=own)


@pytest.mark.usefixtures("no_workers")
def test_a_job_that_enqueues_into_another_synchronous_queue_has_it_run() -> None:
    with made_synchronous("imports", "reports"):
        have_it_reported.enqueue("acme")
    assert set(TenantJob.objects.values_list("state", flat=True)) == {State.FINISHED}
    assert slots_seen == [2]


@pytest.mark.usefixtures("no_workers")
def test_a_job_on_a_synchronous_queue_that_enqueues_for_a_worker_has_it_pushed() -> None:
    with made_synchronous("imports"):
        have_it_reported.enqueue("acme")
    assert TenantJob.objects.get(task__endswith="report").state == State.QUEUED


@pytest.mark.usefixtures("no_workers")
def test_a_job_that_enqueues_into_its_own_synchronous_queue_does_not_run_it_inside_of_itself() -> None:
    with made_synchronous("imports"):
        enqueue_next.enqueue("acme", 3)
    assert set(TenantJob.objects.values_list("state", flat=True)) == {State.FINISHED}
    assert slots_seen == [1, 1, 1]


def test_a_second_delivery_in_another_thread_of_the_process_leaves_the_run_alone() -> None:
    def enqueue() -> None:
        synchronous().enqueue(wait, "acme", job_id="nightly")
        connection.close()

    first, second = (threading.Thread(target=enqueue) for _ in range(2))
    first.start()
    wait_until(lambda: slots_seen)
    second.start()
    second.join(10)
    assert list(TenantJob.objects.values_list("state", "error")) == [(State.RUNNING, "")]
    may_end.set()
    first.join(10)
    assert slots_seen == [1]
    assert list(TenantJob.objects.values_list("state", "error")) == [(State.FINISHED, "")]


@pytest.fixture
def outer(history: History, tmp_path: Path) -> Iterator[Callable[[str], TenantJob]]:
    """A job under workers of a class, which has run another one and goes on until there is the file "go on"."""
    workers = Workers(TEST_TENANT_SLOTS='{"SWEEP_INTERVAL": 1, "LEASE_TTL": 2, "BEAT_INTERVAL": 1}')

    def start(worker_class: str) -> TenantJob:
        workers.start(2, worker_class=worker_class)
        job = run_another_and_go_on.enqueue("acme", history.path, str(tmp_path / "go on"))
        wait_until(lambda: TenantJob.objects.filter(tenant_queue__tenant="zenith", state=State.FINISHED).exists())
        return job

    yield start
    workers.stop()


@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_a_job_that_runs_another_one_keeps_its_own_slot_and_lease(
    outer: Callable[[str], TenantJob], history: History, tmp_path: Path, kind: str
) -> None:
    job = outer(f"tenant_slots.workers.Tenant{kind}")
    heard_of = fresh(job).beat_at
    wait_until(lambda: (fresh(job).beat_at - heard_of).total_seconds() > 4, message="its heartbeats must go on")
    (tmp_path / "go on").touch()
    wait_until(lambda: fresh(job).has_ended)
    assert (job.state, job.attempt, job.crashes, job.error) == (State.FINISHED, 1, 0, "")
    assert history.started() == ["outer"]


@pytest.mark.parametrize("kind", ["PreforkWorker", "SimpleWorker"])
def test_control_a_job_whose_run_is_noted_where_that_of_another_one_was_loses_both(
    outer: Callable[[str], TenantJob], history: History, tmp_path: Path, kind: str
) -> None:
    job = outer(f"tests.workers.classes.OneWitness{kind}")
    wait_until(lambda: fresh(job).attempt == 2)
    (tmp_path / "go on").touch()
    wait_until(lambda: fresh(job).has_ended)
    assert job.interruptions == 1
    assert history.started() == ["outer", "outer"]


class TestInsideAWorker:
    """Only a sweep could help without the worker that watches, and there is none for a minute."""

    @pytest.fixture
    def run(self) -> Iterator[TenantJob]:
        workers = Workers(TEST_TENANT_SLOTS='{"SWEEP_INTERVAL": 60, "LEASE_TTL": 60, "BEAT_INTERVAL": 1}')
        tenant_queue()
        workers.start()
        django_rq.get_queue("imports").enqueue(run_another, 60)
        wait_until(TenantJob.objects.running().first)
        yield TenantJob.objects.get()
        workers.stop()

    def test_its_slot_comes_back_when_the_process_dies(self, run: TenantJob) -> None:
        os.kill(run.horse, signal.SIGKILL)
        wait_until(lambda: not slots_in_use(), timeout=20)

    def test_it_can_be_canceled(self, run: TenantJob) -> None:
        assert run.cancel()
        wait_until(lambda: fresh(run).state == State.CANCELED, timeout=20)

    def test_it_sends_heartbeats(self, run: TenantJob) -> None:
        before = run.beat_at
        wait_until(lambda: fresh(run).beat_at > before, timeout=20)
