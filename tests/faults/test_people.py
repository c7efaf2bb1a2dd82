"""What people do: in the product, in django-rq's admin, and with SQL."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import django_rq
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from rq import Worker
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus
from rq.suspension import resume, suspend
from rq.worker import WorkerStatus

from tenant_slots import queue_directory
from tenant_slots.models import State, SweepClaim, TenantJob, TenantQueue
from tests.factories import counters_match, fresh, in_rq, tenant_queue, waiting_job, work
from tests.faults import jobs
from tests.faults.conftest import SHORT, FaultWorkers
from tests.faults.observer import Observer, all_ended
from tests.processes import is_announced, last_rq_id, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def rq_job_of(job: TenantJob) -> Job:
    """Of a job that a worker has taken by itself RQ hears a moment after its start."""
    queue = queue_directory.queue_named("imports")
    wait_until(lambda: queue.fetch_job(last_rq_id(job)) is not None)
    rq_job = queue.fetch_job(job.rq_id)
    assert rq_job is not None
    return rq_job


def sentinel_passes(observer: Observer) -> None:
    """Another tenant's job that takes longer than a lease: whatever the sweep would do wrong, it has done by then."""
    job = jobs.quick.enqueue("sentinel", "sentinel", observer.path, SHORT["LEASE_TTL"] + 1.0)
    wait_until(lambda: fresh(job).has_ended)


def test_i3_i6_canceling_waiting_and_queued_jobs(observer: Observer) -> None:
    queued, waiting = jobs.quick.enqueue_many([(("acme", name, observer.path), {}) for name in ("queued", "waiting")])
    last = jobs.quick.enqueue("acme", "last", observer.path)
    assert waiting.cancel()
    assert queued.cancel()
    assert not queued.cancel()
    assert counters_match()
    work("imports")
    assert observer.started() == ["last"]
    assert [fresh(job).state for job in (queued, waiting, last)] == [State.CANCELED, State.CANCELED, State.FINISHED]


@pytest.mark.parametrize("is_plain", [False, True], ids=["of ours", "plain"])
@pytest.mark.parametrize("worker_class", ["rq.Worker", "tenant_slots.workers.TenantPreforkWorker"])
def test_i3_i6_a_cancel_right_after_the_start_ends_the_run(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, worker_class: str, is_plain: bool
) -> None:
    """Before RQ has heard that the job runs, perhaps. It would run until a file exists, which never does."""
    settings = {**SHORT, "LEASE_TTL": 8}  # or a sweep is given up before it has come to a dead work-horse
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(settings)
    workers.processes.append(workers.start_sweeper())
    wait_until(SweepClaim.objects.exists, message="nobody sweeps")
    workers.start(1, worker_class=worker_class)
    hold = partial(django_rq.get_queue("imports").enqueue, jobs.hold) if is_plain else jobs.hold.enqueue
    for number in range(5):
        hold("acme", f"job{number}", observer.path, str(tmp_path / "never"))
        wait_until(TenantJob.objects.running().exists)
        job = TenantJob.objects.running().get()
        assert job.cancel()
        wait_until(lambda job=job: fresh(job).has_ended)
        assert fresh(job).state == State.CANCELED
    assert all(process.poll() is None for process in workers.processes)
    assert counters_match()


def test_a_job_that_is_canceled_as_a_worker_takes_it_from_rqs_list_costs_no_work_horse(
    workers: FaultWorkers, observer: Observer, tmp_path: Path
) -> None:
    """RQ does not know it any more when the work-horse looks."""
    armed, redis = tmp_path / "armed", django_rq.get_connection("default")
    plan = "tenant_slots.workers.supervisor:Supervisor._begin before pause"
    workers.start(worker_class=workers.with_sabotage(plan, armed, "SabotagedPreforkWorker"))
    jobs.quick.enqueue("acme", "before", observer.path)
    observer.wait_for_all()
    wait_until(lambda: redis.keys("tenant_slots:idle:imports"))
    armed.touch()
    canceled = jobs.quick.enqueue("acme", "canceled", observer.path)
    wait_until(armed.with_suffix(".done").exists)
    assert canceled.cancel()
    armed.with_suffix(".go").touch()
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    before, after = observer.starts()
    assert (before.name, after.name) == ("before", "after")
    assert before.pid == after.pid, "the work-horse has died of it"
    assert not redis.keys(f"*{canceled.uuid}*"), "RQ keeps something of it"
    assert redis.zcard("rq:wip:imports") == 0


def test_i2_i3_canceling_a_running_job_frees_its_slot_when_it_has_ended(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start()
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    after = jobs.quick.enqueue("acme", "after", observer.path)
    observer.process_of("long")
    assert job.cancel()
    observer.wait_for_all()
    assert (fresh(job).state, fresh(after).state) == (State.CANCELED, State.FINISHED)
    assert observer.started() == ["long", "after"]


def test_i3_a_canceled_job_that_raises_before_it_is_stopped_is_not_tried_again(
    workers: FaultWorkers, observer: Observer
) -> None:
    """It has retries left, and somebody was told that it is canceled."""
    workers.start(1, worker_class="tenant_slots.workers.TenantSimpleWorker")  # nothing stops it there
    job = jobs.cancel_self_and_raise.enqueue("acme", "raises", observer.path)
    observer.wait_for_all()
    assert observer.started() == ["raises"]
    assert fresh(job).state in (State.CANCELED, State.FAILED)


def test_i2_i3_rqs_stop_command_cancels_the_job(workers: FaultWorkers, observer: Observer, door: Path) -> None:
    workers.start()
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.process_of("long")
    wait_until(lambda: is_announced(job))
    send_stop_job_command(queue_directory.queue_named("imports").connection, fresh(job).rq_id)
    observer.wait_for_all()
    assert fresh(job).state == State.CANCELED
    assert observer.started() == ["long", "after"]


@pytest.mark.parametrize(
    ("name", "lives"), [("NotingCommandsWorker", True), pytest.param("KillingAsRQWorker", False, id="control")]
)
def test_i2_i3_a_second_stop_of_a_job_whose_work_horse_has_ended_kills_no_pool(
    workers: FaultWorkers, observer: Observer, door: Path, tmp_path: Path, name: str, lives: bool
) -> None:
    """Its workers are one group of processes with it. For RQ the job still runs, in the work-horse number 0."""
    armed, heard, redis = tmp_path / "armed", tmp_path / "heard", django_rq.get_connection("imports")
    armed.touch()
    worker_class = workers.with_sabotage("rq.worker:BaseWorker.handle_job_failure before pause", armed, name)
    workers.variables["TEST_HEARD"] = str(heard)
    pool = workers.start_pool(worker_class)
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    wait_until(lambda: is_announced(job))
    rq_id = fresh(job).rq_id
    send_stop_job_command(redis, rq_id)
    wait_until(lambda: armed.with_suffix(".done").exists() and heard.exists())
    send_stop_job_command(redis, rq_id)
    wait_until(lambda: pool.poll() is not None or len(heard.read_text().splitlines()) == 2)
    assert (pool.poll() is None) is lives
    armed.with_suffix(".go").touch()
    if lives:
        jobs.quick.enqueue("acme", "after", observer.path)
        observer.wait_for_all()
        assert fresh(job).state == State.CANCELED


def delete(job: Job) -> None:
    job.delete()


def empty(job: Job) -> None:
    queue_directory.queue_named(job.origin).empty()


def requeue(job: Job) -> None:
    job.set_status(JobStatus.FAILED)
    job.failed_job_registry.add(job, 100)
    job.requeue()


def enqueue_again(job: Job) -> None:
    """django-rq's "Enqueue" action."""
    queue_directory.queue_named(job.origin).enqueue_job(job)


def cancel_in_rq(job: Job) -> None:
    job.cancel()


ACTIONS = [delete, empty, requeue, enqueue_again, cancel_in_rq]


@pytest.mark.parametrize("action", ACTIONS)
def test_i1_i3_i4_what_the_admin_of_django_rq_does_to_a_queued_job(
    workers: FaultWorkers, observer: Observer, action: Callable[[Job], None]
) -> None:
    job = jobs.quick.enqueue("acme", "queued", observer.path)
    jobs.quick.enqueue("acme", "waiting", observer.path)
    action(rq_job_of(job))
    workers.start(2)
    observer.wait_for_all()
    assert observer.started() == ["queued", "waiting"]


@pytest.mark.parametrize("action", ACTIONS)
def test_i1_i3_i4_what_the_admin_of_django_rq_does_to_a_running_job(
    workers: FaultWorkers, observer: Observer, door: Path, action: Callable[[Job], None]
) -> None:
    workers.start(2)
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    waiting = jobs.quick.enqueue("acme", "waiting", observer.path)
    observer.process_of("long")
    action(rq_job_of(job))
    sentinel_passes(observer)
    assert observer.started() == ["long", "sentinel"]
    assert (fresh(job).state, fresh(waiting).state) == (State.RUNNING, State.WAITING)
    door.touch()
    observer.wait_for_all()
    assert fresh(job).state == State.FINISHED


@pytest.fixture
def admin(transactional_db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def test_i1_i4_the_buttons_of_django_rqs_admin_themselves(
    admin: Client, workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start(2)
    job = jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    index = list(django_rq.utils.get_statistics()["queues"])
    number = next(place for place, queue in enumerate(index) if queue["name"] == "imports")
    rq_id = fresh(job).rq_id
    wait_until(lambda: Job.exists(rq_id, django_rq.get_connection("imports")), message="RQ was not told of the job")
    for button in ("django_rq:enqueue_job", "django_rq:delete_job"):
        assert admin.post(reverse(button, args=[number, rq_id])).status_code in (200, 302)
    assert admin.post(reverse("django_rq:clear", args=[number])).status_code in (200, 302)
    sentinel_passes(observer)
    assert observer.started() == ["long", "sentinel"]
    door.touch()
    observer.wait_for_all()
    assert fresh(job).state == State.FINISHED


def test_i3_a_dependency_chain_at_a_limit_of_one(workers: FaultWorkers, observer: Observer) -> None:
    """Plain RQ: each link fires when the one before has really run, not when it deferred itself."""
    workers.start(2, "--with-scheduler")
    queue = django_rq.get_queue("imports")
    previous = None
    for name in ("first", "second", "third"):
        previous = queue.enqueue(jobs.quick, "acme", name, observer.path, 0.1, depends_on=previous)
    jobs.quick.enqueue("acme", "ours", observer.path, 0.1)
    wait_until(lambda: TenantJob.objects.filter(state=State.FINISHED).count() == 4)
    assert [name for name in observer.started() if name != "ours"] == ["first", "second", "third"]


def test_i3_i6_i7_suspended_workers_repair_all_the_same(workers: FaultWorkers, observer: Observer) -> None:
    settings = {**SHORT, "LEASE_TTL": 8}  # or a sweep is killed after a second, which it may take on a loaded machine
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps(settings)
    redis = django_rq.get_connection("imports")
    workers.start()
    suspend(redis)
    try:
        wait_until(lambda: [one.get_state() for one in Worker.all(connection=redis)] == [WorkerStatus.SUSPENDED])
        jobs.quick.enqueue("acme", "after", observer.path)
        TenantQueue.objects.update(current_job=5)
        wait_until(counters_match, 10, "nobody sweeps while the workers are suspended")
        assert observer.started() == []
    finally:
        resume(redis)
    observer.wait_for_all()
    observer.watched = [breach for breach in observer.watched if "I6" not in breach]  # that was us


@pytest.mark.parametrize("wrong", [0, 5])
def test_i6_i7_a_counter_set_wrong_by_sql_is_repaired_while_jobs_run(
    workers: FaultWorkers, observer: Observer, door: Path, wrong: int
) -> None:
    workers.start(2)
    jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenant_slots_tenantqueue SET current_job = %s", [wrong])
    wait_until(counters_match, 10, "the sweep did not repair the counter")
    door.touch()
    jobs.quick.enqueue("acme", "after", observer.path)
    observer.wait_for_all()
    observer.watched = [breach for breach in observer.watched if "I6" not in breach]  # that was us


def test_i3_i8_a_tenants_row_that_is_deleted_by_sql_while_its_job_runs(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    (worker,) = workers.start()
    jobs.hold.enqueue("acme", "long", observer.path, str(door))
    observer.process_of("long")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenant_slots_tenantjob")
        cursor.execute("DELETE FROM tenant_slots_tenantqueue")
    door.touch()
    jobs.quick.enqueue("other", "other", observer.path)
    observer.wait_for_all()
    assert worker.poll() is None


def test_i3_a_retry_with_an_interval_needs_no_scheduler_and_holds_no_slot(observer: Observer) -> None:
    job = jobs.raise_once.enqueue("acme", "flaky", observer.path)
    other = jobs.quick.enqueue("acme", "other", observer.path)
    work("imports")
    assert (fresh(job).state, fresh(other).state) == (State.SCHEDULED, State.FINISHED)
    assert counters_match()


def test_i3_i5_a_failed_job_that_is_retried_takes_its_old_position(observer: Observer) -> None:
    row = tenant_queue("acme", max_job=0)
    failed = waiting_job(row, state=State.FAILED, error="once")
    later = jobs.quick.enqueue("acme", "later", observer.path)
    TenantJob.objects.filter(pk=failed.pk).update(
        task="tests.faults.jobs.quick", args=["acme", "failed", observer.path]
    )
    failed.retry()
    row.max_job = 1
    row.save()
    work("imports")
    assert observer.started() == ["failed", "later"]
    assert fresh(later).state == State.FINISHED


def test_i3_stopping_every_worker_and_starting_them_again(workers: FaultWorkers, observer: Observer) -> None:
    jobs.quick.enqueue_many([((tenant, f"{tenant}{n}", observer.path, 0.05), {}) for tenant in "ab" for n in range(10)])
    workers.start(2)
    wait_until(lambda: len(observer.started()) > 5)
    for index in range(2):
        workers.kill(index, signal.SIGTERM)
    for process in workers.processes:
        assert process.wait(15) == 0
    assert counters_match()
    workers.start(2)
    wait_until(all_ended)
    assert len(observer.started()) == 20
    assert in_rq() == 0
    assert TenantQueue.objects.filter(current_job=0).count() == 2
