"""Jobs that come through plain RQ take a slot inside their function, whatever class the worker has."""

from __future__ import annotations

import django_rq
import psycopg
import pytest
from django.db import connection
from django.test import override_settings
from rq.job import Job, JobStatus
from rq.results import Result
from rq.utils import now

from tenant_slots import dispatch, rq_copies, slots, tenants, transitions
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.repair import lost_runs
from tenant_slots.running import beside, plain_rq
from tenant_slots.running.run import Run
from tenant_slots.testing import run_jobs
from tests import jobs
from tests.factories import (
    DeafWorker,
    admit,
    age,
    another_process,
    counters_match,
    end_run,
    fresh,
    in_rq,
    in_thread,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.processes import test_database_url as database_url
from tests.sleeping import replace_sleep

pytestmark = pytest.mark.django_db(transaction=True)


def scheduled() -> list[str]:
    ids: list[str] = django_rq.get_queue("reports").scheduled_job_registry.get_job_ids()
    return ids


def test_a_plain_rq_job_takes_a_slot_and_gives_it_back() -> None:
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert rq_job.return_value() == 3
    job = TenantJob.objects.get()
    assert (job.state, job.rq_job_id, job.args) == (State.FINISHED, rq_job.id, [])
    assert TenantQueue.objects.get().current_job == 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_plain_rq_job_whose_tenant_queue_is_deleted_meanwhile_makes_it_anew(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time there is somebody who deletes a row as soon as it is made: that job fails, and says so."""
    row = tenant_queue(queue="reports")
    look, deleted = tenants.tenant_queue_for, []

    def look_then_delete(tenant: str, queue: str) -> TenantQueue:
        found = look(tenant, queue)
        if len(deleted) < times:
            deleted.append(in_thread(TenantQueue.objects.get(pk=found.pk).delete))
        return found

    monkeypatch.setattr(tenants, "tenant_queue_for", look_then_delete)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert rq_job.get_status() == (JobStatus.FINISHED if times == 1 else JobStatus.FAILED)
    assert not TenantQueue.objects.filter(pk=row.pk).exists()
    assert TenantJob.objects.filter(state=State.FINISHED).exists() == (times == 1)


def test_a_plain_rq_job_named_by_text_takes_a_slot_too() -> None:
    django_rq.get_queue("reports").enqueue("tests.jobs.add", 1, 2, tenant="acme")
    work()
    assert TenantJob.objects.get().state == State.FINISHED


@pytest.mark.parametrize(("length", "status"), [(255, JobStatus.FINISHED), (256, JobStatus.FAILED)])
def test_a_plain_rq_job_whose_id_is_too_long_for_its_column_fails_and_says_so(length: int, status: JobStatus) -> None:
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme", job_id="x" * length)
    work()
    assert rq_job.get_status() == status
    told = "InvalidOption: job_id='xxx" in str(rq_job.latest_result().exc_string)
    assert told is (length > 255)
    assert TenantJob.objects.count() == (length <= 255)


def test_a_plain_rq_job_that_raises_gives_its_slot_back() -> None:
    rq_job = django_rq.get_queue("imports").enqueue(jobs.fail, "acme")
    work()
    assert rq_job.get_status() == JobStatus.FAILED
    assert TenantJob.objects.get().state == State.FAILED
    assert TenantQueue.objects.get().current_job == 0


def test_a_busy_tenants_plain_job_defers_itself_without_counting_as_a_retry_or_a_run() -> None:
    tenant_queue(queue="reports", max_job=0)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert rq_job.get_status() == JobStatus.SCHEDULED
    assert scheduled() == [rq_job.id]
    rq_job.refresh()
    assert not rq_job.number_of_retries
    assert rq_job.results() == []
    assert TenantJob.objects.get().state == State.WAITING


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no server")
def test_it_does_so_though_its_session_ends_when_it_is_in_its_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ would have it failed, though its function was never called, and so would its row be when its turn comes."""
    tenant_queue(queue="reports", max_job=0)
    seconds_to_wait = plain_rq._seconds_to_wait

    def end_session_and_say(job: TenantJob | None) -> float:
        backend = connection.connection.info.backend_pid
        with psycopg.connect(database_url(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])
        return seconds_to_wait(job)

    monkeypatch.setattr(plain_rq, "_seconds_to_wait", end_session_and_say)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert rq_job.get_status() == JobStatus.SCHEDULED
    assert TenantJob.objects.get().state == State.WAITING


@pytest.mark.parametrize(("waited", "seconds"), [(0, 60), (59, 60), (600, 600), (10 * 86400, 3600), (-86400, 60)])
def test_one_that_has_waited_for_long_defers_itself_for_as_long_again(waited: float, seconds: float) -> None:
    """Its turn does not wait for that. A clock that was set back is no reason to come back at once."""
    tenant_queue(queue="reports", max_job=0)
    queue = django_rq.get_queue("reports")
    rq_job = queue.enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    age(TenantJob.objects.get(), enqueued_at=waited)
    queue.scheduled_job_registry.remove(rq_job)
    queue.push_job_id(rq_job.id)
    work()
    due = queue.scheduled_job_registry.get_scheduled_time(rq_job)
    assert (due - now()).total_seconds() == pytest.approx(seconds, abs=5)


def test_a_plain_job_that_defers_itself_is_a_failure_in_the_counter_of_rqs_worker_only() -> None:
    tenant_queue(queue="reports", max_job=0)
    queue = django_rq.get_queue("reports")
    queue.enqueue(jobs.add, 1, 2, tenant="acme")
    worker = DeafWorker([queue])
    worker.work(burst=True, logging_level="ERROR")
    worker.refresh()
    assert worker.failed_job_count == 1
    assert queue.failed_job_registry.get_job_count() == 0


def test_a_plain_job_is_brought_forward_when_its_turn_comes() -> None:
    row = tenant_queue(queue="reports", max_job=0)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    row.max_job = 1
    row.save()
    assert scheduled() == []
    assert in_rq("reports") == 1
    work()
    assert [result.return_value for result in rq_job.results()] == [3]
    assert TenantQueue.objects.get().current_job == 0


def test_plain_and_enqueued_jobs_wait_in_one_backlog() -> None:
    row = tenant_queue(queue="reports", max_job=0)
    first = jobs.add.enqueue(1, 0, tenant="acme")
    django_rq.get_queue("reports").enqueue(jobs.add, 2, 0, tenant="acme")
    work()
    third = jobs.add.enqueue(3, 0, tenant="acme")
    row.max_job = 1
    row.save()
    work()
    ended = list(TenantJob.objects.order_by("ended_at").values_list("pk", "state"))
    plain = TenantJob.objects.exclude(rq_job_id="").get()
    assert ended == [(first.pk, "finished"), (plain.pk, "finished"), (third.pk, "finished")]


def test_dependents_of_a_busy_job_do_not_fire_before_it_has_run() -> None:
    row = tenant_queue(queue="reports", max_job=0)
    queue = django_rq.get_queue("reports")
    parent = queue.enqueue(jobs.add, 1, 2, tenant="acme")
    child = queue.enqueue(jobs.add, 3, 4, tenant="other", depends_on=parent)
    work()
    assert child.get_status() == JobStatus.DEFERRED
    row.max_job = 1
    row.save()
    work()
    assert child.return_value(refresh=True) == 7


def test_a_call_inside_another_job_is_a_plain_call() -> None:
    tenant_queue("inner", queue="reports", max_job=0)
    rq_job = django_rq.get_queue("default").enqueue(calls_add, "inner")
    work("default")
    assert rq_job.return_value() == 3
    assert not TenantJob.objects.exists()


def calls_add(tenant: str) -> int:
    return jobs.add(1, 2, tenant=tenant)


def test_a_recursive_call_takes_one_slot() -> None:
    rq_job = django_rq.get_queue("reports").enqueue(jobs.count_down, "acme", 3)
    work()
    assert rq_job.return_value() == 0
    assert TenantJob.objects.count() == 1


def test_a_plain_job_without_a_tenant_just_runs() -> None:
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2)
    work()
    assert rq_job.return_value() == 3
    assert not TenantJob.objects.exists()


def delivered_twice(by: Owner) -> tuple[Job, TenantJob]:
    """A plain job that some worker runs, and that is in RQ's queue again."""
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    row = tenant_queue(queue="reports", max_job=5)
    TenantJob.objects.create(tenant_queue=row, task="tests.jobs.add", rq_job_id=rq_job.id)
    (job,) = admit(row)
    rq_copies.belong_to(job.uuid, rq_job)
    slots.start(job, by)
    return rq_job, job


def test_a_second_delivery_of_a_running_plain_job_does_nothing() -> None:
    rq_job, job = delivered_twice(another_process())
    work()
    assert fresh(job).state == State.RUNNING
    assert counters_match()
    assert TenantJob.objects.count() == 1
    assert rq_job.latest_result() is None


def test_a_second_delivery_leaves_rqs_record_to_the_first() -> None:
    rq_job, _ = delivered_twice(another_process("first"))
    child = django_rq.get_queue("reports").enqueue(jobs.add, 3, 4, tenant="other", depends_on=rq_job)
    work()
    assert rq_job.get_status() == JobStatus.STARTED
    assert child.get_status() == JobStatus.DEFERRED
    rq_job.refresh()
    assert rq_job.worker_name == "first", "a stop command must go there"
    assert not rq_job.number_of_retries
    assert scheduled() == [rq_job.id], "in case the first was lost"


def test_a_second_delivery_runs_in_place_of_one_that_was_lost() -> None:
    rq_job, job = delivered_twice(another_process(host="elsewhere", beats=False))
    work()
    assert lost_runs.end_lost_run(fresh(job), "lost")
    django_rq.get_queue("reports").push_job_id(rq_job.id)
    work()
    assert rq_job.return_value(refresh=True) == 3


def finished_between() -> Job:
    """A second delivery that was about to be deferred when the first ended: too late to be taken back."""
    rq_job, job = delivered_twice(another_process("first"))
    work()
    end_run(job, state=State.FINISHED)
    Result.create(rq_job, Result.Type.SUCCESSFUL, ttl=500, return_value="of the first")
    queue = django_rq.get_queue("reports")
    queue.scheduled_job_registry.remove(rq_job)
    queue.push_job_id(rq_job.id)
    return rq_job


def test_a_second_delivery_that_comes_back_after_the_first_has_finished_does_not_run() -> None:
    rq_job = finished_between()
    work()
    assert rq_job.get_status() == JobStatus.FINISHED
    assert rq_job.return_value(refresh=True) == "of the first"
    assert TenantJob.objects.count() == 1
    assert 0 < django_rq.get_connection("reports").ttl(rq_job.key) <= 500, "RQ's record would stay forever"


def test_control_a_delivery_that_waited_for_nobody_runs() -> None:
    """As one that somebody requeues after the job has finished."""
    rq_job = finished_between()
    django_rq.get_connection("reports").hdel(rq_job.key, beside.AGAIN, rq_copies.RUN)
    work()
    assert rq_job.return_value(refresh=True) == 3
    assert TenantJob.objects.count() == 2


def test_after_a_second_delivery_that_did_not_run_the_next_one_does() -> None:
    rq_job = finished_between()
    work()
    queue = django_rq.get_queue("reports")
    queue.enqueue_job(Job.fetch(rq_job.id, queue.connection))
    work()
    assert rq_job.return_value(refresh=True) == 3


def test_of_two_deliveries_that_race_for_the_start_the_loser_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")

    def beaten(run: Run, job: TenantJob) -> bool:
        assert slots.start(job, another_process("first"))
        return False

    monkeypatch.setattr(Run, "start", beaten)
    work()
    assert rq_job.get_status() == JobStatus.STARTED
    assert scheduled() == [rq_job.id]


def test_a_job_that_loses_the_race_for_its_slot_defers_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    admit_here = transitions.admit_here

    def beaten(job: TenantJob) -> bool:
        running_job(job.tenant_queue, another_process("first"), priority=1)
        return admit_here(job)

    monkeypatch.setattr(transitions, "admit_here", beaten)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert scheduled() == [rq_job.id]
    assert TenantJob.objects.get(rq_job_id=rq_job.id).state == State.WAITING
    assert counters_match()


def test_a_job_that_gets_its_slot_by_its_own_offer_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot has become free since it asked for one: nobody may wait for a minute beside it."""
    monkeypatch.setattr(transitions, "admit_here", lambda job: False)
    replace_sleep(monkeypatch, lambda seconds: None)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert (rq_job.return_value(refresh=True), scheduled(), in_rq("reports")) == (3, [], 0)
    assert TenantJob.objects.get().state == State.FINISHED
    assert counters_match()


def test_a_job_does_not_go_before_one_that_waits_for_a_worker() -> None:
    """In the same RQ queue, with one slot free: the other is admitted instead, and this one's turn comes after it."""
    row = tenant_queue(queue="reports")
    before = waiting_job(row)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    DeafWorker([django_rq.get_queue("reports")]).work(burst=True, max_jobs=1, logging_level="ERROR")
    assert fresh(before).state == State.QUEUED
    assert scheduled() == [rq_job.id]
    work()
    assert fresh(before).state == State.FINISHED
    assert rq_job.return_value(refresh=True) == 3, "it was brought forward by the release"


def test_a_job_that_gets_its_slot_while_rq_schedules_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ writes the scheduled registry a moment after the job returned; the admission falls in between."""
    row = tenant_queue(queue="reports", max_job=0)
    queue = django_rq.get_queue("reports")
    rq_job = queue.enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    queue.scheduled_job_registry.remove(rq_job)
    pauses = []

    def rq_catches_up(seconds: float) -> None:
        pauses.append(seconds)
        queue.scheduled_job_registry.add(rq_job, ttl=60)

    replace_sleep(monkeypatch, rq_catches_up)
    row.max_job = 1
    row.save()
    assert pauses == [dispatch.DEFER_PAUSES[0]]
    assert in_rq("reports") == 1


def test_canceling_a_waiting_plain_job_takes_it_out_of_rq() -> None:
    tenant_queue(queue="reports", max_job=0)
    rq_job = django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    assert TenantJob.objects.get().cancel()
    assert scheduled() == []
    assert rq_job.get_status() == JobStatus.CANCELED
    assert counters_match()


def test_a_plain_job_may_come_through_another_queue_than_the_decorators() -> None:
    row = tenant_queue(queue="reports", max_job=0)
    rq_job = django_rq.get_queue("imports").enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    row.max_job = 1
    row.save()
    assert in_rq("imports") == 1
    work()
    assert rq_job.return_value(refresh=True) == 3
    assert TenantJob.objects.get().state == State.FINISHED


@pytest.mark.parametrize("immediate", [False, True])
def test_jobs_behind_it_that_run_without_a_worker_do_so_and_it_is_for_rq_to_run(immediate: bool) -> None:
    row = tenant_queue(max_job=0)
    django_rq.get_queue("imports").enqueue(jobs.echo, "acme", "plain")
    work()
    plain, own = TenantJob.objects.get(), jobs.echo.enqueue("acme", "own")
    with override_settings(TENANT_SLOTS={"IMMEDIATE": immediate}):
        TenantQueue.objects.filter(pk=row.pk).update(max_job=2)
        transitions.freed(row.pk, "imports") if immediate else run_jobs()
    assert (fresh(own).state, fresh(plain).state) == (State.FINISHED, State.QUEUED)
    assert in_rq() == 1, "a worker finds it"
    work()
    assert fresh(plain).state == State.FINISHED
    assert counters_match()
