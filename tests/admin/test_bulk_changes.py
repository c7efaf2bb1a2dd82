"""Actions on many rows: a background job carries them out, exactly, and says what came of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from tenant_slots import signals, tenants
from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin, actions
from tenant_slots.admin.bulk import chunks, pages, start, ways
from tenant_slots.admin.bulk import run as bulk_run
from tenant_slots.admin.bulk.chunks import Chunk
from tenant_slots.admin.bulk.commission import Commission
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.admin.bulk.work import Work
from tenant_slots.db.clock import in_seconds
from tenant_slots.enqueueing import cancel
from tenant_slots.exceptions import BulkChangeOvertaken, UnknownBulkAction
from tenant_slots.locks import locked
from tenant_slots.models import BulkChange, BulkChunk, Ending, KeptChange, LimitSource, State, TenantJob, TenantQueue
from tenant_slots.stats import rows as stats_rows
from tests import jobs, refusals
from tests.admin.bulk_changes import (
    came_of,
    carried_out,
    confirm,
    many_jobs,
    many_queues,
    page_of,
    problems_of,
    report_of,
    started,
    text_of,
)
from tests.admin.site import JOBS, QUEUES, asked, confirmed, messages_of, signed_in
from tests.factories import another_process, counters_match, fresh, in_thread, running_job, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_this_session, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 3 rows are left to a background job, in chunks of 4."""
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    monkeypatch.setattr(chunks, "QUEUES_PER_CHUNK", 4)
    monkeypatch.setattr(chunks, "JOBS_PER_CHUNK", 4)


# --- tenant queues -------------------------------------------------------------------------------------------------


def test_the_limits_of_many_tenant_queues_are_set_in_the_background(boss: Client) -> None:
    rows = many_queues(10)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5", reason="sale")
    assert {fresh(row).max_job for row in rows} == {1}
    assert report_of(boss, change)[1] == "0 of 10"

    carried_out(change)

    assert {(fresh(row).max_job, row.version, row.limit_source, row.limit_set_by) for row in rows} == {
        (5, 1, LimitSource.SET, change.by)
    }
    assert report_of(boss, change) == ["It is done.", "10 of 10", "The limits of 10 tenant queues were set."]


def test_every_changed_row_has_its_history_with_user_and_reason(boss: Client) -> None:
    rows = many_queues(6)
    change = carried_out(started(boss, QUEUES, "set_limit", rows, max_job="5", reason="sale"))
    for row in rows:
        kept = KeptChange.objects.get(tenant_queue=row)
        assert (kept.what, kept.old, kept.new, kept.by, kept.reason) == ("limit", "1", "5", change.by, "sale")
        entry = LogEntry.objects.get(object_id=str(row.pk))
        assert (entry.get_change_message(), entry.object_repr, entry.user.username) == (
            "Changed limit: 1 → 5 (sale).", str(row), change.by,
        )  # fmt: skip
        assert [pair[1] for pair in fresh(row).limit_history] == [1]


def test_a_limit_that_is_set_as_it_is_keeps_its_author_and_a_default_gets_one(boss: Client) -> None:
    rows = many_queues(5, max_job=5)
    rows[0].set_limit(6, by="anna")
    rows[0].set_limit(5, by="anna", reason="contract")
    change = carried_out(started(boss, QUEUES, "set_limit", rows, max_job="5", reason="sale"))
    assert [fresh(row).limit_set_by for row in rows] == ["anna", *[change.by] * 4]
    assert [fresh(row).version for row in rows] == [2, 1, 1, 1, 1]
    assert [LogEntry.objects.filter(object_id=str(row.pk)).count() for row in rows] == [0, 1, 1, 1, 1]
    assert {row.kept_changes.latest("pk").reason for row in rows} == {"contract", "sale"}
    said = ["The limits of 4 tenant queues were set.", "1 tenant queue needed no change."]
    assert report_of(boss, change)[2:] == said


def test_it_changes_a_row_as_the_method_of_one_does(boss: Client) -> None:
    rows, alone = many_queues(5), tenant_queue("alone")
    change = carried_out(started(boss, QUEUES, "set_limit", rows, max_job="5", reason="sale"))
    alone.set_limit(5, by=change.by, reason="sale")

    def shown(row: TenantQueue) -> dict[str, Any]:
        left_out = ("id", "tenant", "created_at", "limit_history")
        return {name: value for name, value in vars(fresh(row)).items() if name not in left_out and name[0] != "_"}

    assert all(shown(row) == shown(alone) for row in rows)


@pytest.mark.parametrize(
    ("action", "data", "field", "value"),
    [
        ("pause", {}, "paused", True),
        ("set_share", {"share": "7"}, "share", 7),
        ("set_limit", {"max_job": "0"}, "max_job", 0),
    ],
)
def test_each_change_of_tenant_queues_is_made(
    boss: Client, action: str, data: dict[str, str], field: str, value: object
) -> None:
    rows = many_queues(5)
    carried_out(started(boss, QUEUES, action, rows, **data))
    assert {getattr(fresh(row), field) for row in rows} == {value}


def test_a_temporary_limit_keeps_the_one_from_before(boss: Client) -> None:
    rows = many_queues(5, max_job=2)
    until = timezone.localtime() + timedelta(hours=2)
    carried_out(started(boss, QUEUES, "set_limit", rows, max_job="9", until=until.strftime("%Y-%m-%dT%H:%M")))
    assert {(fresh(row).max_job, row.limit_before_override) for row in rows} == {(9, 2)}
    assert all(row.override_until is not None for row in rows)


def test_rows_that_rest_are_resumed_too(boss: Client) -> None:
    rows = [*many_queues(4, paused=True), tenant_queue("rests", rests_until=timezone.now() + timedelta(minutes=5))]
    change = carried_out(started(boss, QUEUES, "resume", rows))
    assert not TenantQueue.objects.filter(paused=True).exists()
    assert fresh(rows[-1]).rests_until is None
    assert came_of(change) == {"done": 5}


def test_the_end_of_a_rest_is_kept_and_its_jobs_are_admitted(boss: Client) -> None:
    resting, over = ({"rests_until": timezone.now() + timedelta(minutes=at), "rest_reason": "429"} for at in (5, -5))
    rows = [*many_queues(4, **resting), tenant_queue("over", **over), tenant_queue("both", paused=True, **resting)]
    jobs = [waiting_job(row) for row in rows]
    change = carried_out(started(boss, QUEUES, "resume", rows, reason="they are back"))
    assert came_of(change) == {"done": 5, "unchanged": 1}
    assert [fresh(row).rest_reason for row in rows] == [""] * 4 + ["429", ""]
    assert {fresh(job).state for job in (*jobs[:4], jobs[5])} == {State.FINISHED}
    kept = [[(one.what, one.new) for one in row.kept_changes.order_by("what")] for row in rows]
    assert kept == [[("resting", "False")]] * 4 + [[], [("paused", "False"), ("resting", "False")]]
    entry = LogEntry.objects.filter(object_id=rows[0].pk).get()
    assert entry.get_change_message() == "Changed rest: resting → not resting (they are back)."


def test_a_time_that_passes_before_the_job_runs_is_said(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_queues(5)
    until = timezone.localtime() + timedelta(hours=2)
    change = started(boss, QUEUES, "set_limit", rows, max_job="9", until=until.strftime("%Y-%m-%dT%H:%M"))
    BulkChange.objects.update(values={**change.values, "until": {"time": "2020-01-01T00:00:00+00:00"}})
    carried_out(change)
    assert {fresh(row).max_job for row in rows} == {1}
    assert report_of(boss, change)[2:] == ["5 could not be changed."]
    assert "has passed already" in problems_of(boss, change)


def test_what_needs_no_change_was_changed_meanwhile_or_is_gone_is_counted(boss: Client) -> None:
    rows = many_queues(9)
    rows[1].set_limit(5)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    rows[2].set_limit(7)
    rows[3].set_limit(8)
    rows[4].delete()

    carried_out(change)

    assert report_of(boss, change) == [
        "It is done.",
        "9 of 9",
        "The limits of 5 tenant queues were set.",
        "2 tenant queues were left unchanged: somebody else has changed them in the meantime.",
        "1 tenant queue needed no change.",
        "1 object is gone.",
    ]
    assert [fresh(row).max_job for row in rows[2:4]] == [7, 8]


def test_jobs_that_fit_a_raised_limit_are_admitted(boss: Client) -> None:
    rows = many_queues(5, max_job=0)
    for row in rows:
        waiting_job(row)
    carried_out(started(boss, QUEUES, "set_limit", rows, max_job="1"))
    assert {job.state for row in rows for job in row.jobs.all()} <= {State.QUEUED, State.FINISHED}
    assert counters_match()


def test_tenants_without_work_are_not_offered_to_the_workers(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_queues(5, max_job=0)
    waiting_job(rows[2])
    offered: list[int] = []
    monkeypatch.setattr(
        "tenant_slots.fair_order.changed", lambda queue, tenants: offered.extend(pk for pk, _ in tenants) or []
    )
    carried_out(started(boss, QUEUES, "set_limit", rows, max_job="1"))
    one_by_one = connection.vendor != "postgresql"  # where each is offered with its change
    assert sorted(offered) == ([row.pk for row in rows] if one_by_one else [rows[2].pk])


def test_a_signal_is_sent_for_every_change(boss: Client) -> None:
    rows = many_queues(5)
    told: list[Any] = []

    def hear(tenant_queue: TenantQueue, change: Any, **_: Any) -> None:
        told.append((tenant_queue.pk, change.old, change.new, change.reason))

    signals.limit_changed.connect(hear)
    try:
        carried_out(started(boss, QUEUES, "set_limit", rows, max_job="5", reason="sale"))
    finally:
        signals.limit_changed.disconnect(hear)
    assert told == [(row.pk, 1, 5, "sale") for row in rows]


def test_a_tenant_queue_that_somebody_keeps_locked_is_said_to_have_failed(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    rows = many_queues(5)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    with locked(rows[2].pk):
        in_thread(lambda: _run_impatiently(change))
    assert [fresh(row).max_job for row in rows] == [5, 5, 1, 5, 5]
    assert came_of(change) == {"done": 4, "failed": 1}
    assert "tenant 002 on imports" in problems_of(boss, change)


def test_the_tenant_queue_of_jobs_that_somebody_keeps_locked_is_named(boss: Client) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    rows = many_queues(2, max_job=0)
    some, others = (many_jobs(row, 2) for row in rows)
    change = started(boss, JOBS, "cancel", [*some, *others])
    with locked(rows[0].pk):
        in_thread(lambda: _run_impatiently(change))
    assert came_of(change) == {"done": 2, "failed": 2}
    assert [problem.partition(":")[0] for problem in problems_of(boss, change).splitlines()] == [
        "tenant 000 on imports"
    ]


def _run_impatiently(change: BulkChange) -> None:
    from tenant_slots.db.transactions import waiting_at_most

    with waiting_at_most(0.1):
        run_bulk_change(change.pk)


@pytest.mark.parametrize(("action", "data"), [("set_limit", {"max_job": "5"}), ("resume", {})])
def test_the_statements_of_a_row_do_not_grow_with_the_rows(
    boss: Client, action: str, data: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("elsewhere each row is changed by its own methods")
    monkeypatch.setattr(bulk_run, "SECONDS_BETWEEN_LOOKS", math.inf)  # that takes a statement too

    def queries(number: int) -> int:
        TenantQueue.objects.filter(tenant__startswith="tenant 0").delete()
        rows = many_queues(number, rests_until=timezone.now() + timedelta(minutes=5), version=1)
        change = started(boss, QUEUES, action, rows, **data)
        with CaptureQueriesContext(connection) as captured:
            run_bulk_change(change.pk)
        return len(captured)

    chunks.QUEUES_PER_CHUNK = 100
    queries(4)
    few, many = queries(10), queries(40)
    assert many - few == 30


# --- jobs ----------------------------------------------------------------------------------------------------------


def test_many_jobs_are_canceled_whatever_they_do(boss: Client) -> None:
    row, other = tenant_queue(max_job=2), tenant_queue("other", max_job=0)
    running = running_job(row, another_process())
    (queued,) = many_jobs(row, 1)
    waiting = many_jobs(row, 3) + many_jobs(other, 6)
    scheduled = many_jobs(other, 1, state=State.SCHEDULED, run_after=timezone.now() + timedelta(hours=1))
    ended = many_jobs(other, 2, state=State.FINISHED)
    from tenant_slots import slots

    slots.admit(row.pk, "imports")
    change = started(boss, JOBS, "cancel", [running, queued, *waiting, *scheduled, *ended], reason="wrong feed")

    carried_out(change)

    assert report_of(boss, change) == [
        "It is done.",
        "14 of 14",
        "11 jobs were canceled.",
        "1 running job is being stopped.",
        "2 jobs had already ended.",
    ]
    assert {fresh(job).state for job in [queued, *waiting, *scheduled]} == {State.CANCELED}
    assert all(job.ended_at is not None for job in waiting)
    assert fresh(running).cancel_requested_at is not None
    assert {fresh(job).state for job in ended} == {State.FINISHED}
    assert counters_match()


def test_every_canceled_job_has_an_entry_with_user_and_reason(boss: Client) -> None:
    jobs = many_jobs(tenant_queue(max_job=0), 6)
    change = carried_out(started(boss, JOBS, "cancel", jobs, reason="wrong feed"))
    for job in jobs:
        entry = LogEntry.objects.get(object_id=str(job.pk))
        assert entry.get_change_message() == "Changed state: waiting → canceled (wrong feed)."
        assert (entry.user.username, entry.object_repr) == (change.by, str(job))


def test_the_end_of_every_canceled_job_is_told(boss: Client) -> None:
    jobs = many_jobs(tenant_queue(max_job=0), 6)
    told: list[tuple[int, str, str]] = []

    def hear(job: TenantJob, **_: Any) -> None:
        if job.task != "tenant_slots.admin.bulk.run.run_bulk_change":
            told.append((job.pk, job.state, job.tenant_queue.tenant))

    signals.job_ended.connect(hear)
    try:
        carried_out(started(boss, JOBS, "cancel", jobs))
    finally:
        signals.job_ended.disconnect(hear)
    assert told == [(job.pk, State.CANCELED, "acme") for job in jobs]


def test_without_the_permission_to_stop_running_jobs_are_left_alone() -> None:
    client = signed_in("view_tenantjob", "change_tenantjob")
    row = tenant_queue(max_job=1)
    running, waiting = running_job(row, another_process()), many_jobs(row, 5)
    change = carried_out(started(client, JOBS, "cancel", [running, *waiting]))
    assert came_of(change) == {"done": 5, "not stopped": 1}
    assert fresh(running).cancel_requested_at is None


def test_many_failed_jobs_are_retried_duplicates_of_others_too(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    failed = many_jobs(row, 4, state=State.FAILED, failures=3)
    unique = many_jobs(row, 1, state=State.FAILED, unique_key="a")[0]
    many_jobs(row, 1, unique_key="a")
    of_rq = many_jobs(row, 1, state=State.FAILED, rq_job_id="x")[0]
    change = carried_out(started(boss, JOBS, "retry", [*failed, unique, of_rq]))
    assert came_of(change) == {"done": 5, "other state": 1}
    assert {(fresh(job).state, job.failures, job.ended_at) for job in failed} == {(State.WAITING, 0, None)}
    assert (fresh(unique).state, unique.unique_key) == (State.WAITING, "")
    assert fresh(of_rq).state == State.FAILED


def test_jobs_that_run_after_canceled_ones_are_canceled_with_them(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    awaited = many_jobs(row, 5)
    others = tenant_queue("other", max_job=0)
    dependent = jobs.echo.using(after=[awaited[3]]).enqueue("other", 1)
    assert came_of(carried_out(started(boss, JOBS, "cancel", awaited))) == {"done": 5}
    assert fresh(dependent).state == State.CANCELED
    assert "a job of another tenant, which it was to run after, was canceled" in dependent.error
    assert fresh(others).current_job == 0


def test_a_chain_that_is_retried_keeps_its_order(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    first = jobs.echo.enqueue("acme", 1)
    second = jobs.echo.using(after=[first]).enqueue("acme", 2)
    assert first.cancel()
    more = many_jobs(row, 4, state=State.FAILED)
    assert came_of(carried_out(started(boss, JOBS, "retry", [first, second, *more]))) == {"done": 6}
    assert [fresh(job).state for job in (first, second)] == [State.WAITING, State.SCHEDULED]


def test_a_chain_across_tenants_that_is_retried_keeps_its_order(boss: Client) -> None:
    """Whatever the order of their tenant queues, and in however many transactions and chunks."""
    names = ["last", "middle", "first"]
    for name in names:
        tenant_queue(name, max_job=0)
    first = jobs.echo.enqueue("first", 1)
    second = jobs.echo.using(after=[first]).enqueue("middle", 2)
    third = jobs.echo.using(after=[first, second]).enqueue("last", 3)
    apart = jobs.echo.using(after=[third]).enqueue("first", 4)
    assert first.cancel()
    more = many_jobs(TenantQueue.objects.get(tenant="middle"), 4, state=State.FAILED)
    assert came_of(carried_out(started(boss, JOBS, "retry", [apart, third, second, first, *more]))) == {"done": 8}
    assert [fresh(job).state for job in (first, second, third, apart)] == [State.WAITING] + [State.SCHEDULED] * 3


def test_retried_jobs_have_their_turn(boss: Client) -> None:
    row = tenant_queue(max_job=10)
    failed = many_jobs(row, 5, state=State.FAILED)
    carried_out(started(boss, JOBS, "retry", failed))
    assert {fresh(job).state for job in failed} <= {State.QUEUED, State.FINISHED}


def test_many_priorities_are_changed(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs, ended = many_jobs(row, 5), many_jobs(row, 1, state=State.FINISHED)
    change = carried_out(started(boss, JOBS, "set_priority", [*jobs, *ended], priority="7", reason="vip"))
    assert {fresh(job).priority for job in jobs} == {7}
    assert came_of(change) == {"done": 5, "other state": 1}
    assert LogEntry.objects.get(object_id=str(jobs[0].pk)).get_change_message() == "Changed priority: 0 → 7 (vip)."


def test_running_jobs_are_stopped_one_by_one(boss: Client) -> None:
    row = tenant_queue(max_job=5)
    running = [running_job(row, another_process()) for _ in range(5)]
    change = carried_out(started(boss, JOBS, "stop", running))
    assert came_of(change) == {"done": 5}
    assert all(fresh(job).cancel_requested_at for job in running)


def test_jobs_of_many_tenants_are_changed_in_a_transaction_of_each(boss: Client) -> None:
    rows = many_queues(3, max_job=0)
    jobs = [job for _ in range(3) for row in rows for job in many_jobs(row, 1)]
    change = started(boss, JOBS, "cancel", jobs)
    parts = [part for chunk in BulkChunk.objects.order_by("pk") for part in chunk.left]
    assert [part["of"] for part in parts] == sorted(part["of"] for part in parts)
    carried_out(change)
    assert came_of(change) == {"done": 9}


# --- the jobs of tenant queues -------------------------------------------------------------------------------------


def test_long_backlogs_are_canceled_in_steps_and_counted_by_job(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "JOBS_PER_STEP", 2)
    rows = many_queues(2, max_job=0)
    jobs = [job for row in rows for job in many_jobs(row, 5)]
    change = started(boss, QUEUES, "cancel_waiting", [*rows, tenant_queue("empty")], typed="10", reason="wrong feed")
    later = many_jobs(rows[0], 1)[0]
    TenantJob.objects.filter(pk=jobs[0].pk).update(state=State.FINISHED, ended_at=timezone.now())

    carried_out(change)

    assert report_of(boss, change) == [
        "It is done.",
        "9 of 10",
        "The waiting jobs of 2 tenant queues were canceled.",
        "9 jobs were canceled.",
        "1 tenant queue needed no change.",
        "1 job was left alone: it had moved on.",
    ]
    assert (fresh(later).state, fresh(jobs[0]).state) == (State.WAITING, State.FINISHED)
    assert {fresh(job).state for job in jobs[1:]} == {State.CANCELED}
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == [
        "Changed waiting jobs canceled: 4 (wrong feed).",
        "Changed waiting jobs canceled: 5 (wrong feed).",
    ]


def test_all_failed_jobs_of_a_tenant_queue_are_retried_once(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "JOBS_PER_STEP", 2)
    row = tenant_queue(max_job=0)
    failed = many_jobs(row, 5, state=State.FAILED)
    change = started(boss, QUEUES, "retry_failed", [row], reason="the partner is back")

    def fails_again(jobs: list[TenantJob]) -> None:
        TenantJob.objects.filter(pk=failed[0].pk, state=State.WAITING).update(state=State.FAILED)

    _after_each_step(monkeypatch, fails_again)
    carried_out(change)
    assert came_of(change) == {"jobs": 5, "done": 1}
    assert LogEntry.objects.get().get_change_message() == "Changed failed jobs retried: 5 (the partner is back)."
    assert fresh(failed[0]).state == State.FAILED


def test_what_was_done_of_a_tenant_queue_before_a_stop_is_in_its_history(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel, "JOBS_PER_STEP", 2)
    row = tenant_queue(max_job=0)
    many_jobs(row, 5, state=State.FAILED)
    change = started(boss, QUEUES, "retry_failed", [row], reason="the partner is back")
    _after_each_step(monkeypatch, lambda jobs: boss.post(page_of(change), {"stop": "Stop"}))
    monkeypatch.setattr(bulk_run, "SECONDS_BETWEEN_LOOKS", -1)

    carried_out(change)

    assert came_of(change) == {"jobs": 2}
    assert _history_of(row) == ["Changed failed jobs retried: 2 (the partner is back)."]


def test_so_it_is_where_nobody_went_on_with_it(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=0)
    change = _broken_off(boss, monkeypatch, row)
    TenantJob.objects.get(uuid=change.job).cancel()
    boss.post(page_of(change), {"stop": "Stop"})
    assert came_of(change) == {"jobs": 2}
    assert _history_of(row) == ["Changed failed jobs retried: 2 (the partner is back)."]


def test_so_it_is_where_whoever_confirmed_it_may_not_do_it_any_more(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue(max_job=0)
    change = _broken_off(boss, monkeypatch, row)
    User.objects.filter(pk=change.user_key).update(is_active=False)
    run_bulk_change(change.pk)
    assert fresh(change).ending == Ending.FORBIDDEN
    assert _history_of(row) == ["Changed failed jobs retried: 2 (the partner is back)."]


def test_so_it_is_where_they_see_the_tenant_queue_no_longer(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=0)
    change = _broken_off(boss, monkeypatch, row)
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda *_: TenantQueue.objects.none())
    carried_out(change)
    assert came_of(change) == {"jobs": 2, "gone": 1}
    assert _history_of(row) == ["Changed failed jobs retried: 2 (the partner is back)."]


def test_where_they_are_gone_there_is_nobody_to_name(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=0)
    change = _broken_off(boss, monkeypatch, row)
    User.objects.filter(pk=change.user_key).delete()
    run_bulk_change(change.pk)
    assert fresh(change).ending == Ending.FORBIDDEN
    assert came_of(change) == {"jobs": 2}
    assert not _history_of(row)


def test_so_it_is_where_the_rest_of_a_tenant_queue_is_refused(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("the trigger that refuses it is PostgreSQL's")
    row, other = many_queues(2, max_job=0)
    many_jobs(other, 5, state=State.FAILED)
    change = _broken_off(boss, monkeypatch, row, other)
    with refusals.refused(f"NEW.tenant_queue_id = {row.pk}", refusals.RAISED, TenantJob):
        carried_out(change)
    assert came_of(change) == {"jobs": 7, "done": 1, "failed": 1}
    assert _history_of(row) == ["Changed failed jobs retried: 2 (the partner is back)."]
    assert _history_of(other) == ["Changed failed jobs retried: 5 (the partner is back)."]
    assert problems_of(boss, change).startswith("tenant 000 on imports: ")


@pytest.mark.parametrize("is_lost", [True, False])
def test_its_entry_is_in_the_language_of_whoever_has_confirmed_it(
    is_lost: bool, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue(max_job=0)
    change = _broken_off(boss, monkeypatch, row)
    BulkChange.objects.update(language="de")
    if is_lost:
        TenantJob.objects.get(uuid=change.job).cancel()
    boss.post(page_of(change), {"stop": "Stop"})
    run_bulk_change(change.pk)
    with translation.override("de"):
        assert _history_of(row) == ["Fehlgeschlagene Jobs wiederholt: 2 (the partner is back) geändert."]


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "refused"])
def test_an_entry_that_cannot_be_written_keeps_nothing_from_its_end(
    is_stopped: bool, boss: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("the trigger that refuses it is PostgreSQL's")
    row, other = many_queues(2, max_job=0)
    many_jobs(other, 5, state=State.FAILED)
    change = _broken_off(boss, monkeypatch, row, other)
    if is_stopped:
        TenantJob.objects.get(uuid=change.job).cancel()
    with refusals.refused(f"NEW.object_id = '{row.pk}'", refusals.RAISED, LogEntry, "INSERT"):
        boss.post(page_of(change), {"stop": "Stop"}) if is_stopped else carried_out(change)

    assert fresh(change).ending == (Ending.STOPPED if is_stopped else Ending.DONE)
    assert came_of(change) == ({"jobs": 2} if is_stopped else {"jobs": 9, "done": 1, "failed": 1})
    assert not _history_of(row)
    assert "a change stands without its entry in the log of the admin" in caplog.text


def test_a_worker_without_the_action_stops_it_all_the_same(
    boss: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = tenant_queue(max_job=0)
    change = _broken_off(boss, monkeypatch, row)
    boss.post(page_of(change), {"stop": "Stop"})
    BulkChange.objects.update(site="elsewhere")

    run_bulk_change(change.pk)

    assert fresh(change).ending == Ending.STOPPED
    assert came_of(change) == {"jobs": 2}
    assert f"is not in the history of tenant queue {row.pk}" in caplog.text


def test_of_jobs_whose_tenant_queue_could_not_be_changed_it_is_not_said_that_they_had_moved_on(boss: Client) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite locks no rows")
    rows = many_queues(2, max_job=0)
    for row in rows:
        many_jobs(row, 3)
    change = started(boss, QUEUES, "cancel_waiting", rows, typed="6")
    with locked(rows[0].pk):
        in_thread(lambda: _run_impatiently(change))
    assert report_of(boss, change) == [
        "It is done.",
        "3 of 6",
        "The waiting jobs of 1 tenant queue were canceled.",
        "3 jobs were canceled.",
        "1 could not be changed.",
        "3 jobs were left alone: they had moved on, or their tenant queue is gone or could not be changed.",
    ]


def test_nor_is_it_of_jobs_whose_tenant_queue_is_gone(boss: Client) -> None:
    rows = many_queues(2, max_job=0)
    for row in rows:
        many_jobs(row, 3)
    change = started(boss, QUEUES, "cancel_waiting", rows, typed="6")
    rows[0].jobs.all().delete()
    rows[0].delete()
    carried_out(change)
    assert report_of(boss, change)[-2:] == [
        "1 object is gone.",
        "3 jobs were left alone: they had moved on, or their tenant queue is gone or could not be changed.",
    ]


def _broken_off(boss: Client, monkeypatch: pytest.MonkeyPatch, *rows: TenantQueue) -> BulkChange:
    """After the first two jobs of the first tenant queue."""
    monkeypatch.setattr(cancel, "JOBS_PER_STEP", 2)
    many_jobs(rows[0], 5, state=State.FAILED)
    change = started(boss, QUEUES, "retry_failed", list(rows), reason="the partner is back")
    commission = Commission.of(change)
    assert commission is not None
    work = Work(commission, Chunk.of(change.chunks.get()))
    next(ways.way_of(commission.action)(work))
    return change


def _history_of(row: TenantQueue) -> list[str]:
    entries = LogEntry.objects.filter(content_type__model="tenantqueue", object_id=str(row.pk)).order_by("pk")
    return [entry.get_change_message() for entry in entries]


def _after_each_step(monkeypatch: pytest.MonkeyPatch, do: Callable[[list[TenantJob]], None]) -> None:
    from tenant_slots.enqueueing import retry

    before = retry.retry_all

    def retry_all(row: TenantQueue, jobs: list[TenantJob]) -> list[TenantJob]:
        done = before(row, jobs)
        do(done)
        return done

    monkeypatch.setattr(retry, "retry_all", retry_all)


# --- what was shown, and who may -----------------------------------------------------------------------------------


def test_few_rows_are_changed_in_the_request(boss: Client) -> None:
    rows = many_queues(3)
    response = confirmed(boss, QUEUES, "set_limit", *rows, max_job="5")
    assert messages_of(response) == ["The limits of 3 tenant queues were set."]
    assert not BulkChange.objects.exists()


def test_the_page_says_that_a_background_job_will_do_it(boss: Client) -> None:
    rows = many_queues(4)
    page, _ = asked(boss, QUEUES, "pause", *rows)
    assert "A background job will do this" in text_of(page)
    page, _ = asked(boss, QUEUES, "pause", *rows[:3])
    assert "A background job" not in text_of(page)


def test_the_set_is_frozen_when_it_is_confirmed(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs = many_jobs(row, 5)
    change = started(boss, JOBS, "cancel", jobs)
    later = many_jobs(row, 2)
    carried_out(change)
    assert {fresh(job).state for job in later} == {State.WAITING}


def test_a_form_that_is_sent_twice_is_one_bulk_change(boss: Client) -> None:
    _, sent = asked(boss, QUEUES, "set_limit", *many_queues(5))
    first, second = (boss.post(QUEUES, {**sent, "max_job": "5"}) for _ in range(2))
    change = BulkChange.objects.get()
    assert first["Location"] == second["Location"] == page_of(change)
    assert TenantJob.objects.filter(task__contains="run_bulk_change").count() == 1
    carried_out(change)
    assert boss.post(QUEUES, {**sent, "max_job": "5"})["Location"] == page_of(change)


def test_a_form_that_is_sent_with_other_values_is_another_bulk_change(boss: Client) -> None:
    """As after the browser's button to go back."""
    rows = many_queues(5)
    _, sent = asked(boss, QUEUES, "set_share", *rows)
    for share in ("5", "7"):
        boss.post(QUEUES, {**sent, "share": share})
    assert [change.values["share"] for change in BulkChange.objects.order_by("pk")] == [5, 7]


def test_what_no_page_has_asked_for_is_done_each_time(boss: Client) -> None:
    """A script may send the same every night."""
    rows = many_queues(5)
    sent = {"action": "pause", "confirm": "yes", "_selected_action": [row.pk for row in rows]}
    for once in ({}, {"once": "no id"}):
        boss.post(QUEUES, {**sent, **once})
        boss.post(QUEUES, {**sent, **once})
    assert BulkChange.objects.count() == 4


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
def test_a_double_click_is_one_bulk_change_whichever_process_meets_it(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sent = asked(boss, QUEUES, "set_limit", *many_queues(5))
    enqueue, second = start.enqueue, ThreadPoolExecutor(1)
    answers: list[Future[Any]] = []

    def click_again(*args: Any) -> None:
        monkeypatch.setattr(start, "enqueue", enqueue)
        answers.append(second.submit(closed_after, lambda: boss.post(QUEUES, {**sent, "max_job": "5"})))
        wait_until(lambda: somebody_waits_for_this_session() or answers[0].done())
        enqueue(*args)

    monkeypatch.setattr(start, "enqueue", click_again)
    first = boss.post(QUEUES, {**sent, "max_job": "5"})
    assert answers[0].result()["Location"] == first["Location"] == page_of(BulkChange.objects.get())


def closed_after(request: Callable[[], Any]) -> Any:
    try:
        return request()
    finally:
        connections.close_all()


def test_confirming_costs_the_same_queries_for_many_and_for_few(boss: Client) -> None:
    row = tenant_queue(max_job=0)

    def queries(number: int) -> int:
        jobs = many_jobs(row, number)
        _, sent = asked(boss, JOBS, "cancel", *jobs)
        with CaptureQueriesContext(connection) as captured:
            boss.post(JOBS, sent)
        carried_out(BulkChange.objects.latest("pk"))
        return len(captured)

    chunks.JOBS_PER_CHUNK = 10
    queries(4)
    assert queries(5) == queries(90)


@pytest.mark.parametrize("action", ["set_limit", "set_share", "cancel_waiting", "retry_failed", "delete_selected"])
def test_what_the_page_in_between_asks_does_not_grow_with_the_rows(boss: Client, action: str) -> None:
    """Ten thousand parameters of a query take longer than the query."""
    asked_with: list[int] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        asked_with.append(len(params or ()))
        return execute(sql, params, many, context)

    def parameters_of_all(rows: list[TenantQueue]) -> int:
        asked_with.clear()
        data = {"action": action, "_selected_action": [rows[0].pk], "select_across": "1"}
        with connection.execute_wrapper(count):
            assert f"This affects {len(rows)} objects." in text_of(boss.post(QUEUES, data))
        return max(asked_with)

    rows = many_queues(5)
    parameters_of_all(rows)  # the tiles are at hand now
    assert parameters_of_all(rows) == parameters_of_all(rows + many_queues(200, queue="reports"))


def test_the_page_in_between_measures_no_list(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_queues(4)
    measured: list[Any] = []
    monkeypatch.setattr(stats_rows, "measured", lambda *asked: measured.append(asked) or {})
    boss.post(QUEUES, {"action": "set_limit", "_selected_action": [row.pk for row in rows]})
    assert measured == []


def test_rows_of_other_tenants_are_gone_for_those_who_do_not_see_them(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = many_queues(6)
    _, sent = asked(boss, QUEUES, "set_limit", *rows)
    monkeypatch.setattr(
        TenantQueueAdmin, "tenant_queues_for", lambda self, request: TenantQueue.objects.filter(pk__lte=rows[3].pk)
    )
    boss.post(QUEUES, {**sent, "max_job": "5"})
    change = BulkChange.objects.get()
    monkeypatch.setattr(
        TenantQueueAdmin, "tenant_queues_for", lambda self, request: TenantQueue.objects.filter(pk__lte=rows[1].pk)
    )
    carried_out(change)
    assert came_of(change) == {"done": 2, "gone": 4}
    assert [fresh(row).max_job for row in rows] == [5, 5, 1, 1, 1, 1]


def test_jobs_of_other_tenants_are_left_by_a_worker(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tenant_queue("own", max_job=0), tenant_queue("other", max_job=0)
    change = started(boss, JOBS, "cancel", [*many_jobs(own, 2), *many_jobs(other, 3)])
    monkeypatch.setattr(
        TenantJobAdmin, "tenant_queues_for", lambda self, request: TenantQueue.objects.filter(pk=own.pk)
    )
    carried_out(change)
    assert came_of(change) == {"done": 2, "gone": 3}
    assert other.jobs.waiting().count() == 3


@pytest.mark.parametrize("loss", ["permission", "active", "staff", "user"])
def test_who_may_no_longer_do_it_changes_nothing_more(loss: str) -> None:
    client = signed_in("view_tenantqueue", "set_limit_tenantqueue")
    rows = many_queues(6)
    change = started(client, QUEUES, "set_limit", rows, max_job="5")
    user = User.objects.get(username=change.by)
    if loss == "permission":
        user.user_permissions.remove(Permission.objects.get(codename="set_limit_tenantqueue"))
    elif loss == "user":
        user.delete()
    else:
        User.objects.filter(pk=user.pk).update(**{f"is_{loss}": False})
    carried_out(change)
    assert (fresh(change).ending, {fresh(row).max_job for row in rows}) == (Ending.FORBIDDEN, {1})
    text = "It has ended early: whoever confirmed it may not do this any more."
    assert report_of(signed_in(superuser=True), change) == [text, "0 of 6", "6 were not looked at."]


def test_everybody_sees_their_own_and_those_of_others_with_a_permission(boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(5), max_job="5")
    own, other, all_seeing = (
        boss,
        signed_in("view_tenantqueue", "set_limit_tenantqueue"),
        signed_in("view_tenantqueue", "view_bulkchange"),
    )
    pages = [page_of(change), page_of(change, "bulk_live")]
    assert [[client.get(page).status_code for page in pages] for client in (own, other, all_seeing)] == [
        [200, 200], [404, 404], [200, 200],
    ]  # fmt: skip
    listed = [page_of(change) in text_of(client.get(f"{QUEUES}bulk/")) for client in (own, other, all_seeing)]
    assert listed == [True, False, True]
    assert signed_in().get(f"{QUEUES}bulk/").status_code == 403
    assert all_seeing.post(page_of(change), {"stop": "x"}).status_code == 403
    assert fresh(change).cancel_requested_at is None


def test_who_is_restricted_to_tenants_sees_only_their_own_whatever_they_may(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have changed names tenants that are none of theirs."""
    rows = many_queues(5)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    restricted = signed_in("view_tenantqueue", "view_bulkchange", "set_limit_tenantqueue")
    own = started(restricted, QUEUES, "set_limit", rows, max_job="7")
    theirs = TenantQueue.objects.filter(pk=rows[0].pk)
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: theirs)
    assert restricted.get(page_of(change)).status_code == 404
    assert restricted.get(page_of(change, "bulk_live")).status_code == 404
    listed = text_of(restricted.get(f"{QUEUES}bulk/"))
    assert (page_of(change) in listed, page_of(own) in listed) == (False, True)


# --- the page ------------------------------------------------------------------------------------------------------


def test_it_can_be_stopped_and_says_how_many_were_changed(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_queues(10)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")

    said = []

    def stop(**_: Any) -> None:
        boss.post(page_of(change), {"stop": "Stop"})
        said.append(report_of(boss, change)[0])

    signals.limit_changed.connect(stop)
    try:
        carried_out(change)
    finally:
        signals.limit_changed.disconnect(stop)
    assert set(said) == {"It stops after what it is doing now."}
    changed = sum(fresh(row).max_job == 5 for row in rows)
    assert 0 < changed < 10
    one = "The limit of 1 tenant queue was set."  # on a slow machine
    assert report_of(boss, change) == [
        "It was stopped. What was done before stays done.",
        f"{changed} of 10",
        one if changed == 1 else f"The limits of {changed} tenant queues were set.",
        f"{10 - changed} were not looked at.",
    ]


def test_one_that_is_stopped_before_it_began_changes_nothing(boss: Client) -> None:
    rows = many_queues(5)
    change = started(boss, QUEUES, "pause", rows)
    boss.post(page_of(change), {"stop": "Stop"})
    assert report_of(boss, change)[0] == "It was stopped while it waited for a worker: nothing more is done."
    carried_out(change)
    assert not TenantQueue.objects.filter(paused=True).exists()


def test_the_page_works_without_a_script_and_has_none_inline(boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(5), max_job="5", reason="<b>sale</b>")
    page = boss.get(page_of(change)).content.decode()
    assert "0 of 5" in page
    assert re.search(r"Limit</th><td><bdi>5<", page)
    assert "&lt;b&gt;sale&lt;/b&gt;" in page
    assert 'name="stop"' in page
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert not re.search(r"<script(?![^>]*(src=|application/json))", page)
    assert "admin_live.js" in page


def test_only_who_may_do_what_it_does_is_offered_to_stop_it_or_to_go_on(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    offered = {}
    for permission in ("pause_tenantqueue", "set_limit_tenantqueue"):
        client = signed_in("view_tenantqueue", "view_bulkchange", permission)
        page = client.get(page_of(change)).content.decode()
        offered[permission] = {name for name in ("stop", "go_on") if f'name="{name}"' in page}
        answer = client.post(page_of(change), {"stop": "Stop"})
        assert answer.status_code == (302 if offered[permission] else 403)
    assert offered == {"pause_tenantqueue": {"stop", "go_on"}, "set_limit_tenantqueue": set()}


def test_every_place_of_a_poll_is_on_the_page(boss: Client) -> None:
    change = started(boss, JOBS, "cancel", many_jobs(tenant_queue(max_job=0), 5))
    page = boss.get(page_of(change)).content.decode()
    for place in boss.get(page_of(change, "bulk_live")).json()["cells"]:
        assert f'data-slots="{place}"' in page, place


def test_a_poll_that_has_nothing_new_is_answered_with_304(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    poll = page_of(change, "bulk_live")
    etag = boss.get(poll)["ETag"]
    assert boss.get(poll, headers={"If-None-Match": etag}).status_code == 304
    assert boss.post(poll).status_code == 405


@pytest.mark.usefixtures("no_workers")
def test_the_page_says_why_it_does_not_run(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    assert "No worker of queue imports is alive." in text_of(boss.get(page_of(change)))


def test_one_whose_job_has_ended_says_so_and_can_be_gone_on_with(boss: Client) -> None:
    rows = many_queues(10)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    TenantJob.objects.get(uuid=change.job).cancel()
    assert report_of(boss, change)[0].startswith("Nobody goes on with it.")

    boss.post(page_of(change), {"go_on": "Go on"})
    boss.post(page_of(change), {"go_on": "Go on"})

    carried_out(fresh(change))
    assert came_of(change) == {"done": 10}
    assert TenantJob.objects.filter(task__contains="run_bulk_change").count() == 2


def test_one_that_nobody_goes_on_with_can_be_ended(boss: Client) -> None:
    """Else it would be called unfinished for ever, and never be forgotten."""
    change = started(boss, QUEUES, "set_limit", many_queues(5), max_job="5")
    TenantJob.objects.get(uuid=change.job).cancel()
    boss.post(page_of(change), {"stop": "Stop"})
    assert report_of(boss, change) == [
        "It was stopped. What was done before stays done.", "0 of 5", "5 were not looked at."
    ]  # fmt: skip
    assert not change.chunks.exists()
    boss.post(page_of(change), {"go_on": "Go on"})
    assert fresh(change).ending == Ending.STOPPED


def test_who_has_stopped_it_is_recorded_once(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    boss.post(page_of(change), {"stop": "Stop"})
    boss.post(page_of(change), {"stop": "Stop"})
    entry = LogEntry.objects.get()
    assert entry.get_change_message() == f"Changed bulk change stopped: pause {change.pk}."
    assert entry.user.is_superuser


def test_who_goes_on_with_it_is_recorded_once(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    TenantJob.objects.get(uuid=change.job).cancel()
    boss.post(page_of(change), {"go_on": "Go on"})
    boss.post(page_of(change), {"go_on": "Go on"})
    entry = LogEntry.objects.get()
    assert entry.get_change_message() == f"Changed bulk change gone on with: pause {change.pk}."
    assert entry.user.is_superuser


@pytest.mark.parametrize("colleague", ["go_on", "stop"])
def test_who_comes_second_to_one_that_nobody_goes_on_with_enqueues_no_job(
    colleague: str, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    TenantJob.objects.get(uuid=change.job).cancel()
    other = signed_in(superuser=True)
    queue_for, calls = pages.queue_for, []

    def meanwhile(queues: list[str]) -> str:
        calls.append(queues)
        if len(calls) == 1:
            other.post(page_of(change), {colleague: "yes"})
        return queue_for(queues)

    monkeypatch.setattr(pages, "queue_for", meanwhile)
    boss.post(page_of(change), {"go_on": "Go on"})

    jobs_of_it = TenantJob.objects.filter(task__contains="run_bulk_change").exclude(uuid=change.job)
    assert jobs_of_it.count() == (1 if colleague == "go_on" else 0)
    assert LogEntry.objects.count() == 1


def test_why_the_job_has_failed_is_for_those_who_may_see_errors(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    TenantJob.objects.filter(uuid=change.job).update(state=State.FAILED, error="Traceback\nOSError: s3cret")
    plain = signed_in("view_tenantqueue", "view_bulkchange")
    assert "OSError: s3cret" in text_of(boss.get(page_of(change)))
    assert "s3cret" not in text_of(plain.get(page_of(change)))
    assert "Nobody goes on with it." in text_of(plain.get(page_of(change)))


def test_the_page_that_lists_them_costs_the_same_however_many_have_ended(boss: Client) -> None:
    rows = many_queues(5)

    def queries(number: int) -> int:
        while BulkChange.objects.count() < number:
            carried_out(started(boss, QUEUES, "pause", rows))
        with CaptureQueriesContext(connection) as captured:
            page = text_of(boss.get(f"{QUEUES}bulk/"))
        assert page.count("It is done.") == number
        return len(captured)

    assert queries(1) == queries(3)


def test_the_pages_cost_few_queries(boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(10), max_job="5")
    boss.get(page_of(change))
    with CaptureQueriesContext(connection) as captured:
        boss.get(page_of(change, "bulk_live"))
    assert len(captured) <= 20


# --- the job -------------------------------------------------------------------------------------------------------


def test_it_goes_to_the_queue_of_the_rows_or_of_the_setting(boss: Client) -> None:
    def queue_of(change: BulkChange) -> str:
        return str(TenantJob.objects.get(uuid=change.job).tenant_queue.queue)

    rows = many_queues(5, queue="reports")
    assert queue_of(started(boss, QUEUES, "pause", rows)) == "reports"
    with override_settings(TENANT_SLOTS={"ADMIN_QUEUE": "default"}):
        assert queue_of(started(boss, QUEUES, "pause", rows)) == "default"


@pytest.mark.parametrize(
    "configured", [{"AUTO_CREATE": False}, {"REQUIRE_TENANT": True}, {"DEFAULT_MAX_JOB": "tests.jobs.no_such_thing"}]
)
def test_its_tenant_is_made_whatever_the_settings_say_of_tenants(boss: Client, configured: dict[str, Any]) -> None:
    rows = many_queues(5)
    with override_settings(TENANT_SLOTS=configured):
        carried_out(started(boss, QUEUES, "pause", rows))
    assert TenantQueue.objects.get(tenant=tenants.ADMIN_TENANT).max_job == tenants.JOBS_OF_ADMIN


def test_a_second_run_of_the_job_does_nothing_twice(boss: Client) -> None:
    rows = many_queues(5)
    change = carried_out(started(boss, QUEUES, "set_limit", rows, max_job="5"))
    assert run_bulk_change(change.pk) == {}
    assert {fresh(row).version for row in rows} == {1}
    assert LogEntry.objects.count() == 5


def test_old_reports_are_forgotten_when_another_begins(boss: Client) -> None:
    old = carried_out(started(boss, QUEUES, "pause", many_queues(5)))
    BulkChange.objects.update(ended_at=in_seconds(-8 * 24 * 3600))
    new = started(boss, QUEUES, "resume", list(TenantQueue.objects.filter(queue="imports")))
    assert list(BulkChange.objects.values_list("pk", flat=True)) == [new.pk] != [old.pk]


def test_confirm_answers_with_the_page_of_the_change(boss: Client) -> None:
    response = confirm(boss, QUEUES, "pause", many_queues(5))
    assert response.status_code == 302
    assert boss.get(response["Location"]).status_code == 200


def test_a_run_that_was_overtaken_changes_nothing_more(boss: Client) -> None:
    rows = many_queues(4)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    commission = Commission.of(change)
    assert commission is not None
    stale, other = (Work(commission, Chunk.of(BulkChunk.objects.get())) for _ in range(2))
    way = ways.way_of(commission.action)
    assert set(way(other)) == {None}
    TenantQueue.objects.update(version=0)  # as if only the chunk could tell that somebody else was here

    with pytest.raises(BulkChangeOvertaken):
        list(way(stale))

    assert {fresh(row).version for row in rows} == {0}
    assert KeptChange.objects.count() == 4


def test_a_worker_without_the_action_says_what_is_missing(boss: Client) -> None:
    change = started(boss, QUEUES, "pause", many_queues(5))
    BulkChange.objects.update(site="elsewhere")
    with pytest.raises(UnknownBulkAction, match="elsewhere"):
        run_bulk_change(change.pk)
