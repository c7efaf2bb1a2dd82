"""Jobs that run after others: ``using(after=)``. Nothing is lost, and nothing runs early."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import django_rq
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import Value
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import chains, slots, transitions
from tenant_slots.chains import Told
from tenant_slots.db.clock import in_seconds
from tenant_slots.enqueueing import cancel
from tenant_slots.enqueueing.after import require_stored
from tenant_slots.exceptions import InvalidOption, NotInRQ, NotRetryable
from tenant_slots.models import JobDependency, State, TenantJob
from tenant_slots.repair import lost_runs, steps
from tenant_slots.repair.pruning import old_jobs
from tests import jobs
from tests.factories import (
    admit,
    age,
    counters_match,
    damage_found,
    end_run,
    fresh,
    owner,
    redis_forgets,
    running_job,
    tenant_queue,
    work,
)
from tests.history import History
from tests.plans import rows_read
from tests.repair.sweeps import sweep_now
from tests.reports_app.models import Report

pytestmark = pytest.mark.django_db(transaction=True)

FAN_IN = 1000


def after(*awaited: TenantJob, name: str = "next", any_: bool = False, tenant: str = "acme") -> TenantJob:
    return jobs.echo.using(after=awaited, after_any=any_).enqueue(tenant, name)


def first(tenant: str = "acme") -> TenantJob:
    return jobs.echo.enqueue(tenant, "first")


def states(*some: TenantJob) -> list[str]:
    return [fresh(job).state for job in some]


def started(job: TenantJob) -> TenantJob:
    """It runs in this process, which is to end it."""
    assert slots.start(fresh(job), owner())
    return job


def open_edges() -> int:
    return JobDependency.objects.filter(is_open=True).count()


@pytest.fixture
def nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every process died as soon as it has recorded an end."""
    monkeypatch.setattr(transitions, "tell_dependents", lambda ended: None)


def test_a_chain_of_three_runs_in_its_order_across_tenants_and_queues(history: History) -> None:
    a = jobs.record.enqueue("acme", "a", history.path)
    b = jobs.record.using(after=[a], queue="reports").enqueue("beta", "b", history.path)
    c = jobs.record.using(after=[b], priority=100).enqueue("acme", "c", history.path)
    assert states(a, b, c) == ["queued", "scheduled", "scheduled"]
    work()
    assert states(a, b, c) == ["finished"] * 3
    assert history.started() == ["a", "b", "c"]
    assert a.ended_at <= b.started_at <= b.ended_at <= c.started_at
    assert counters_match()
    assert not open_edges()


def test_a_fan_in_of_a_thousand_runs_once_when_the_last_one_has_ended() -> None:
    row = tenant_queue("acme", max_job=FAN_IN)
    many = jobs.echo.enqueue_many([(("acme", number), {}) for number in range(FAN_IN)])
    admit(row)
    last = after(*many, name="summary")
    for number, job in enumerate(many):
        assert last.state == State.SCHEDULED, f"it began after {number} of {FAN_IN}"
        end_run(started(job), state=State.FINISHED)
        last.refresh_from_db()
    assert last.state in (State.WAITING, State.QUEUED)
    work()
    assert states(last) == ["finished"]
    assert (fresh(last).attempt, fresh(row).current_job) == (1, 0)


def test_however_many_a_job_runs_after_no_statement_has_more_parameters_than_a_server_takes() -> None:
    """PostgreSQL takes 65,535 where it binds them itself, and the driver does not."""
    many = range(1, 70_001)
    numbers: list[int] = []

    def counted(execute: Callable[..., Any], sql: str, given: Any, *rest: Any) -> Any:
        numbers.append(len(given or ()))
        return execute(sql, given, *rest)

    with connection.execute_wrapper(counted):
        with pytest.raises(InvalidOption):
            require_stored("a task", many)
        chains.watch(many)
        assert list(chains.untold(many)) == []
    assert 0 < max(numbers) < 10


def test_a_sweep_tells_some_however_long_it_takes_to_find_who_is_to_be_told(
    monkeypatch: pytest.MonkeyPatch, nobody_tells: None
) -> None:
    job = started(first())
    waits = after(job)
    end_run(job, state=State.FINISHED)
    now, concerned = [0.0], chains.concerned

    def slowly(*args: Any) -> list[int]:
        now[0] += 60
        return concerned(*args)

    monkeypatch.setattr(chains, "concerned", slowly)
    monkeypatch.setattr(steps, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert sweep_now().promoted == 1
    assert fresh(waits).state in (State.WAITING, State.QUEUED)


def test_ten_thousand_after_one_are_released_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[int] = []

    def counted(*args: Any) -> Told:
        told = chains.tell(*args)
        chunks.append(len(told.promoted))
        return told

    row = tenant_queue("acme", max_job=1)
    job = running_job(row, owner())
    jobs.echo.using(after=[job]).enqueue_many([(("acme", number), {}) for number in range(10_000)])
    monkeypatch.setattr(transitions, "chains", mock.Mock(wraps=chains, tell=counted))
    monkeypatch.setattr(transitions, "SECONDS_TO_TELL", 0)
    end_run(job, state=State.FINISHED)
    assert sum(chunks) >= chains.TOLD_AT_ONCE, "whoever ends a job tells the first ones"
    while TenantJob.objects.scheduled().exists():
        before = sum(chunks)
        sweep_now()
        assert sum(chunks) > before, "a sweep goes on where the end has left off"
    assert sum(chunks) == 10_000
    assert max(chunks) == chains.TOLD_AT_ONCE
    assert TenantJob.objects.holding().count() == 1, "the limit holds for those that were released together"
    assert counters_match()


def test_whoever_has_no_time_tells_some_and_the_sweep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "SECONDS_TO_TELL", 0)
    a = running_job(tenant_queue(), owner())
    some = [after(a, tenant=f"tenant {number}") for number in range(3)]
    chain = [after(a)]
    chain.append(after(chain[0]))
    end_run(a, state=State.FAILED)
    assert Counter(states(*some, *chain)) == {"canceled": 1, "scheduled": 4}
    sweep_now()
    assert Counter(states(*some, *chain)) == {"canceled": 5}


def failed(job: TenantJob) -> None:
    end_run(started(job), state=State.FAILED, error="ValueError: no such feed")


def crashed(job: TenantJob) -> None:
    with override_settings(TENANT_SLOTS={"MAX_CRASHES": 0}):
        assert lost_runs.end_lost_run(fresh(started(job)), "its process died")


def canceled(job: TenantJob) -> None:
    assert job.cancel()


def canceled_while_it_ran(job: TenantJob) -> None:
    started(job)
    assert job.cancel()
    end_run(fresh(job), state=State.FINISHED)


def canceled_in_a_transaction(job: TenantJob) -> None:
    with transaction.atomic():
        assert job.cancel()


def canceled_with_the_backlog(job: TenantJob) -> None:
    slots.release(job, state=State.WAITING)
    assert cancel.cancel_waiting(job.tenant_queue, [job.pk]) == 1


ENDS: list[tuple[Callable[[TenantJob], None], str, str]] = [
    (failed, "failed", "has failed"),
    (crashed, "failed", "has failed"),
    (canceled, "canceled", "was canceled"),
    (canceled_while_it_ran, "canceled", "was canceled"),
    (canceled_in_a_transaction, "canceled", "was canceled"),
    (canceled_with_the_backlog, "canceled", "was canceled"),
]


@pytest.mark.parametrize(("end", "state", "words"), ENDS, ids=[end[0].__name__ for end in ENDS])
@pytest.mark.parametrize("is_told_by", ["whoever ends it", "the sweep"])
def test_what_comes_after_a_job_that_does_not_finish_is_canceled_with_the_reason(
    end: Callable[[TenantJob], None], state: str, words: str, is_told_by: str, request: pytest.FixtureRequest
) -> None:
    if is_told_by == "the sweep":
        request.getfixturevalue("nobody_tells")
    a = first()
    b, c = after(a), None
    c = after(b)
    whatever = after(a, any_=True)
    end(fresh(a))
    if is_told_by == "the sweep":
        assert states(a, b, c, whatever) == [state, "scheduled", "scheduled", "scheduled"], "this test proves nothing"
        report = sweep_now()
        assert (report.promoted, report.canceled) == (1, 2)
    assert states(a, b, c) == [state, "canceled", "canceled"]
    assert b.error == f"canceled: {a}, which it was to run after, {words}"
    assert c.error == f"canceled: {b}, which it was to run after, was canceled"
    assert b.ended_at
    assert states(whatever) == ["queued"]
    assert not open_edges()
    assert counters_match()


def test_the_reason_names_no_job_of_another_tenant() -> None:
    a = first("secret-corp")
    others, own = after(a), after(a, tenant="secret-corp")
    failed(a)
    assert states(others, own) == ["canceled", "canceled"]
    assert fresh(others).error == "canceled: a job of another tenant, which it was to run after, has failed"
    assert str(a) in fresh(own).error, "the control"


def test_a_failure_in_the_middle_ends_the_chain_there() -> None:
    a = first()
    b = jobs.fail.using(after=[a]).enqueue("acme")
    c = after(b)
    d = after(c)
    work()
    assert states(a, b, c, d) == ["finished", "failed", "canceled", "canceled"]
    assert "tests.jobs.fail" in c.error
    assert counters_match()


def test_one_of_many_that_fails_cancels_at_once_and_the_others_change_nothing_then() -> None:
    row = tenant_queue("acme", max_job=3)
    one, other, third = (running_job(row, owner()) for _ in range(3))
    last = after(one, other, third)
    end_run(one, state=State.FINISHED)
    end_run(other, state=State.FAILED, error="no")
    assert states(last) == ["canceled"]
    end_run(third, state=State.FINISHED)
    assert states(last) == ["canceled"]
    assert not open_edges()


def test_a_job_that_is_to_run_again_has_not_ended() -> None:
    a = first()
    b = after(a)
    end_run(started(a), state=State.WAITING, error="it failed, and has a retry left")
    assert states(b) == ["scheduled"]
    end_run(started(a), state=State.FINISHED)
    assert states(b) == ["queued"]


@pytest.mark.parametrize(("state", "then"), [("finished", "queued"), ("failed", "canceled"), ("canceled", "canceled")])
def test_a_job_may_come_after_one_that_has_ended_already(state: str, then: str) -> None:
    a = first()
    end_run(started(a), state=State(state))
    assert states(after(a), after(a, any_=True)) == [then, "queued" if then == "canceled" else "waiting"]
    assert not open_edges()


def test_no_jobs_to_wait_for_are_nothing_to_wait_for() -> None:
    assert states(after()) == ["queued"]


def test_the_same_job_twice_is_one() -> None:
    a = first()
    b = after(a, a)
    work()
    assert states(b) == ["finished"]


def test_a_rollback_leaves_nothing() -> None:
    a = first()
    with transaction.atomic():
        b = after(a)
        after(b)
        transaction.set_rollback(True)
    assert TenantJob.objects.get() == a
    assert not JobDependency.objects.exists()
    assert not TenantJob.objects.filter(awaited=True).exists()
    work()
    assert states(a) == ["finished"]


def test_a_chain_that_is_enqueued_in_one_transaction_runs() -> None:
    with transaction.atomic():
        a = first()
        b = after(a)
        c = after(b)
    work()
    assert states(a, b, c) == ["finished"] * 3


def test_a_job_of_a_part_of_the_transaction_that_was_taken_back_is_refused() -> None:
    with transaction.atomic():
        with transaction.atomic():
            a = first()
            transaction.set_rollback(True)
        with pytest.raises(InvalidOption, match=f"after={a.pk} .* it was deleted"):
            after(a)
    assert not TenantJob.objects.exists()


@pytest.mark.parametrize("value", ["job", 7, ["job"], [None], [7]], ids=repr)
def test_what_is_no_list_of_jobs_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"after=.*give a list of jobs"):
        jobs.echo.using(after=value)


def test_a_job_that_is_not_stored_is_refused() -> None:
    with pytest.raises(InvalidOption, match="not stored"):
        jobs.echo.using(after=[TenantJob()])


def test_one_job_without_a_list_is_refused() -> None:
    with pytest.raises(InvalidOption, match="give a list of jobs"):
        jobs.echo.using(after=first())  # type: ignore[arg-type]


def test_a_query_and_a_generator_of_jobs_do() -> None:
    a = first()
    b = jobs.echo.using(after=TenantJob.objects.filter(pk=a.pk)).enqueue("acme", 1)
    c = jobs.echo.using(after=(job for job in [b])).enqueue("acme", 2)
    assert states(b, c) == ["scheduled", "scheduled"]
    work()
    assert states(b, c) == ["finished", "finished"]


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_redis_that_loses_everything_loses_no_chain(when: str, request: pytest.FixtureRequest) -> None:
    a = first()
    b = after(a)
    c = after(b)
    if when == "before":
        redis_forgets()
    if when == "between":
        a = running_job(tenant_queue("beta"), owner())
        b = after(a, tenant="beta")
        c = after(b, tenant="beta")
        redis_forgets()
        end_run(a, state=State.FINISHED)
    if when == "after":
        end_run(started(a), state=State.FINISHED)
        redis_forgets()
    TenantJob.objects.queued().update(admitted_at=in_seconds(-60))
    for _ in range(5):
        sweep_now()
        work()
        TenantJob.objects.queued().update(admitted_at=in_seconds(-60))
    assert states(a, b, c) == ["finished"] * 3
    assert counters_match()


def test_retry_of_the_failed_job_leaves_what_it_canceled_until_that_is_retried_too() -> None:
    a = first()
    b, c = after(a), None
    c = after(b)
    failed(a)
    fresh(a).retry()
    assert states(a, b, c) == ["queued", "canceled", "canceled"]
    fresh(b).retry()
    fresh(c).retry()
    assert states(a, b, c) == ["queued", "scheduled", "scheduled"], "they wait for it again"
    work()
    assert states(a, b, c) == ["finished"] * 3
    assert counters_match()


def test_retry_of_what_was_canceled_waits_for_nobody_that_has_ended() -> None:
    a = first()
    b = after(a)
    failed(a)
    fresh(b).retry()
    assert states(a, b) == ["failed", "queued"], "who retries it has decided so"


def test_a_job_that_was_canceled_while_it_waited_waits_again_when_it_is_retried() -> None:
    a = first()
    b = after(a)
    b.cancel()
    fresh(b).retry()
    assert states(a, b) == ["queued", "scheduled"]
    work()
    assert states(a, b) == ["finished", "finished"]


def test_a_job_that_was_canceled_is_not_run_by_the_end_for_which_it_waited() -> None:
    a = first()
    b = after(a)
    b.cancel()
    work()
    assert states(a, b) == ["finished", "canceled"]
    assert not b.error
    assert not open_edges()


def test_a_job_that_is_retried_when_its_time_has_come_is_not_held_by_an_end_that_is_told_late(
    nobody_tells: None,
) -> None:
    a = first()
    b = after(a)
    b.cancel()
    failed(a)
    fresh(b).retry()
    end_run(started(b), state=State.SCHEDULED, later=3600.0)
    sweep_now()
    assert states(b) == ["scheduled"], "it waits for its own retry"
    assert not open_edges()


def test_a_retried_job_is_not_canceled_again_by_an_end_of_before_that_is_told_late(nobody_tells: None) -> None:
    others = [first(), first()]
    b = after(*others)
    b.cancel()
    failed(others[0])
    fresh(b).retry()
    sweep_now()
    assert states(b) == ["scheduled"], "it waits for the one that had not ended"
    work()
    sweep_now()
    work()
    assert states(*others, b) == ["failed", "finished", "finished"]


def test_a_retry_that_is_refused_keeps_no_end_from_a_job_that_waits(nobody_tells: None) -> None:
    others = [first(), first()]
    b = after(*others)
    failed(others[0])
    with pytest.raises(NotRetryable):
        fresh(b).retry()
    sweep_now()
    assert states(b) == ["canceled"]


@pytest.mark.parametrize("how", ["delete", "queryset", "sql"])
@pytest.mark.parametrize("any_", [False, True])
def test_a_job_that_is_deleted_counts_as_one_that_did_not_finish(how: str, any_: bool) -> None:
    a = first("beta")
    b = after(a, any_=any_)
    if how == "delete":
        a.delete()
    elif how == "queryset":
        TenantJob.objects.filter(pk=a.pk).delete()
    else:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM tenant_slots_tenantjob WHERE id = %s", [a.pk])
    sweep_now()
    assert states(b) == (["queued"] if any_ else ["canceled"])
    assert b.error == ("" if any_ else "canceled: a job that it was to run after was deleted")
    assert not open_edges()


def test_a_waiting_job_that_is_deleted_is_forgotten() -> None:
    a = first()
    after(a).delete()
    work()
    assert states(a) == ["finished"]
    assert not JobDependency.objects.exists()


def test_an_old_job_is_kept_until_those_that_wait_for_it_are_told(nobody_tells: None) -> None:
    a, other = first(), first()
    b = after(a)
    for job in (a, other):
        end_run(started(job), state=State.FINISHED)
        age(job, ended_at=10**9)
    assert list(old_jobs(None)) == [other], "b is not told yet"
    sweep_now()
    sweep_now()
    assert states(b) == ["queued"]
    assert not TenantJob.objects.filter(pk__in=[a.pk, other.pk]).exists()


def test_what_a_pruned_job_waited_for_goes_with_it() -> None:
    a = first()
    b = after(a)
    work()
    for job in (a, b):
        age(job, ended_at=10**9)
    sweep_now()
    assert not TenantJob.objects.exists()
    assert not JobDependency.objects.exists()


@pytest.mark.parametrize("how", ["delete", "queryset", "tenant queue"])
def test_so_it_does_with_one_that_is_deleted(how: str) -> None:
    a = first()
    b, other = after(a), after(a, tenant="beta")
    work()
    if how == "delete":
        b.delete()
    elif how == "queryset":
        b.tenant_queue.jobs.annotate(one=Value(1)).order_by("-pk").delete()
    else:
        b.tenant_queue.delete()
    assert list(JobDependency.objects.values_list("job", flat=True)) == [other.pk]


def test_a_time_counts_when_the_jobs_have_ended() -> None:
    a = first()
    soon = timezone.now() + timedelta(hours=1)
    b = jobs.echo.using(after=[a], run_after=soon).enqueue("acme", "b")
    past = jobs.echo.using(after=[a], run_after=timezone.now() - timedelta(hours=1)).enqueue("acme", "c")
    assert (b.run_after, past.run_after) == (None, None)
    work()
    assert states(a, b, past) == ["finished", "scheduled", "finished"]
    assert abs(b.run_after - soon) < timedelta(milliseconds=1)
    age(b, run_after=1)
    sweep_now()
    work()
    assert states(b) == ["finished"]


def test_a_time_that_comes_first_lets_nothing_run_early() -> None:
    a = first()
    b = jobs.echo.using(after=[a], run_after=timezone.now() + timedelta(milliseconds=50)).enqueue("acme", "b")
    TenantJob.objects.filter(pk=b.pk).update(options={"not_before": 1.0})
    assert sweep_now().promoted == 0
    assert states(a, b) == ["queued", "scheduled"]
    work()
    assert states(a, b) == ["finished", "finished"]


def test_how_long_it_waited_for_others_does_not_count_as_waiting_for_its_tenant() -> None:
    a = first()
    b = after(a)
    age(b, enqueued_at=3600)
    work()
    assert fresh(b).run_after
    assert b.started_at - b.run_after < timedelta(minutes=1)


def test_every_way_to_enqueue_can_wait(history: History) -> None:
    a = first()
    report = Report.objects.create(tenant="acme")
    waiting = [
        jobs.echo.using(after=[a]).delay("acme", 1),
        *jobs.echo.using(after=[a]).enqueue_many([(("acme", number), {}) for number in range(150)]),
        jobs.import_once.using(after=[a]).enqueue("acme", "once"),
        report.execute.using(after=[a]).enqueue("words"),
    ]
    assert set(states(*waiting)) == {"scheduled"}
    assert jobs.import_once.enqueue("acme", "once") in waiting, "a duplicate of one that waits"
    end_run(started(a), state=State.FINISHED)
    assert Counter(states(*waiting))["scheduled"] == 0
    assert len({edge.job_id for edge in JobDependency.objects.all()}) == len(waiting)


def test_async_code_enqueues_it_too() -> None:
    a = first()
    b = async_to_sync(jobs.echo.using(after=[a]).aenqueue)("acme", 1)
    assert states(b) == ["scheduled"]
    work()
    assert states(b) == ["finished"]


def test_of_unique_jobs_only_those_that_are_stored_wait() -> None:
    a = first()
    under_way = jobs.import_once.enqueue("acme", "1")
    found = jobs.import_once.using(after=[a]).enqueue_many([(("acme", str(number)), {}) for number in range(3)])
    assert found[1] == under_way
    assert states(*found) == ["scheduled", "waiting", "scheduled"]
    assert {edge.job_id for edge in JobDependency.objects.all()} == {found[0].pk, found[2].pk}


def test_what_waits_can_be_given_to_plain_rq() -> None:
    a = first()
    ways = pickle.loads(pickle.dumps(jobs.echo.using(after=[a], after_any=True)))
    assert states(ways.enqueue("acme", 1)) == ["scheduled"]


def test_a_second_dependent_of_the_same_job_is_told_too() -> None:
    a = first()
    b = after(a)
    assert TenantJob.objects.filter(pk=a.pk, awaited=True).exists()
    c = after(a)
    work()
    assert states(a, b, c) == ["finished"] * 3


def test_the_doctor_finds_nothing_wrong_with_jobs_that_wait_for_others() -> None:
    age(after(first()), enqueued_at=10**6)
    assert damage_found() == []


def statements(action: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        action()
    begins = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")
    return [query["sql"] for query in queries if not query["sql"].startswith(begins)]


def test_nothing_is_asked_for_jobs_that_nobody_waits_for() -> None:
    """Enqueueing, an end and a cancel: none of them looks at the dependencies."""
    row = tenant_queue(max_job=3)
    ending, other = running_job(row, owner()), first()
    for action in (first, lambda: end_run(ending, state=State.FINISHED), other.cancel):
        assert not [sql for sql in statements(action) if "jobdependency" in sql]
    awaited = running_job(row, owner())
    after(awaited)
    told = statements(lambda: end_run(awaited, state=State.FINISHED))
    assert [sql for sql in told if "jobdependency" in sql], "or this test would not see them"


def dependencies_read(tenant_queue_id: int, ended: TenantJob) -> float:
    """In telling of an end, with what PostgreSQL would do in a large table."""
    asked = statements(lambda: chains.tell(tenant_queue_id, [ended.pk]))
    read = 0.0
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_jobdependency")
        cursor.execute("SET LOCAL enable_seqscan = off")
        for sql in [sql for sql in asked if sql.startswith("SELECT") and "jobdependency" in sql]:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
            read += rows_read(cursor.fetchone()[0][0]["Plan"], JobDependency._meta.db_table)
    return read


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite does not count the rows that it reads")
def test_an_end_reads_no_more_where_two_jobs_wait_for_many_others() -> None:
    read = []
    for number in (20, 200):
        awaited = jobs.echo.enqueue_many([(("acme", number), {}) for _ in range(number)])
        both = [after(*awaited), after(*awaited)]
        TenantJob.objects.filter(pk=awaited[0].pk).update(state=State.FINISHED)
        read.append(dependencies_read(awaited[0].tenant_queue_id, awaited[0]))
        assert states(*both) == ["scheduled"] * 2
    assert 0 < max(read) <= 4, "two of each, or twice that, as PostgreSQL joins them in another order"


def test_the_number_of_statements_does_not_depend_on_how_many_wait() -> None:
    row = tenant_queue(max_job=2)
    numbers = []
    for dependents in (2, 200):
        job = running_job(row, owner())
        calls = [(("acme", number), {}) for number in range(dependents)]
        enqueued = statements(lambda: jobs.echo.using(after=[job]).enqueue_many(calls))  # noqa: B023
        with mock.patch.object(transitions, "offer"), mock.patch.object(transitions, "feed_each"):
            ended = statements(lambda: end_run(job, state=State.FINISHED))  # noqa: B023
        numbers.append((len(enqueued), len(ended)))
        cancel.cancel_waiting(row, list(TenantJob.objects.waiting().values_list("pk", flat=True)))
    (few_enqueued, few_ended), (many_enqueued, many_ended) = numbers
    assert few_ended == many_ended == (7 if connection.vendor == "postgresql" else 10), "SQLite has its BEGIN too"
    if connection.vendor == "postgresql":  # SQLite takes so many values in one INSERT, and no COPY
        assert many_enqueued <= few_enqueued + 2, "a COPY, and its keys"


@pytest.mark.parametrize("state", ["waiting", "scheduled", "canceled", "canceled from its slot"])
def test_the_id_in_rq_of_a_job_that_rq_does_not_know_is_refused(state: str) -> None:
    """RQ would run a job that depends on it at once, or never."""
    a = first()
    job = {"scheduled": lambda: after(a), "canceled from its slot": lambda: fresh(a)}.get(state, first)()
    said, _, of_a_slot = state.partition(" from ")
    assert (job.state == State.QUEUED) == bool(of_a_slot)
    if said == "canceled":
        job.cancel()
    with pytest.raises(NotInRQ, match=rf"{said}.*using\(after=\[job\]\)"):
        django_rq.get_queue("imports").enqueue(jobs.echo, "acme", 1, depends_on=job.rq_id)


def test_the_id_in_rq_of_a_job_that_rq_knows_is_that_of_its_last_attempt() -> None:
    a = fresh(first())
    assert a.rq_id == f"{a.uuid}-1"
    work()
    assert fresh(a).rq_id == f"{a.uuid}-1"
