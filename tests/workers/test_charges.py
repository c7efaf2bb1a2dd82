"""What a tenant is charged of runs that end badly: worker time is worker time, whoever ends a run and however."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from itertools import accumulate

import django_rq
import pytest

from tenant_slots import fair_order, signals, tenant_job
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, turns
from tests import jobs
from tests.factories import redis_forgets, tenant_queue, work
from tests.history import History

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker] | type[TenantSimpleWorker]

ALL_CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])


def run(worker_class: Worker) -> None:
    queue = django_rq.get_queue("imports")
    worker = worker_class([queue], connection=django_rq.get_connection("imports"))
    worker.work(burst=True, logging_level="ERROR")


@CLASSES
def test_jobs_that_kill_their_process_gain_their_tenant_no_turns(worker_class: Worker, history: History) -> None:
    """Each of them is run four times."""
    for tenant in ("crasher", "neighbour"):
        tenant_queue(tenant, max_job=5)
    redis_forgets()
    jobs.kill_self.enqueue_many([(("crasher", history.path, 0.2), {}) for _ in range(3)])
    jobs.record.enqueue_many([(("neighbour", f"{nth}", history.path, 0.2), {}) for nth in range(12)])
    run(worker_class)
    starts = [event.tenant for event in history.events() if event.kind == "start"]
    ahead = list(accumulate(1 if tenant == "crasher" else -1 for tenant in starts))
    assert max(ahead) <= 3, starts
    assert min(ahead) >= -9, "a crash takes longer than a job by what follows, not by far"
    assert len(starts) == 24


@tenant_job("imports", tenant="tenant")
def write_no_files(tenant: str, history: str, seconds: float) -> None:
    """Its work-horse can hand the end to nobody, and records it itself."""
    jobs.note(history, "start", tenant, "write_no_files")
    time.sleep(seconds)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@CLASSES
def test_a_job_whose_work_horse_records_its_end_is_charged_what_it_has_taken(
    worker_class: Worker, history: History
) -> None:
    for tenant in ("sandboxed", "neighbour"):
        tenant_queue(tenant, max_job=5)
    redis_forgets()
    write_no_files.enqueue_many([(("sandboxed", history.path, 0.2), {}) for _ in range(6)])
    jobs.record.enqueue_many([(("neighbour", f"{nth}", history.path, 0.2), {}) for nth in range(18)])
    run(worker_class)
    starts = [event.tenant for event in history.events() if event.kind == "start"]
    ahead = list(accumulate(1 if tenant == "sandboxed" else -1 for tenant in starts))
    assert max(ahead) <= 3, starts
    assert min(ahead) >= -13, "its last ones are not left for the end"


@pytest.fixture
def _slow_receiver() -> Iterator[None]:
    def hear(**_: object) -> None:
        time.sleep(0.2)

    signals.job_ended.connect(hear)
    yield
    signals.job_ended.disconnect(hear)


@pytest.mark.usefixtures("_slow_receiver")
@ALL_CLASSES
def test_receivers_that_keep_a_worker_are_charged_to_the_tenant_whose_job_has_ended(
    worker_class: Worker, history: History
) -> None:
    """Each job of the first one has its worker for 0.2 s, and each one of the second for 0.4."""
    for tenant in ("short", "long"):
        tenant_queue(tenant, max_job=5)
    redis_forgets()
    jobs.record.enqueue_many([(("short", f"{nth}", history.path, 0.0), {}) for nth in range(16)])
    jobs.record.enqueue_many([(("long", f"{nth}", history.path, 0.2), {}) for nth in range(6)])
    run(worker_class)
    starts = [event.tenant for event in history.events() if event.kind == "start"]
    assert 6 <= starts[:14].count("short") <= 11, starts


@pytest.mark.usefixtures("_slow_receiver", "no_workers")
def test_so_are_those_that_keep_a_worker_of_rqs_own(history: History) -> None:
    for tenant in ("short", "long"):
        tenant_queue(tenant, max_job=5)
    jobs.record.enqueue_many([(("short", f"{nth}", history.path, 0.0), {}) for nth in range(16)])
    jobs.record.enqueue_many([(("long", f"{nth}", history.path, 0.2), {}) for nth in range(6)])
    work("imports")
    starts = [event.tenant for event in history.events() if event.kind == "start"]
    assert 6 <= starts[:14].count("short") <= 11, starts


@pytest.fixture
def _slow_receiver_of_crashes() -> Iterator[None]:
    def hear(**_: object) -> None:
        time.sleep(0.3)

    signals.job_put_back.connect(hear)
    yield
    signals.job_put_back.disconnect(hear)


@pytest.mark.usefixtures("_slow_receiver_of_crashes")
@CLASSES
def test_receivers_that_keep_a_worker_after_a_crash_are_charged_too(worker_class: Worker, history: History) -> None:
    """They are called aside, while the worker waits for the slot. Each crash takes as long as a neighbour's job."""
    for tenant in ("crasher", "neighbour"):
        tenant_queue(tenant, max_job=5)
    redis_forgets()
    jobs.kill_self.enqueue_many([(("crasher", history.path, 0.0), {}) for _ in range(3)])
    jobs.record.enqueue_many([(("neighbour", f"{nth}", history.path, 0.4), {}) for nth in range(12)])
    run(worker_class)
    starts = [event.tenant for event in history.events() if event.kind == "start"]
    assert 4 <= starts[:12].count("crasher") <= 8, starts


def test_the_time_between_two_jobs_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an execution that an error has ended."""
    told: list[object] = []
    monkeypatch.setattr(fair_order, "cost", lambda *cost: told.append(cost))
    monkeypatch.setattr(turns, "SECONDS_TO_CHARGE", 0)
    worker = TenantPreforkWorker([django_rq.get_queue("imports")], connection=django_rq.get_connection("imports"))
    slot = fair_order.Freed(tenant_queue(max_job=0).pk, 1.0, "imports")

    def fail() -> None:
        with worker.charging_what_follows():
            worker.free(slot)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with worker.charging_what_follows():
        pass
    assert not told
    with worker.charging_what_follows():
        worker.free(slot)
    assert len(told) == 1
