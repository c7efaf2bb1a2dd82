"""Bulk changes of tenant queues."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import signals
from tenant_slots.admin.bulk import chunks
from tenant_slots.admin.bulk import run as bulk_run
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.locks import locked
from tenant_slots.models import BulkChange, KeptChange, LimitSource, State, TenantQueue
from tests.admin.bulk_changes import (
    came_of,
    carried_out,
    many_jobs,
    many_queues,
    problems_of,
    report_of,
    run_impatiently,
    started,
)
from tests.admin.site import JOBS, QUEUES
from tests.factories import counters_match, fresh, in_thread, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


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
        in_thread(lambda: run_impatiently(change))
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
        in_thread(lambda: run_impatiently(change))
    assert came_of(change) == {"done": 2, "failed": 2}
    assert [problem.partition(":")[0] for problem in problems_of(boss, change).splitlines()] == [
        "tenant 000 on imports"
    ]


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
