"""The checks can fail: the same observer, against plain RQ and against naive SQL."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.db import connection
from django.utils.module_loading import import_string
from rq.registry import StartedJobRegistry
from rq.utils import now as rq_now

from tenant_slots import fleet, statements
from tenant_slots.db.clock import in_seconds
from tenant_slots.locks import locked
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import tenant_queue, waiting_job
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import PROMISE, Observer, observed, runs, ticks_of
from tests.faults.workers import CHOSEN
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def unasked(transactional_db: None, tmp_path: Path) -> Observer:
    """An observer whose breaches are what the test wants to see."""
    return Observer(tmp_path / "history")


def plain(observer: Observer, *names: str, path: Path) -> None:
    for name in names:
        django_rq.get_queue("imports").enqueue(jobs.not_a_tenants, observer.path, name, str(path))


def test_a_worker_for_which_no_class_is_named_is_of_the_chosen_one(workers: FaultWorkers, tmp_path: Path) -> None:
    """Else `faults-prefork` would test what `faults` does."""
    workers.start()
    workers.start(worker_class="tests.faults.workers.ElsewhereWorker")
    workers.start(worker_class=workers.with_sabotage("tenant_slots.slots:start before pause", tmp_path / "unarmed"))
    classes = [import_string(member.worker_class) for member in fleet.known("imports").of("imports")]
    chosen = import_string(CHOSEN)
    assert len(classes) == 3
    assert chosen in classes
    assert all(issubclass(each, chosen) for each in classes)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no server that ends sessions")
def test_no_session_of_the_tests_own_process_is_ended_for_standing_still() -> None:
    """Of a worker it is, after half a lease, which is a second here: less than a busy machine takes for others."""
    row = tenant_queue()
    with locked(row.pk), connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        assert cursor.fetchone() == ("0",)


def test_control_i1_plain_rq_runs_a_tenants_jobs_side_by_side(
    workers: FaultWorkers, unasked: Observer, door: Path
) -> None:
    workers.start(2, worker_class="rq.Worker")
    plain(unasked, "one", "two", path=door)
    unasked.process_of("one")
    unasked.process_of("two")
    door.touch()
    unasked.limits["plain"] = 1
    wait_until(lambda: unasked.ended("one") and unasked.ended("two"))
    assert any("I1" in breach for breach in unasked.breaches())


def test_control_i3_plain_rq_loses_the_job_of_a_killed_worker(
    workers: FaultWorkers, unasked: Observer, tmp_path: Path
) -> None:
    armed = tmp_path / "armed"
    workers.variables |= {"TEST_SABOTAGE": "rq.worker:BaseWorker.prepare_execution before SIGKILL"}
    workers.variables |= {"TEST_SABOTAGE_FILE": str(armed)}
    (unlucky,) = workers.start(
        1, queues=("imports_bulk", "imports"), worker_class="tests.faults.workers.SabotagedStockWorker"
    )
    armed.touch()
    plain(unasked, "lost", path=tmp_path)
    unlucky.wait(20)
    workers.start(1, worker_class="rq.Worker")
    plain(unasked, "next", path=tmp_path)
    wait_until(lambda: unasked.ended("next"))
    assert unasked.started() == ["next"]


def test_control_i3_plain_rq_forgets_everything_with_flushall(
    workers: FaultWorkers, unasked: Observer, tmp_path: Path
) -> None:
    plain(unasked, "forgotten", path=tmp_path)
    django_rq.get_connection("imports").flushall()
    workers.start(1, worker_class="rq.Worker")
    plain(unasked, "next", path=tmp_path)
    wait_until(lambda: unasked.ended("next"))
    assert unasked.started() == ["next"]


def test_control_i4_plain_rq_runs_an_abandoned_looking_job_twice_at_once(
    workers: FaultWorkers, unasked: Observer, door: Path
) -> None:
    from rq import Retry

    workers.start(2, worker_class="rq.Worker")
    queue = django_rq.get_queue("imports")
    queue.enqueue(jobs.not_a_tenants, unasked.path, "long", str(door), retry=Retry(max=3))
    unasked.process_of("long")
    registry = StartedJobRegistry("imports", connection=django_rq.get_connection("imports"))
    for execution in registry.connection.zrange(registry.key, 0, -1):
        registry.connection.zadd(registry.key, {execution: rq_now().timestamp() - 100})
    registry.cleanup()
    unasked.process_of("long", run=2)
    wait_until(lambda: any("I4" in breach for breach in unasked.breaches()))
    door.touch()


def test_control_i6_a_counter_that_is_changed_apart_from_its_rows_is_seen(observer: Observer) -> None:
    row = tenant_queue()
    statements.TAKE.update(pk=row.pk, slots=1)
    wait_until(lambda: any("I6" in breach for breach in observer.watched))
    assert any("I6" in breach for breach in observer.breaches())
    TenantQueue.objects.update(current_job=0)
    observer.watched.clear()


def test_control_i5_an_admission_out_of_order_is_seen(unasked: Observer) -> None:
    row = tenant_queue(max_job=2)
    first, second = waiting_job(row), waiting_job(row)
    for job, seconds in ((first, 0), (second, -60)):
        TenantJob.objects.filter(pk=job.pk).update(state=State.FINISHED, attempt=1, admitted_at=in_seconds(seconds))
    assert any("I5" in breach for breach in unasked.breaches())


def test_control_i2_i7_what_lasts_longer_than_the_promise_is_seen(observer: Observer) -> None:
    from tests.factories import dead_process, running_job

    observer.promise = 0.2
    observer.workers = lambda: 2  # one of which is idle
    running_job(tenant_queue("dead"), dead_process())
    waiting_job(tenant_queue("stranded"))
    wait_until(lambda: {breach[:2] for breach in observer.watched} == {"I2", "I7"})
    observer.watched.clear()
    TenantJob.objects.all().delete()
    TenantQueue.objects.update(current_job=0)
    wait_until(lambda: True)
    observer.watched.clear()


@pytest.mark.parametrize(
    ("started", "is_a_breach"),
    [
        ([("acme", 1), ("acme", 2)], False),
        ([("acme", 1), ("acme", 1)], True),
        ([("other", 1), ("other", 2)], True),
        ([("acme", 1, -PROMISE - 1), ("acme", 2, -PROMISE - 1)], True),
    ],
    ids=["on both workers", "on one of two", "another tenant's", "on both, but not lately"],
)
def test_control_i7_jobs_that_start_between_two_samples_are_seen(
    unasked: Observer, started: list[tuple[Any, ...]], is_a_breach: bool
) -> None:
    unasked.workers = lambda: 2
    waiting_job(tenant_queue("acme"))
    unasked._look()
    for tenant, worker, *later in started:
        nanoseconds = time.time_ns() + int(sum(later) * 1e9)
        with Path(unasked.path).open("a") as history:
            history.write(f"{nanoseconds} {worker} 1 under-{worker} {tenant} quick\n")
    unasked._since = {what: since - 2 * PROMISE for what, since in unasked._since.items()}
    unasked._look()
    assert any("I7" in breach for breach in unasked.watched) is is_a_breach


def test_control_a_run_by_a_process_that_is_dead_or_stopped_is_not_counted(unasked: Observer) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    wait_until(lambda: runs(child.pid, ticks_of(child.pid)[1]))
    line = f"{time.time_ns()} {child.pid} {ticks_of(child.pid)[1]} start acme child\n"
    Path(unasked.path).write_text(line)
    with observed(unasked.path, "acme", "other"):
        pass
    assert [event.name for event in unasked.events() if event.kind == "beside-1"] == ["other"]
    child.kill()
    child.wait()
    with observed(unasked.path, "acme", "child"):
        pass
    assert not [event for event in unasked.events() if event.kind == "twice"]
    assert [event.name for event in unasked.events() if event.kind == "beside-0"] == ["child"]
