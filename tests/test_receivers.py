"""A tenant queue with jobs that have not ended cannot be deleted; and what receivers of the project may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django_rq
import pytest
from django.dispatch import Signal
from rq import SimpleWorker, Worker
from rq.timeouts import JobTimeoutException

from tenant_slots import signals
from tenant_slots.exceptions import TenantQueueInUse
from tenant_slots.interruptions import NOT_OF_THE_CODE, SweepTimeout
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests import jobs
from tests.factories import dead_process, fresh, running_job, tenant_queue, waiting_job, work
from tests.proxies import proxy_of
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_row_with_jobs_cannot_be_deleted() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    jobs.add.enqueue(1, 2, tenant="acme")
    with pytest.raises(TenantQueueInUse, match=r"1 jobs hold its slots and 1 wait"):
        TenantQueue.objects.get().delete()
    with pytest.raises(TenantQueueInUse):
        TenantQueue.objects.all().delete()
    assert TenantJob.objects.count() == 2


def test_nor_by_way_of_a_proxy_of_the_project() -> None:
    """Django tells of its deletion under the proxy's name."""
    job = waiting_job(tenant_queue())
    with proxy_of(TenantQueue) as proxy:
        with pytest.raises(TenantQueueInUse):
            proxy.objects.get().delete()
        with pytest.raises(TenantQueueInUse):
            proxy.objects.all().delete()
        assert job.cancel()
        proxy.objects.get().delete()
    assert not TenantQueue.objects.exists()


def test_a_row_whose_jobs_have_ended_can_be_deleted_with_them() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    work()
    TenantQueue.objects.get().delete()
    assert not TenantJob.objects.exists()


# --- receivers of the project ---------------------------------------------------------------------------------------


class OfTheProject(BaseException): ...


def exits(**_: Any) -> None:
    raise SystemExit("a receiver has had enough")


@contextmanager
def heard(signal: Signal, *receivers: Any) -> Iterator[None]:
    for receiver in receivers:
        signal.connect(receiver)
    try:
        yield
    finally:
        for receiver in receivers:
            signal.disconnect(receiver)


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, OfTheProject, ValueError])
@pytest.mark.parametrize("name", ["jobs_enqueued", "jobs_admitted", "job_started", "job_ended"])
def test_whatever_a_receiver_raises_is_logged_and_its_job_ends_as_ever(
    name: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    def raises(**_: Any) -> None:
        raise error("no")

    def listens(**_: Any) -> None:
        told.append(name)

    with heard(signals.named(name), listens, raises):
        job = jobs.add.enqueue(1, 2, tenant="acme")
        assert fresh(job).state == State.QUEUED, "it was admitted although others are told of it first"
        work()
    assert fresh(job).state == State.FINISHED
    assert told == [name]
    assert any(record.exc_info and isinstance(record.exc_info[1], error) for record in caplog.records)


@pytest.mark.parametrize("name", ["jobs_enqueued", "jobs_admitted", "job_started", "job_ended"])
def test_where_only_our_log_listens_django_is_asked_for_no_receivers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentry makes a span of each receiver that Django calls. The control has one of the project."""
    asked: list[Signal] = []
    live_receivers = Signal._live_receivers

    def noted(self: Signal, sender: Any) -> Any:
        asked.append(self)
        return live_receivers(self, sender)

    monkeypatch.setattr(Signal, "_live_receivers", noted)
    jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert signals.named(name) not in asked

    def listens(**_: Any) -> None: ...

    with heard(signals.named(name), listens):
        jobs.add.enqueue(1, 2, tenant="acme")
        work()
    assert signals.named(name) in asked


@pytest.mark.parametrize("error", [SystemExit, ValueError])
def test_a_receiver_of_our_own_that_fails_keeps_nobody_from_being_told(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = []

    def listens(**_: Any) -> None:
        told.append("jobs_enqueued")

    monkeypatch.setitem(signals._ours, "jobs_enqueued", [raising(error)])
    with heard(signals.jobs_enqueued, listens):
        jobs.add.enqueue(1, 2, tenant="acme")
    assert told == ["jobs_enqueued"]
    assert any(record.exc_info and isinstance(record.exc_info[1], error) for record in caplog.records)


@pytest.mark.parametrize("error", [error for error in NOT_OF_THE_CODE if error is not SweepTimeout])
def test_whoever_interrupts_one_of_our_own_is_obeyed_once_all_are_told(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def listens(**_: Any) -> None:
        told.append("jobs_enqueued")

    monkeypatch.setitem(signals._ours, "jobs_enqueued", [raising(error)])
    with heard(signals.jobs_enqueued, listens), pytest.raises(error):
        jobs.add.enqueue(1, 2, tenant="acme")
    assert told == ["jobs_enqueued"]


def test_where_one_of_our_own_takes_the_time_of_a_sweep_nobody_else_is_told_who_would_have_no_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []

    def listens(**_: Any) -> None:
        told.append("jobs_enqueued")

    monkeypatch.setitem(signals._ours, "jobs_enqueued", [raising(SweepTimeout)])
    with heard(signals.jobs_enqueued, listens), pytest.raises(SweepTimeout):
        jobs.add.enqueue(1, 2, tenant="acme")
    assert told == []


def raising(error: type[BaseException]) -> Any:
    def receiver(**_: Any) -> None:
        raise error

    return receiver


@pytest.mark.parametrize("error", NOT_OF_THE_CODE)
def test_control_whoever_interrupts_a_receiver_is_obeyed(error: type[BaseException]) -> None:
    def interrupted(**_: Any) -> None:
        raise error

    with heard(signals.jobs_enqueued, interrupted), pytest.raises(error):
        jobs.add.enqueue(1, 2, tenant="acme")
    assert TenantJob.objects.exists()


WORKERS = [TenantPreforkWorker, TenantWorker, TenantSimpleWorker, SimpleWorker, Worker]


def in_tenant_slots() -> object:
    return jobs.add.enqueue(1, 2, tenant="acme")


def in_rq() -> object:
    return django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")


@pytest.mark.parametrize("enqueue", [in_tenant_slots, in_rq])
@pytest.mark.parametrize("worker_class", WORKERS)
def test_a_job_whose_time_a_receiver_takes_before_its_function_is_called_has_failed_with_that(
    worker_class: type[Worker], enqueue: Callable[[], object], no_workers: None
) -> None:
    """Its process has not died, and nobody is left to give its slot back later."""
    enqueue()
    with heard(signals.job_started, raising(JobTimeoutException)):
        work_off(worker_class, "reports")
    job = TenantJob.objects.get()
    assert job.state == State.FAILED
    assert (job.error_class, job.attempt, job.crashes) == ("rq.timeouts.JobTimeoutException", 1, 0)
    assert TenantQueue.objects.get().current_job == 0


def work_off(worker_class: type[Worker], name: str) -> None:
    queue = django_rq.get_queue(name)
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")


def test_a_receiver_that_exits_ends_no_sweep_and_no_change_of_a_limit() -> None:
    row = tenant_queue()
    running_job(row, dead_process())
    with heard(signals.swept, exits), heard(signals.limit_changed, exits):
        assert sweep_now().reclaimed == 1
        assert row.set_limit(3)
    assert fresh(row).max_job == 3
