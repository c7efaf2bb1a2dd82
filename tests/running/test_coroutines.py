"""``async def`` jobs keep their slot until the coroutine has ended, and async code can enqueue."""

from __future__ import annotations

import asyncio
import inspect
import sys
from pathlib import Path
from typing import Any

import django_rq
import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.db import connections
from django.test import AsyncClient, override_settings
from rq import Worker

from tenant_slots.models import State, TenantJob
from tenant_slots.signals import job_started
from tenant_slots.workers import TenantPreforkWorker, TenantWorker
from tests import async_jobs, jobs
from tests.factories import counters_match, fresh, tenant_queue, work
from tests.history import History
from tests.processes import Workers, wait_until
from tests.reports_app.models import Report
from tests.test_receivers import heard

pytestmark = pytest.mark.django_db(transaction=True)


def plain(job: Any, *args: Any) -> TenantJob:
    django_rq.get_queue("reports").enqueue(job, *args)
    work()
    found: TenantJob = TenantJob.objects.get()
    return found


def test_a_direct_call_returns_the_coroutine_and_takes_no_slot() -> None:
    assert async_to_sync(async_jobs.count_running)("acme") == 0
    report = Report.objects.create(tenant="acme")
    assert async_to_sync(report.execute_async)("here") == "here"
    assert not TenantJob.objects.exists()


def test_a_decorated_coroutine_function_is_recognized_as_one() -> None:
    seen = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else iscoroutinefunction
    assert all(seen(one) for one in (async_jobs.count_running, Report.execute_async, Report().execute_async))
    assert not any(seen(one) for one in (async_jobs.give_coroutine, Report.execute, Report().execute))


@pytest.mark.parametrize("function", ["count_running", "give_coroutine"])
def test_an_enqueued_coroutine_holds_its_slot_until_it_has_ended(function: str) -> None:
    job = getattr(async_jobs, function).enqueue("acme")
    work()
    assert (fresh(job).state, job.result) == (State.FINISHED, 1)
    assert counters_match()


@pytest.mark.parametrize("function", ["count_running", "run_coroutine"])
@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, Worker])
def test_a_coroutine_has_a_thread_for_the_orm_where_its_worker_had_one_before_it_forked(
    worker_class: type[Worker], function: str, no_workers: None
) -> None:
    """As of an app that asks the database by a coroutine when it is ready: that thread is in no work-horse."""
    asyncio.run(sync_to_async(lambda: None)())
    jobs_of_both = [getattr(async_jobs, function).using(timeout=20).enqueue("acme") for _ in range(2)]
    queue = django_rq.get_queue("reports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")
    assert [(fresh(job).state, job.result) for job in jobs_of_both] == [(State.FINISHED, 1)] * 2


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])
def test_so_has_one_of_a_receiver_of_its_start(worker_class: type[Worker], no_workers: None) -> None:
    """Which is called in the time of the job."""
    asyncio.run(sync_to_async(lambda: None)())
    job = async_jobs.run_coroutine.using(timeout=20).enqueue("acme")
    queue = django_rq.get_queue("reports")
    with heard(job_started, lambda **_: asyncio.run(TenantJob.objects.acount())):
        worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")
    assert fresh(job).state == State.FINISHED


@pytest.mark.parametrize("function", ["count_running", "give_coroutine"])
def test_a_coroutine_that_plain_rq_calls_holds_its_slot_until_it_has_ended(function: str) -> None:
    job = plain(getattr(async_jobs, function), "acme")
    assert (job.state, job.result) == (State.FINISHED, 1)
    assert counters_match()


def test_a_coroutine_without_a_tenant_runs_unlimited() -> None:
    rq_job = django_rq.get_queue("reports").enqueue(async_jobs.say_who, None)
    work()
    assert rq_job.return_value() == "nobody"


def test_what_a_coroutine_raises_fails_the_job_or_runs_it_again() -> None:
    job = async_jobs.fail_async.enqueue("acme")
    work()
    assert (fresh(job).state, job.failures) == (State.FAILED, 2)
    assert "ValueError: no such feed" in job.error


def test_a_coroutine_can_ask_to_run_again() -> None:
    job = async_jobs.ask_to_run_again.enqueue("acme")
    work()
    assert (fresh(job).state, job.failures) == (State.FAILED, 2)


def test_a_coroutine_that_cancels_itself_fails() -> None:
    job = async_jobs.cancel_itself.enqueue("acme")
    work()
    assert fresh(job).state == State.FAILED
    assert "CancelledError" in job.error


def test_context_variables_reach_the_coroutine() -> None:
    token = async_jobs.who.set("somebody")
    try:
        job = async_jobs.say_who.enqueue("acme")
        work()
    finally:
        async_jobs.who.reset(token)
    assert fresh(job).result == "somebody"


def test_a_coroutine_and_its_tasks_can_report_progress() -> None:
    job = async_jobs.report_from_a_task.enqueue("acme")
    work()
    assert (fresh(job).progress, job.stats) == ({"done": 2, "total": 2}, {"last": 2})


@pytest.mark.parametrize("how", async_jobs.SLEEPS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_coroutine_over_its_timeout_is_ended_wherever_it_is(how: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    job = async_jobs.sleep_too_long.enqueue("acme", how, str(trace))
    work()
    assert fresh(job).state == State.FAILED
    assert "JobTimeoutException: Task exceeded maximum timeout value (1 seconds)" in job.error
    assert trace.read_text() == "cleaned up", "the coroutine itself has ended, and could clean up"
    assert counters_match()


def test_a_task_that_a_coroutine_leaves_behind_is_canceled_before_the_slot_is_given_back(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    job = async_jobs.leave_a_task_behind.enqueue("acme", str(trace))
    work()
    assert fresh(job).state == State.FINISHED
    assert trace.read_text() == "1 in its slot"


def test_an_async_view_enqueues_cancels_and_retries() -> None:
    tenant_queue(queue="reports", max_job=0)
    with override_settings(ROOT_URLCONF="tests.async_jobs"):
        answer = async_to_sync(AsyncClient().get)("/enqueue").json()
    assert (answer["canceled"], answer["was"]) == (True, "canceled")
    assert {answer["job"], *answer["many"]} == set(TenantJob.objects.values_list("pk", flat=True))
    assert set(TenantJob.objects.values_list("state", flat=True)) == {State.WAITING, State.QUEUED}


def test_using_and_methods_of_models_can_be_enqueued_from_async_code() -> None:
    report = Report.objects.create(tenant="acme")

    async def enqueue() -> list[TenantJob]:
        one = await async_jobs.say_who.using(priority=3).aenqueue("acme")
        two = await report.execute.using(priority=4).aenqueue("words")
        return [one, two, *await report.execute.aenqueue_many([(("many",), {})])]

    one, two, three = async_to_sync(enqueue)()
    assert (one.priority, two.priority, two.args, three.args) == (3, 4, ["words"], ["many"])


def test_async_code_has_the_name_and_the_share_of_a_new_jobs_tenant_queue_and_may_ask_for_the_rest() -> None:
    tenant_queue(queue="reports", max_job=7, share=3)

    async def enqueue() -> list[object]:
        row = (await jobs.add.aenqueue(1, 2, tenant="acme")).tenant_queue
        return [row.tenant, row.queue, row.share, await sync_to_async(lambda: row.max_job)()]

    assert async_to_sync(enqueue)() == ["acme", "reports", 3, 7]


@pytest.mark.parametrize("worker_class", [None, "rq.worker.SpawnWorker", "tenant_slots.workers.TenantSimpleWorker"])
def test_real_workers_run_coroutines_within_the_limit(
    worker_class: str | None, workers: Workers, history: History, tmp_path: Path
) -> None:
    row = tenant_queue(max_job=1)
    go_on = tmp_path / "go on"
    stored = [jobs.record_async.enqueue("acme", name, history.path, str(go_on)) for name in "ab"]
    django_rq.get_queue("imports").enqueue(jobs.record_async, "acme", "plain", history.path)
    workers.start(2, worker_class=worker_class)
    wait_until(lambda: fresh(stored[0]).state == State.RUNNING)
    assert (fresh(row).current_job, fresh(stored[1]).state) == (1, State.WAITING)
    go_on.touch()
    wait_until(lambda: TenantJob.objects.filter(state=State.FINISHED).count() == 3)
    assert history.highest_overlap() == {"acme": 1}
    assert [fresh(job).result for job in stored] == ["a", "b"]


def test_a_running_coroutine_can_be_canceled(workers: Workers, history: History, tmp_path: Path) -> None:
    row = tenant_queue(max_job=1)
    job = jobs.record_async.enqueue("acme", "a", history.path, str(tmp_path / "never"))
    workers.start()
    wait_until(history.started)
    assert fresh(job).cancel()
    wait_until(lambda: fresh(job).state == State.CANCELED)
    assert fresh(row).current_job == 0


def test_an_enqueue_whose_task_is_canceled_is_done_or_not_and_leaves_nothing_half_done() -> None:
    tenant_queue("acme", queue="reports", max_job=1)

    async def canceled_after(pause: float) -> bool:
        task = asyncio.create_task(jobs.add.aenqueue(1, 2, tenant="acme"))
        await asyncio.sleep(pause)
        return task.cancel()

    async def all_of_them() -> list[bool]:
        canceled = [await canceled_after(pause) for pause in (0, 0.0005, 0.001, 0.002, 0.004, 0)]
        await sync_to_async(connections.close_all)()  # of asgiref's thread, which goes on after the loop
        return canceled

    assert any(asyncio.run(all_of_them())), "the control: some were canceled in time"
    last = jobs.add.enqueue(1, 2, tenant="acme")
    work("reports")
    assert fresh(last).state == "finished"
    assert set(TenantJob.objects.values_list("state", flat=True)) == {"finished"}
    assert counters_match()
