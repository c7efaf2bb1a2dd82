"""``debounce``: one job takes over the newest call, and its time moves back, at most until ``max_wait``."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from rq import Retry

from tenant_slots import exceptions, signals, slots, tenant_job, transitions
from tenant_slots.admin.reasons import why_waiting
from tenant_slots.db import clock
from tenant_slots.enqueueing import debounce, unique
from tenant_slots.models import REFUSED, UNTIL_START, State, TenantJob, TenantQueue
from tenant_slots.repair.sweeper import run_now
from tenant_slots.testing import run_jobs
from tests import jobs
from tests.enqueueing.test_unique_until import WORKERS
from tests.factories import admit, age, counters_match, fresh, owner, tenant_queue, work
from tests.plans import explained
from tests.processes import Workers
from tests.races.test_double_release import at_once
from tests.reports_app.models import Report

pytestmark = pytest.mark.django_db(transaction=True)

DEBOUNCE, MAX_WAIT = timedelta(seconds=30), timedelta(minutes=5)
"""Of the jobs of `tests.jobs`."""


def seconds_until(job: TenantJob) -> float:
    """From now until the job is due, by the database's clock."""
    run_after = fresh(job).run_after
    assert run_after is not None
    return float((run_after - clock.now()).total_seconds())


def is_in(job: TenantJob, seconds: float) -> bool:
    """Give or take what the machine does meanwhile."""
    return seconds - 20 < seconds_until(job) <= seconds


def make_due(job: TenantJob, enqueued: float = 40) -> TenantJob:
    """A sweep finds that its time has come."""
    age(job, run_after=1, enqueued_at=enqueued)
    run_now("test")
    return fresh(job)


def test_the_first_call_is_stored_for_later() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    assert (job.state, job.args) == (State.SCHEDULED, ["acme", 1])
    assert is_in(job, 30)
    assert job.unique_key.startswith(UNTIL_START)
    assert len(job.unique_key) == 64


def test_the_newest_call_wins_and_moves_the_run_back() -> None:
    first = jobs.index_shop.enqueue("acme", 1)
    age(first, run_after=-10)
    second = jobs.index_shop.enqueue("acme", 2)
    assert second == first
    assert (second.args, second.state) == (["acme", 2], State.SCHEDULED)
    assert second.tenant_queue.tenant == "acme"
    assert is_in(second, 30)
    assert seconds_until(second) > 10
    assert TenantJob.objects.get().args == ["acme", 2]


def test_everything_that_the_newest_call_says_wins(settings: Any) -> None:
    settings.TENANT_SLOTS = {"CAPTURE_CONTEXT": "tests.enqueueing.test_debounce.who"}
    first = jobs.index_shop.enqueue("acme", 1)
    WHO[:] = ["ann"]
    newest = jobs.index_shop.using(
        priority=5, key="user-7", meta={"upload": 7}, timeout=9, retry=Retry(2), expires=timedelta(hours=1)
    )
    second = newest.enqueue("acme", version=2)
    assert second == first
    job = fresh(first)
    assert (job.args, job.kwargs, job.priority, job.key) == (["acme"], {"version": 2}, 5, "user-7")
    assert (job.options["meta"], job.options["timeout"]) == ({"upload": 7}, 9)
    assert job.context == {"who": "ann"}
    assert job.expires_at > clock.now()
    jobs.index_shop.enqueue("acme", 3)
    job = fresh(first)
    assert (job.args, job.kwargs, job.priority, job.key, job.expires_at) == (["acme", 3], {}, 0, "", None)


WHO = ["bob"]


def who() -> dict[str, str]:
    return {"who": WHO[0]}


def test_the_run_moves_back_at_most_until_max_wait_after_the_first_call() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    age(job, enqueued_at=MAX_WAIT.total_seconds() - 10)
    jobs.index_shop.enqueue("acme", 2)
    assert is_in(job, 10)
    assert job.state == State.SCHEDULED


def test_after_max_wait_the_newest_call_still_wins_and_the_run_waits_no_longer() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    age(job, enqueued_at=MAX_WAIT.total_seconds() + 1)
    jobs.index_shop.enqueue("acme", 2)
    assert seconds_until(job) < 0
    run_now("test")
    work()
    assert (fresh(job).state, job.result) == (State.FINISHED, 2)


def test_without_max_wait_the_run_moves_back_for_ever() -> None:
    ways = jobs.index_shop_patiently
    job = ways.enqueue("acme", 1)
    age(job, enqueued_at=10**7, run_after=-1)
    assert ways.enqueue("acme", 2) == job
    assert is_in(job, 30)


def test_a_job_that_waits_for_a_slot_is_scheduled_again() -> None:
    tenant_queue(max_job=0)
    job = make_due(jobs.index_shop.enqueue("acme", 1))
    assert job.state == State.WAITING
    assert jobs.index_shop.enqueue("acme", 2) == job
    assert (fresh(job).state, job.args) == (State.SCHEDULED, ["acme", 2])
    assert is_in(job, 30)


def test_after_max_wait_a_job_that_waits_for_a_slot_keeps_its_place() -> None:
    tenant_queue(max_job=0)
    job = make_due(jobs.index_shop.enqueue("acme", 1), MAX_WAIT.total_seconds() + 1)
    assert jobs.index_shop.enqueue("acme", 2) == job
    assert (fresh(job).state, job.args) == (State.WAITING, ["acme", 2])


def test_after_a_call_its_time_is_one_that_was_asked_for_whatever_put_it_off_before() -> None:
    tenant_queue(max_job=0)
    job = jobs.index_shop.enqueue("acme", 1)
    TenantJob.objects.filter(pk=job.pk).update(deferrals=2)
    assert "its tenant was busy" in why_waiting(fresh(job))[0]
    jobs.index_shop.enqueue("acme", 2)
    assert "whoever enqueued it asked for that" in why_waiting(fresh(job))[0]
    assert job.deferrals == 0


def test_nor_did_a_job_run_that_was_put_back_before_its_start() -> None:
    row = tenant_queue()
    job = make_due(jobs.index_shop.enqueue("acme", 1))
    assert fresh(job).state == State.QUEUED
    row.pause()
    assert transitions.put_back(job)
    jobs.index_shop.enqueue("acme", 2)
    assert fresh(job).attempt == 1
    assert "whoever enqueued it asked for that" in why_waiting(job)[0]


def test_nor_does_it_wait_because_the_database_has_refused_it_once() -> None:
    tenant_queue(max_job=0)
    job = jobs.index_shop.enqueue("acme", 1)
    TenantJob.objects.filter(pk=job.pk).update(error=f"{REFUSED}: not this one")
    assert "The database did not let it be admitted" in why_waiting(fresh(job))[0]
    jobs.index_shop.enqueue("acme", 2)
    assert "whoever enqueued it asked for that" in why_waiting(fresh(job))[0]
    assert job.error == ""


def test_once_it_has_started_a_call_makes_another_job() -> None:
    row = tenant_queue(max_job=0)
    job = make_due(jobs.index_shop.enqueue("acme", 1))
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    assert slots.admit_and_start(row.pk, "imports", owner(), lambda chosen: None).started == job
    second = jobs.index_shop.enqueue("acme", 2)
    assert second != job
    assert (fresh(job).args, second.args) == (["acme", 1], ["acme", 2])
    assert jobs.index_shop.enqueue("acme", 3) == second


def test_a_job_that_has_a_slot_counts_as_started() -> None:
    """A worker may have read its arguments."""
    row = tenant_queue(max_job=0)
    job = make_due(jobs.index_shop.enqueue("acme", 1))
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    (admitted,) = admit(row)
    second = jobs.index_shop.enqueue("acme", 2)
    assert second != admitted
    assert (fresh(job).args, job.state, job.unique_key) == (["acme", 1], State.QUEUED, "")
    assert jobs.index_shop.enqueue("acme", 3) == second
    assert slots.start(admitted, owner())


@pytest.mark.parametrize("state", [State.FINISHED, State.FAILED, State.CANCELED])
def test_a_job_that_has_ended_is_left_alone(state: State) -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    TenantJob.objects.filter(pk=job.pk).update(state=state)
    assert jobs.index_shop.enqueue("acme", 2) != job
    assert fresh(job).args == ["acme", 1]


def test_each_tenant_has_a_job_of_its_own_whatever_the_arguments() -> None:
    assert jobs.index_shop.enqueue("acme", 1) == jobs.index_shop.enqueue("acme", 2)
    assert jobs.index_shop.enqueue("umbrella", 1) != jobs.index_shop.enqueue("acme", 1)
    assert jobs.index_shop.using(tenant="umbrella").enqueue("acme") == jobs.index_shop.enqueue("umbrella")
    assert jobs.index_shop_patiently.enqueue("acme", 1) != jobs.index_shop.enqueue("acme", 1)


def test_unique_key_gives_each_key_a_job_of_its_own() -> None:
    shoes = jobs.index_section.enqueue("acme", "shoes", 1)
    hats = jobs.index_section.enqueue("acme", "hats", 1)
    assert shoes != hats
    assert jobs.index_section.enqueue("acme", "shoes", 2) == shoes
    assert (fresh(shoes).args[-1], fresh(hats).args[-1]) == (2, 1)
    with pytest.raises(exceptions.InvalidKey):
        jobs.index_section.enqueue("acme", ["shoes"], 1)


def test_each_object_of_a_model_has_a_job_of_its_own() -> None:
    one, other = Report.objects.create(tenant="acme"), Report.objects.create(tenant="acme")
    job = one.summarize.enqueue("short")
    assert other.summarize.enqueue("short") != job
    assert one.summarize.enqueue("long") == job
    assert (fresh(job).args, job.object_pk) == (["long"], str(one.pk))


def test_enqueue_many_gives_each_call_its_job_and_the_last_call_wins() -> None:
    under_way = jobs.index_section.enqueue("acme", "b", 0)
    sections = ["c", "b", "a", "c", "b"]
    got = jobs.index_section.enqueue_many([(("acme", name, number), {}) for number, name in enumerate(sections)])
    assert got[1] == got[4] == under_way
    assert got[0] == got[3]
    assert [fresh(job).args[1:] for job in got] == [["c", 3], ["b", 4], ["a", 2], ["c", 3], ["b", 4]]
    assert TenantJob.objects.count() == 3
    again = jobs.index_section.enqueue_many([(("acme", name, 9), {}) for name in "abc"])
    assert again == [got[2], got[1], got[0]]
    assert {job.args[-1] for job in TenantJob.objects.all()} == {9}


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite gives keys as it stores")
def test_many_are_in_the_order_of_their_calls() -> None:
    got = jobs.index_section.enqueue_many([(("acme", f"section {number}", 1), {}) for number in range(30)])
    assert [job.pk for job in got] == sorted(job.pk for job in got)


def test_enqueue_many_stores_and_moves_all_or_none() -> None:
    job = jobs.index_section.enqueue("acme", "a", 1)
    with pytest.raises(exceptions.ArgumentNotJSON):
        jobs.index_section.enqueue_many([(("acme", "a", 2), {}), (("acme", "b", object()), {})])
    with refused(), pytest.raises(RuntimeError):
        jobs.index_section.enqueue_many([(("acme", "a", 2), {}), (("acme", "b", 2), {})])
    assert TenantJob.objects.get() == job
    assert fresh(job).args == ["acme", "a", 1]


@contextmanager
def refused() -> Iterator[None]:
    """Of several, what comes last in their order fails."""
    become, seen = debounce._Calls._in_order, []

    def fails(self: Any, prepared: list[TenantJob]) -> None:
        become(self, prepared)
        seen.append(self)
        raise RuntimeError

    debounce._Calls._in_order = fails  # type: ignore[method-assign]
    try:
        yield
    finally:
        debounce._Calls._in_order = become  # type: ignore[method-assign]
    assert seen


def test_a_rollback_gives_back_the_call_before() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    before = fresh(job).run_after
    with transaction.atomic():
        assert jobs.index_shop.enqueue("acme", 2) == job
        new = jobs.index_shop.enqueue("umbrella", 1)
        assert jobs.index_shop.enqueue("umbrella", 2) == new
        transaction.set_rollback(True)
    assert (fresh(job).args, job.run_after) == (["acme", 1], before)
    assert TenantJob.objects.get() == job


def test_only_new_jobs_are_signaled() -> None:
    sent: list[TenantJob] = []

    def receive(jobs: list[TenantJob], **_: Any) -> None:
        sent.extend(jobs)

    signals.jobs_enqueued.connect(receive)
    try:
        first = jobs.index_shop.enqueue("acme", 1)
        jobs.index_shop.enqueue("acme", 2)
    finally:
        signals.jobs_enqueued.disconnect(receive)
    assert sent == [first]


def test_fifty_threads_have_one_job() -> None:
    found = at_once(*[lambda: jobs.index_shop.enqueue("acme", 1).uuid] * 50)
    assert len(set(found)) == TenantJob.objects.count() == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_processes_that_enqueue_the_same_jobs_in_opposite_orders_do_not_deadlock() -> None:
    calls = [(("acme", f"section {number}", 1), {}) for number in range(20)]
    tenant_queue()
    for _ in range(5):
        TenantJob.objects.all().delete()
        jobs.index_section.enqueue_many(calls[5:10])
        forth, back = at_once(
            lambda: jobs.index_section.enqueue_many(calls), lambda: jobs.index_section.enqueue_many(calls[::-1])
        )
        assert [job.uuid for job in forth] == [job.uuid for job in back[::-1]]
        assert TenantJob.objects.count() == len(calls)


@pytest.mark.parametrize("kind", WORKERS)
def test_it_runs_under_a_worker_once_its_time_has_come(workers: Workers, kind: str) -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    workers.run("--burst", worker_class=kind)
    assert fresh(job).state == State.SCHEDULED
    jobs.index_shop.enqueue("acme", 2)
    make_due(job)
    workers.run("--burst", worker_class=kind)
    assert (fresh(job).state, job.result) == (State.FINISHED, 2)
    assert counters_match()


@pytest.mark.django_db(transaction=False)
def test_in_a_test_of_a_project_it_runs_with_what_is_scheduled() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    assert jobs.index_shop.enqueue("acme", 2) == job
    assert run_jobs() == []
    assert [ran.result for ran in run_jobs(scheduled=True)] == [2]


def test_a_canceled_job_that_is_retried_takes_over_calls_again() -> None:
    tenant_queue(max_job=0)
    job = jobs.index_shop.enqueue("acme", 1)
    job.cancel()
    job.retry()
    assert jobs.index_shop.enqueue("acme", 2) == job
    assert (fresh(job).state, job.args) == (State.SCHEDULED, ["acme", 2])


def test_using_debounces_single_calls() -> None:
    ways = jobs.record_version.using(debounce=DEBOUNCE, max_wait=MAX_WAIT)
    job = ways.enqueue("acme", 1)
    assert ways.enqueue("acme", 2) == job
    assert pickle.loads(pickle.dumps(ways)).enqueue("acme", 3) == job
    assert is_in(job, 30)
    assert jobs.record_version.enqueue("acme", 4) != job
    assert jobs.index_shop.using(debounce=timedelta(minutes=2)).enqueue("acme", 5) == jobs.index_shop.enqueue("acme", 6)


def test_a_job_that_comes_after_it_waits_until_the_newest_call_has_run() -> None:
    job = jobs.index_shop.enqueue("acme", 1)
    then = jobs.record_version.using(after=[job]).enqueue("acme", 7)
    jobs.index_shop.enqueue("acme", 2)
    work()
    assert (fresh(job).state, fresh(then).state) == (State.SCHEDULED, State.SCHEDULED)
    make_due(job)
    work()
    assert (fresh(job).result, fresh(then).result) == (2, 7)
    assert job.ended_at < then.started_at


def good(tenant: str, **more: object) -> None: ...


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"debounce": 30}, "debounce"),
        ({"debounce": timedelta(0)}, "debounce"),
        ({"max_wait": timedelta(1)}, "max_wait"),
        ({"debounce": timedelta(2), "max_wait": timedelta(1)}, "max_wait"),
        ({"debounce": timedelta(1), "max_wait": 7}, "max_wait"),
        ({"debounce": timedelta(1), "unique_for": timedelta(1)}, "debounce"),
        ({"debounce": timedelta(1), "unique_until": "start"}, "unique_until"),
        ({"debounce": timedelta(1), "expires": timedelta(1)}, "expires"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_import(options: dict[str, Any], named: str) -> None:
    with pytest.raises(exceptions.InvalidOption, match=named):
        tenant_job("imports", tenant="tenant", **options)(good)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"debounce": 30}, "debounce"),
        ({"run_after": datetime.now().astimezone()}, "run_after"),
        ({"expires": timedelta(seconds=30)}, "expires"),
        ({"max_wait": timedelta(seconds=29)}, "max_wait"),
        ({"debounce": timedelta(minutes=6)}, "max_wait"),
    ],
)
def test_using_refuses_it_at_once(options: dict[str, Any], named: str) -> None:
    with pytest.raises(exceptions.InvalidOption, match=named):
        jobs.index_shop.using(**options)


def test_using_refuses_what_does_not_go_together_with_the_decorator() -> None:
    with pytest.raises(exceptions.InvalidOption, match="after"):
        jobs.index_shop.using(after=[jobs.record_version.enqueue("acme", 1)])
    with pytest.raises(exceptions.InvalidOption, match="debounce"):
        jobs.import_once.using(debounce=DEBOUNCE)
    with pytest.raises(exceptions.InvalidOption, match="max_wait"):
        jobs.record_version.using(max_wait=MAX_WAIT)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a plan of PostgreSQL")
def test_the_job_is_found_by_the_index() -> None:
    assert "tenant_slots_one_per_unique_key" in explained(unique.active().filter(unique_key="a" * 64))
