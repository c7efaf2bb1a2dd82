"""Bulk changes of the jobs of tenant queues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone, translation

from tenant_slots.admin import TenantQueueAdmin
from tenant_slots.admin.bulk import run as bulk_run
from tenant_slots.admin.bulk import ways
from tenant_slots.admin.bulk.chunks import Chunk
from tenant_slots.admin.bulk.commission import Commission
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.admin.bulk.work import Work
from tenant_slots.enqueueing import cancel
from tenant_slots.locks import locked
from tenant_slots.models import BulkChange, Ending, State, TenantJob, TenantQueue
from tests import refusals
from tests.admin.bulk_changes import (
    came_of,
    carried_out,
    many_jobs,
    many_queues,
    page_of,
    problems_of,
    report_of,
    run_impatiently,
    started,
)
from tests.admin.site import QUEUES
from tests.factories import fresh, in_thread, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)


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
        in_thread(lambda: run_impatiently(change))
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
