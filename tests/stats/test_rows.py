"""What the live pages show: right numbers, few queries."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots.db.clock import from_now
from tenant_slots.db.compiled import Statement
from tenant_slots.models import Kind, State, TenantQueue
from tenant_slots.stats import percentiles, rows, series, tiles, worker_time
from tenant_slots.stats.states import QueueState, with_state
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db

RATE = {"rate_number": 1, "rate_per": timedelta(days=300), "rate_burst": 1}
NOW = round(timezone.now().timestamp()) * 10**9
"""The bucket of `RATE` has been empty since about this moment."""

HOUR = timedelta(hours=1)


def ago(**time: float) -> Any:
    return timezone.now() - timedelta(**time)


def row_of(queue: TenantQueue) -> rows.Row:
    return rows.measured([queue.pk])[queue.pk]


def ran(queue: TenantQueue, started: float, ended: float, **values: Any) -> None:
    """A job that ran from so many minutes ago to so many minutes ago."""
    values = {"state": State.FINISHED, "attempt": 1, "enqueued_at": ago(minutes=started), **values}
    waiting_job(queue, started_at=ago(minutes=started), ended_at=ago(minutes=ended), **values)


def runs(queue: TenantQueue, **values: Any) -> None:
    waiting_job(queue, **{"state": State.RUNNING, "beats": True, "beat_at": ago(), "started_at": ago(), **values})


@pytest.mark.parametrize(
    ("values", "jobs", "state"),
    [
        ({}, [], QueueState.IDLE),
        ({"max_job": 0}, [], QueueState.IDLE),
        ({"max_job": 2, "current_job": 1}, [], QueueState.ACTIVE),
        ({"max_job": 2, "current_job": 2}, [], QueueState.AT_LIMIT),
        ({"max_job": 2, "current_job": 2}, ["waiting"], QueueState.AT_LIMIT),
        ({"max_job": 2, "current_job": 1}, ["waiting"], QueueState.WAITS_FOR_WORKER),
        ({"max_job": 1, "current_job": 1}, ["queued"], QueueState.WAITS_FOR_WORKER),
        ({"max_job": 1, "current_job": 1}, ["queued", "waiting"], QueueState.WAITS_FOR_WORKER),
        ({"max_job": 1, "current_job": 1}, ["queued reservation", "waiting"], QueueState.AT_LIMIT),
        ({"max_job": 1, "current_job": 2}, ["queued"], QueueState.OVER),
        ({"max_job": 0}, ["waiting"], QueueState.AT_LIMIT),
        ({**RATE, "rate_empty_at": None}, ["waiting"], QueueState.WAITS_FOR_WORKER),
        ({**RATE, "rate_empty_at": NOW}, ["waiting"], QueueState.RATE),
        ({**RATE, "rate_empty_at": NOW}, [], QueueState.IDLE),
        ({**RATE, "rate_empty_at": NOW, "paused": True}, ["waiting"], QueueState.PAUSED),
        ({"rests_until": from_now(HOUR)}, ["waiting"], QueueState.RESTING),
        ({"rests_until": from_now(HOUR)}, [], QueueState.RESTING),
        ({"rests_until": from_now(-HOUR)}, ["waiting"], QueueState.WAITS_FOR_WORKER),
        ({"rests_until": from_now(timedelta(days=2))}, ["waiting"], QueueState.WAITS_FOR_WORKER),
        ({"rests_until": from_now(HOUR), "paused": True}, ["waiting"], QueueState.PAUSED),
        ({"max_job": 2, "current_job": 3}, ["waiting"], QueueState.OVER),
        ({"max_job": 2, "current_job": 3, "paused": True}, ["waiting"], QueueState.PAUSED),
        ({"paused": True}, ["stale"], QueueState.STALE),
        ({}, ["stale stock worker"], QueueState.IDLE),
    ],
)
def test_a_row_has_one_state_and_is_found_by_it(values: Any, jobs: list[str], state: QueueState) -> None:
    queue = tenant_queue(**values)
    for job in jobs:
        if job == "waiting":
            waiting_job(queue)
        elif job.startswith("queued"):
            waiting_job(queue, state=State.QUEUED, kind=Kind.RESERVATION if "reservation" in job else Kind.JOB)
        else:
            runs(queue, beat_at=ago(minutes=5), beats=job == "stale")
    assert row_of(queue).state == state
    assert with_state(TenantQueue.objects.all()).filter(state=state).get() == queue


@pytest.mark.parametrize(
    ("keys", "state"),
    [
        ([], QueueState.ACTIVE),
        (["ann"], QueueState.KEY_LIMIT),
        (["ann", "bob"], QueueState.WAITS_FOR_WORKER),
        (["ann", ""], QueueState.WAITS_FOR_WORKER),
    ],
)
def test_a_row_whose_waiting_jobs_are_all_passed_over_waits_for_no_worker(keys: list[str], state: QueueState) -> None:
    queue = tenant_queue(max_job=5, max_job_per_key=1, current_job=1)
    runs(queue, key="ann")
    runs(tenant_queue("other", max_job_per_key=1), key="bob")
    for key in keys:
        waiting_job(queue, key=key)
    assert row_of(queue).state == state
    assert queue in with_state(TenantQueue.objects.all()).filter(state=state)


def test_worker_time_is_that_of_the_last_hour_without_reservations() -> None:
    queue, other = tenant_queue(max_job=9), tenant_queue("other")
    ran(queue, 90, 40)  # 20 minutes of it
    ran(queue, 90, 70)
    ran(queue, 10, 5)
    runs(queue, started_at=ago(minutes=2))
    runs(queue, started_at=ago(minutes=30), kind=Kind.RESERVATION)
    waiting_job(queue)
    ran(other, 8, 7, state=State.FAILED)
    ran(tenant_queue("elsewhere", queue="reports"), 8, 5)
    assert row_of(queue).worker_seconds == pytest.approx(27 * 60, abs=2)
    found = worker_time.of_all()
    assert found.of_queues == {
        "imports": pytest.approx(28 * 60, abs=2),
        "reports": pytest.approx(180, abs=2),
    }
    tenant_queue("idle")
    ordered = worker_time.with_worker_time(TenantQueue.objects.all(), lambda: found.of_rows).order_by("-worker_time")
    assert [row.tenant for row in ordered] == ["acme", "elsewhere", "other", "idle"]


@pytest.mark.parametrize("started", [0.1, -30.0], ids=["by now", "later than now"])
def test_a_run_that_ended_before_it_started_takes_nothing_from_the_others(started: float) -> None:
    """The database's clock was set back while it ran."""
    queue = tenant_queue(max_job=9)
    ran(queue, 55.5, 45.5), runs(queue, started_at=ago(minutes=40.5))
    activity = row_of(queue).activity

    def seconds() -> list[float]:
        of_all = worker_time.of_all()
        return [row_of(queue).worker_seconds, of_all.of_rows[queue.pk], of_all.of_queues["imports"]]

    assert seconds() == pytest.approx([50.5 * 60] * 3, abs=2), "the control"
    ran(queue, started, 50.5)
    assert seconds() == pytest.approx([50.5 * 60] * 3, abs=2)
    assert row_of(queue).activity == activity


def test_jobs_are_counted_where_they_belong() -> None:
    queue = tenant_queue(max_job=5, current_job=3)
    waiting_job(tenant_queue("other"))
    runs(queue), runs(queue, beat_at=ago(minutes=5))
    waiting_job(queue, state=State.QUEUED), waiting_job(queue, enqueued_at=ago(minutes=3))
    ran(queue, 70, 61, state=State.FAILED), ran(queue, 70, 59, state=State.FAILED)
    row = row_of(queue)
    assert (row.running, row.queued, row.waiting, row.stale, row.failed) == (2, 1, 1, 1, 1)
    assert row.oldest_wait == pytest.approx(180, abs=5)


def test_the_start_delay_is_the_nearest_rank_of_first_starts() -> None:
    queue, other = tenant_queue(), tenant_queue("other")
    for seconds in range(1, 21):
        waiting_job(
            queue, state=State.FINISHED, attempt=1, ended_at=ago(), started_at=ago(seconds=1),
            enqueued_at=ago(seconds=1 + seconds),
        )  # fmt: skip
    ran(queue, 20, 16, enqueued_at=ago(minutes=90))  # started too long ago
    ran(queue, 1, 0.5, enqueued_at=ago(minutes=90), attempt=2)  # a second run did not wait for its first start
    runs(other, attempt=1, started_at=ago(seconds=1), enqueued_at=ago(seconds=8))

    delays = percentiles.start_delays([queue.pk, other.pk])

    assert delays[queue.pk] == pytest.approx(19, abs=0.5)
    assert delays[other.pk] == pytest.approx(7, abs=0.5)
    assert percentiles.start_delays_of_all() == pytest.approx(delays, abs=0.5), "those of all are the same"


def test_activity_counts_what_ran_minute_by_minute() -> None:
    queue = tenant_queue()
    ran(queue, 3.5, 1.5)
    ran(queue, 2.5, 2.2)  # between two moments
    ran(queue, 500, 2.5)
    runs(queue, started_at=ago(minutes=0.5))
    activity = row_of(queue).activity
    assert len(activity) == 61
    assert activity[-6:] == (1, 1, 2, 1, 0, 1)
    assert activity[0] == 1


def test_what_began_before_the_little_chart_is_one_line_whenever_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand jobs that ran for long and ended in the hour would be as many lines for each page with their row."""
    lists, answers = Statement.lists, []

    def kept(*args: Any, **values: Any) -> Any:
        answers.append(lists(*args, **values))
        return answers[-1]

    monkeypatch.setattr(Statement, "lists", kept)
    row = tenant_queue()
    for started in range(61, 161, 10):
        ran(row, started + 0.5, 20.5)
    found = series.ran([row.pk])[row.pk]
    assert len(answers[0]) == 1
    assert found.running == (10,) * 40 + (0,) * 21, "the control"
    assert found.worker_seconds == pytest.approx(10 * 39.5 * 60, abs=20)


def test_the_limit_is_drawn_as_it_was() -> None:
    now = timezone.now().timestamp()
    limits = series.limits(5, [[now - 9000, 1], [now - 150, 2], [now - 60.5, 9]])
    assert (limits[0], limits[-4], limits[-3], limits[-2], limits[-1]) == (2, 2, 9, 5, 5)
    assert series.limits(3, None) == (3,) * 61


def test_a_snapshot_has_three_queries_however_many_rows() -> None:
    for count in (1, 30):
        queues = [tenant_queue(f"{count} {number}") for number in range(count)]
        for queue in queues:
            waiting_job(queue), runs(queue), ran(queue, 5, 3)
        with CaptureQueriesContext(connection) as captured:
            assert len(rows.measured([queue.pk for queue in queues])) == count
        assert len(captured) == 3


def test_what_runs_now_is_the_last_point_of_an_hour_that_was_read_before() -> None:
    row = tenant_queue()
    ran(row, 5.5, 3.5), waiting_job(row, state=State.FAILED, ended_at=ago(minutes=59))
    waiting_job(row, state=State.FAILED, ended_at=ago(minutes=61))
    before = rows.last_hours([row.pk])
    runs(row), runs(row)
    found = rows.measured([row.pk], lambda pks: {pk: before[pk] for pk in pks})[row.pk]
    assert found.activity == (0,) * 55 + (1, 1, 0, 0, 0, 2)
    assert (found.failed, found.worker_seconds) == (1, pytest.approx(120, abs=5))


def test_the_tiles_sum_up_and_count_what_takes_a_worker() -> None:
    full = tenant_queue("full", max_job=2, current_job=2)
    waiting_job(full, enqueued_at=ago(minutes=2)), runs(full), runs(full)
    runs(tenant_queue("stale", max_job=3, current_job=1), beat_at=ago(minutes=5))
    tenant_queue("paused", max_job=7, paused=True)
    runs(tenant_queue("", max_job=10_000, current_job=1)), runs(full, kind=Kind.RESERVATION)
    with CaptureQueriesContext(connection) as captured:
        found = tiles.added_up()
    assert (found.running, found.waiting, found.at_limit, found.stale) == (4, 1, 1, 1)
    assert found.oldest_wait == pytest.approx(120, abs=5)
    assert len(captured) == 1


def test_tiles_without_any_row_are_zeros() -> None:
    found = tiles.added_up()
    assert (found.running, found.waiting, found.oldest_wait) == (0, 0, None)


def test_tiles_of_some_rows_count_no_others() -> None:
    waiting_job(tenant_queue("mine")), waiting_job(tenant_queue("theirs"))
    assert tiles.added_up(TenantQueue.objects.filter(tenant="mine")).waiting == 1


def test_another_lease_time_counts_from_the_next_poll_on(settings: Any) -> None:
    queue = tenant_queue()
    runs(queue, beat_at=ago(seconds=30))
    counted = []
    for seconds in (20, 60, 20):
        settings.TENANT_SLOTS = {"LEASE_TTL": seconds}
        counted.append((row_of(queue).stale, row_of(queue).state == QueueState.STALE, tiles.added_up().stale))
    assert counted == [(1, True, 1), (0, False, 0), (1, True, 1)]


def test_no_row_is_nothing_to_show() -> None:
    assert rows.measured([]) == {}
