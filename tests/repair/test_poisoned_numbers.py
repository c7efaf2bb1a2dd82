"""Numbers that SQL from outside has put at the end of their column: the doctor names the row, nobody else waits."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from tenant_slots import owners, slots, transitions
from tenant_slots.db.clock import ago, in_seconds
from tenant_slots.enqueueing import on_busy
from tenant_slots.models import COUNTS, QueueMinute, QueueTotal, State, SweepClaim, TenantJob, TenantQueue
from tenant_slots.models.queue_minute import COUNTED
from tenant_slots.repair import doctor, numbers
from tests import jobs
from tests.factories import counters_match, dead_process, fresh, running_job, tenant_queue, waiting_job, work
from tests.plans import explained
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite's numbers have no end")

HIGHEST, LOWEST = 2**31 - 1, -(2**31)


def spoil(row: TenantJob | TenantQueue, **values: int) -> None:
    type(row).objects.filter(pk=row.pk).update(**values)


def named() -> list[tuple[str, str, str]]:
    return [(one.tenant, one.job, one.meaning) for one in doctor.findings("rows") if one.kind == "end of range"]


# --- the doctor ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.SCHEDULED, State.WAITING, State.FAILED])
@pytest.mark.parametrize("column", COUNTS)
def test_the_doctor_names_a_job_whose_count_goes_no_further(column: str, state: State) -> None:
    spoilt, well = (waiting_job(tenant_queue(tenant), state=state) for tenant in ("poisoned", "well"))
    spoil(well, **{column: HIGHEST - 1})
    assert named() == [], "the control: one more can be counted"
    spoil(spoilt, **{column: HIGHEST})
    ((tenant, job, meaning),) = named()
    assert (tenant, job) == ("poisoned", str(spoilt.uuid))
    assert f"{column} {HIGHEST}; put them right by SQL" in meaning


@on_postgresql
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("current_job", HIGHEST),
        ("max_job", HIGHEST),
        ("max_job_per_key", HIGHEST),
        ("version", HIGHEST),
        ("limit_before_override", HIGHEST),
        ("limit_before_override", -1),
        ("rate_empty_at", 2**63 - 1),
        ("rate_empty_at", -(2**63)),
    ],
)
def test_the_doctor_names_a_tenant_queue_with_such_a_number(column: str, value: int) -> None:
    row, _ = tenant_queue("poisoned"), tenant_queue("well", max_job=10_000, max_job_per_key=10_000)
    assert named() == []
    spoil(row, **{column: value})
    ((tenant, job, meaning),) = named()
    assert (tenant, job) == ("poisoned", "")
    assert f"{column} {value}; put them right by SQL" in meaning


@on_postgresql
def test_the_jobs_are_found_in_an_index_that_has_no_others() -> None:
    for rows in (numbers._counted_out(), numbers.never_admitted()):
        plan = explained(rows.select_related(None))
        assert "using tenant_slots_counted_out" in plan, plan


# --- a job that cannot be admitted ---------------------------------------------------------------------------------


def test_a_job_that_can_never_be_admitted_fails_alone_and_says_why() -> None:
    row = tenant_queue("poisoned", queue="reports", max_job=1)
    spoilt, behind = waiting_job(row), waiting_job(row)
    put_off = waiting_job(row, state=State.SCHEDULED, run_after=in_seconds(3600))
    for job in (spoilt, put_off):
        spoil(job, attempt=HIGHEST)
    assert sweep_now().reclaimed == 1
    assert (fresh(spoilt).state, fresh(put_off).state) == (State.FAILED, State.SCHEDULED)
    assert f"attempt to {HIGHEST}" in spoilt.error
    assert "enqueue it again" in spoilt.error
    assert spoilt.ended_at is not None
    work("reports")
    assert fresh(behind).state == State.FINISHED
    assert counters_match()


@on_postgresql
def test_it_fails_also_where_somebody_has_tried_to_admit_it_before() -> None:
    """It is not put off as one that may be admitted later: whoever promoted it would have it tried again at once."""
    job = waiting_job(tenant_queue("poisoned", queue="reports"))
    spoil(job, attempt=HIGHEST)
    assert transitions.offer(job.tenant_queue_id, "reports") == []
    assert sweep_now().reclaimed == 1
    assert fresh(job).state == State.FAILED


def test_control_one_whose_attempt_has_a_next_number_runs() -> None:
    job = waiting_job(tenant_queue("well", queue="reports"))
    spoil(job, attempt=HIGHEST - 1)
    assert sweep_now().reclaimed == 0
    work("reports")
    assert (fresh(job).state, job.attempt) == (State.FINISHED, HIGHEST)


def test_once_it_has_a_lower_number_it_can_be_retried() -> None:
    job = waiting_job(tenant_queue("poisoned", queue="reports"))
    spoil(job, attempt=HIGHEST)
    sweep_now()
    spoil(job, attempt=7)
    fresh(job).retry()
    work("reports")
    assert fresh(job).state == State.FINISHED
    assert named() == []


# --- what else could not be counted on -----------------------------------------------------------------------------


@on_postgresql
@pytest.mark.parametrize("lowest_first", [True, False])
@pytest.mark.parametrize("number", [1, 600])
def test_the_lowest_priority_there_is_keeps_no_tenant_with_a_limit_per_key_from_a_turn(
    number: int, lowest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its backlog is read: at its head, by key, or along the whole of it."""
    row = tenant_queue(max_job=2, max_job_per_key=1)
    running_job(row, dead_process(), key="full")
    TenantJob.objects.bulk_create(TenantJob(tenant_queue=row, task="t", key="full") for _ in range(number))
    lowest = waiting_job(row, key="b", priority=LOWEST)
    for most in (500, 0):
        monkeypatch.setattr("tenant_slots.concurrency_keys.MOST_KEYS", most)
        if lowest_first:
            assert [job.pk for job in slots.admit(row.pk, row.queue).jobs] == [lowest.pk]
            assert slots.release(fresh(lowest), state=State.WAITING)
        highest = waiting_job(row, key="c", priority=HIGHEST)
        assert [job.pk for job in slots.admit(row.pk, row.queue).jobs] == [highest.pk]
        assert slots.release(fresh(highest), state=State.CANCELED)


@on_postgresql
@pytest.mark.parametrize("empty_at", [-(2**63), -1, 2**63 - 1])
def test_a_bucket_that_was_emptied_at_no_time_is_full(empty_at: int) -> None:
    row = tenant_queue(max_job=5)
    row.set_rate(2, per=timedelta(minutes=1), burst=2)
    for _ in range(3):
        waiting_job(row)
    spoil(row, rate_empty_at=empty_at)
    assert len(slots.admit(row.pk, row.queue, 5).jobs) == 2


@on_postgresql
def test_a_version_at_its_end_begins_anew_and_still_tells_changes_apart() -> None:
    row = tenant_queue()
    spoil(row, version=HIGHEST)
    assert fresh(row).set_limit(3, version=HIGHEST)
    assert (fresh(row).max_job, row.version) == (3, 0)
    assert row.pause(version=0)
    assert fresh(row).version == 1


@pytest.mark.parametrize("before", [LOWEST, -1])
def test_an_override_ends_although_the_limit_from_before_is_none(before: int) -> None:
    row = tenant_queue(max_job=2, override_until=ago(1), limit_before_override=before)
    report = sweep_now()
    assert (report.overrides_ended, report.failed) == (1, [])
    assert (fresh(row).max_job, row.override_until, row.limit_before_override) == (2, None, None)


@on_postgresql
def test_a_job_that_was_put_off_too_often_to_count_is_put_off_again_with_the_others() -> None:
    row = tenant_queue("acme", max_job=0)
    some = [jobs.later.enqueue("acme") for _ in range(2)]
    spoil(some[0], deferrals=HIGHEST)
    TenantJob.objects.update(state=State.WAITING)
    on_busy.turn_away(row.pk, list(TenantJob.objects.all()))
    assert [fresh(job).state for job in some] == [State.SCHEDULED] * 2
    assert (some[0].deferrals, some[1].deferrals) == (HIGHEST, 2)


@pytest.mark.parametrize("horse", [LOWEST, -1, 0, 1])
def test_nobody_signals_a_group_of_processes_that_no_work_horse_leads(
    horse: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running_job(tenant_queue(), dead_process())
    spoil(job, horse=horse)
    signaled: list[Any] = []
    monkeypatch.setattr(os, "killpg", lambda *call: signaled.append(call))
    monkeypatch.setattr(owners, "_started", lambda pid: None)  # hidden by /proc's hidepid, or gone
    monkeypatch.setattr(owners, "_members", lambda group: {2**22 + 1: 1.0})
    owners.end_leftovers(fresh(job))
    assert signaled == []
    spoil(job, horse=2**22 + 1)  # more than Linux gives
    owners.end_leftovers(fresh(job))
    assert signaled == [(2**22 + 1, 0), (2**22 + 1, signal.SIGKILL)], "the control"


# --- the counters for metrics --------------------------------------------------------------------------------------

HIGHEST_TOTAL = 2**63 - 1


@on_postgresql
def test_a_counter_at_its_end_stops_no_sweep_and_no_repair() -> None:
    sweep_now()
    QueueTotal.objects.get_or_create(queue="imports")
    SweepClaim.objects.update(sweeps=HIGHEST_TOTAL, reclaimed=HIGHEST_TOTAL)
    QueueTotal.objects.update(**dict.fromkeys((*COUNTED, "crashes", "interruptions"), HIGHEST_TOTAL))
    dead = running_job(tenant_queue(), dead_process())
    ended = waiting_job(tenant_queue("other"), state=State.FINISHED, started_at=ago(90), ended_at=ago(80))
    QueueMinute.objects.all().delete()
    report = sweep_now()
    assert (report.failed, report.reclaimed) == ([], 1)
    assert fresh(dead).attempt == 2
    assert fresh(ended).state == State.FINISHED
    assert set(SweepClaim.objects.values_list("sweeps", flat=True)) == {HIGHEST_TOTAL}
