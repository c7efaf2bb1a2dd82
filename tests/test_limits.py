"""Changing a limit or a pause: nothing is overwritten unseen, everybody is told, and what is temporary ends."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any

import pytest
from django.db import connection
from django.template import Context, Template
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import limits, locks, signals, tenants
from tenant_slots.db.clock import in_seconds
from tenant_slots.exceptions import InvalidLimit, StaleVersion, TimeHasPassed
from tenant_slots.models import Change, KeptChange, LimitSource, State, TenantQueue
from tenant_slots.repair import findings, steps
from tests import jobs
from tests.factories import counters_match, fresh, in_rq, pretend_idle, redis_forgets, tenant_queue, waiting_job
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


def in_an_hour() -> Any:
    return timezone.now() + timedelta(hours=1)


def end_time(row: TenantQueue, field: str) -> None:
    """Let the time in this field pass."""
    TenantQueue.objects.filter(pk=row.pk).update(**{field: in_seconds(-1)})


@pytest.fixture
def told() -> Any:
    changes: list[Change] = []

    def receive(*, change: Change, **_: Any) -> None:
        changes.append(change)

    signals.limit_changed.connect(receive)
    yield changes
    signals.limit_changed.disconnect(receive)


def test_each_change_increments_the_version() -> None:
    row = tenant_queue()
    row.set_limit(3)
    row.pause()
    row.resume()
    row.set_override(9, in_an_hour())
    row.reset_to_default()
    assert row.version == fresh(row).version == 5


def test_saving_a_row_increments_its_version_but_saving_its_bookkeeping_does_not() -> None:
    row = tenant_queue()
    row.max_job = 4
    row.save()
    assert row.version == fresh(row).version == 1
    row.save(update_fields=["limit_set_by"])
    assert fresh(row).version == 1


def test_a_change_that_changes_nothing_keeps_the_version(told: list[Change]) -> None:
    row = tenant_queue()
    row.resume()
    assert (fresh(row).version, told) == (0, [])


def test_a_change_by_somebody_who_has_not_seen_the_last_one_is_refused(told: list[Change]) -> None:
    row = tenant_queue(max_job=1)
    seen = TenantQueue.objects.get()
    row.set_limit(7)

    with pytest.raises(StaleVersion) as caught:
        seen.set_limit(3, version=seen.version)

    assert (caught.value.max_job, caught.value.version) == (7, 1)  # type: ignore[attr-defined]
    assert fresh(row).max_job == 7
    assert [change.new for change in told] == [7]


def test_the_row_tells_where_its_limit_comes_from() -> None:
    row = tenants.tenant_queue_for("acme", "imports")
    assert row.limit_source == LimitSource.DEFAULT
    row.set_limit(3, by="anna")
    assert (fresh(row).limit_source, row.limit_set_by) == (LimitSource.SET, "anna")
    row.set_override(9, in_an_hour(), by="ben")
    assert (fresh(row).limit_set_by, row.override_by, row.limit_before_override) == ("anna", "ben", 3)
    row.reset_to_default(by="anna")
    assert (fresh(row).limit_source, row.limit_set_by, row.override_until) == (LimitSource.DEFAULT, "", None)


def test_a_limit_that_somebody_has_set_already_keeps_its_author_and_its_reason(told: list[Change]) -> None:
    row = tenant_queue(max_job=1)
    row.set_limit(5, by="anna", reason="contract")
    assert row.set_limit(5, by="ben", reason="all of them") == []
    assert (fresh(row).limit_set_by, row.version, KeptChange.objects.get().by, len(told)) == ("anna", 1, "anna", 1)


def test_an_override_that_is_there_already_keeps_its_author_and_its_reason(told: list[Change]) -> None:
    row, until = tenant_queue(max_job=1), in_an_hour()
    row.set_override(5, until, by="anna", reason="import")
    assert row.set_override(5, until, by="ben", reason="all of them") == []
    assert (fresh(row).override_by, row.version, row.limit_before_override, len(told)) == ("anna", 1, 1, 1)


def test_the_number_of_an_override_is_set_for_good_by_whoever_says_so() -> None:
    row = tenant_queue(max_job=1)
    row.set_override(5, in_an_hour(), by="anna")
    (change,) = row.set_limit(5, by="ben", reason="contract")
    assert (change.old, change.new, change.until) == (5, 5, None)
    assert (fresh(row).max_job, row.override_until, row.limit_set_by) == (5, None, "ben")


@override_settings(TENANT_SLOTS={"DEFAULT_MAX_JOB": 4})
def test_who_decides_a_limit_changes_with_history_where_the_number_stays(told: list[Change]) -> None:
    row = tenant_queue(max_job=4)
    set_by_anna = Change("limit", 4, 4, "anna", "contract", None)
    reset_by_ben = Change("limit", 4, 4, "ben", "it has ended", None)

    assert row.set_limit(4, by="anna", reason="contract") == [set_by_anna]
    assert (row.version, fresh(row).limit_source, row.limit_set_by) == (1, LimitSource.SET, "anna")
    assert row.reset_to_default(by="ben", reason="it has ended") == [reset_by_ben]
    assert (row.version, fresh(row).limit_source, row.limit_set_by) == (2, LimitSource.DEFAULT, "")
    assert row.reset_to_default(by="anna") == []

    assert told == [set_by_anna, reset_by_ben]
    assert list(row.kept_changes.order_by("pk").values_list("by", "reason")) == [
        ("anna", "contract"), ("ben", "it has ended"),
    ]  # fmt: skip
    assert not row.limit_history, "the number has been the same all the time"


@override_settings(TENANT_SLOTS={"DEFAULT_MAX_JOB": {"imports": 4}})
def test_reset_gives_the_limit_of_a_new_row() -> None:
    row = tenant_queue(max_job=9)
    row.reset_to_default()
    assert fresh(row).max_job == 4


def test_the_signal_has_old_and_new_value_who_and_why(told: list[Change]) -> None:
    row = tenant_queue(max_job=1)
    until = in_an_hour()
    row.set_override(5, until, by="anna", reason="big import")
    row.pause(by="ben")
    assert told == [
        Change("limit", 1, 5, "anna", "big import", until),
        Change("paused", False, True, "ben", "", None),
    ]


def test_a_raised_limit_and_a_resume_admit_at_once() -> None:
    row = tenant_queue(max_job=0)
    first, second = waiting_job(row), waiting_job(row)
    row.set_limit(1)
    assert fresh(first).state == State.QUEUED
    row.pause()
    row.set_limit(2)
    assert fresh(second).state == State.WAITING
    row.resume()
    assert fresh(second).state == State.QUEUED


@pytest.mark.parametrize("limit", [-1, 10_001, True, "5", None])
def test_an_override_is_a_limit_too(limit: Any) -> None:
    with pytest.raises(InvalidLimit):
        tenant_queue().set_override(limit, in_an_hour())


def test_a_time_that_has_passed_is_refused() -> None:
    row, past = tenant_queue(), timezone.now() - timedelta(seconds=1)
    for change in (lambda: row.set_override(5, past), lambda: row.pause(until=past)):
        with pytest.raises(TimeHasPassed):
            change()
    assert (fresh(row).max_job, row.paused) == (1, False)


def test_an_override_ends_with_the_limit_that_was_there_before(told: list[Change]) -> None:
    row = tenant_queue(max_job=1)
    job = waiting_job(row)
    row.set_override(0, in_an_hour())
    assert sweep_now().overrides_ended == 0
    end_time(row, "override_until")

    assert sweep_now().overrides_ended == 1

    assert (fresh(row).max_job, row.override_until, row.limit_before_override) == (1, None, None)
    assert (told[-1].old, told[-1].new, told[-1].by) == (0, 1, "sweep")
    assert fresh(job).state == State.QUEUED


def test_a_second_override_does_not_make_the_first_one_permanent() -> None:
    row = tenant_queue(max_job=1)
    row.set_override(5, in_an_hour())
    row.set_override(8, in_an_hour())
    end_time(row, "override_until")
    sweep_now()
    assert fresh(row).max_job == 1


def test_a_limit_set_for_good_ends_the_override() -> None:
    row = tenant_queue(max_job=1)
    row.set_override(5, in_an_hour())
    row.set_limit(3)
    assert fresh(row).override_until is None
    assert sweep_now().overrides_ended == 0
    assert fresh(row).max_job == 3


def test_a_pause_with_an_end_resumes_by_itself() -> None:
    row = tenant_queue()
    job = waiting_job(row)
    row.pause(until=in_an_hour())
    assert sweep_now().resumed == 0
    end_time(row, "resume_at")

    assert sweep_now().resumed == 1

    assert (fresh(row).paused, row.resume_at) == (False, None)
    assert fresh(job).state == State.QUEUED


def test_a_sweep_reads_as_many_ends_as_it_sees_to_and_their_rows_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [tenant_queue(f"tenant {number}") for number in range(3)]
    for row in rows:
        row.set_override(5, in_an_hour())
        row.pause(until=in_an_hour())
        end_time(row, "override_until"), end_time(row, "resume_at")
    monkeypatch.setattr(steps, "ROWS_PER_STEP", 4)

    with CaptureQueriesContext(connection) as queries:
        first = sweep_now()
    second = sweep_now()

    assert (first.overrides_ended, first.resumed) == (3, 1)
    assert (second.overrides_ended, second.resumed) == (0, 2)
    asked = [query["sql"] for query in queries if "override_until" in query["sql"] and "UNION" in query["sql"]]
    assert [sql.endswith("LIMIT 4") for sql in asked] == [True]
    sent = [query["sql"] for query in queries]
    assert " IN (" in sent[sent.index(asked[0]) + 1], "the rows are read together"


def test_one_that_was_given_more_time_since_the_sweep_found_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()
    row.set_override(5, in_an_hour())
    end_time(row, "override_until")
    found = list(findings.times_that_are_over())
    row.set_override(5, in_an_hour())
    monkeypatch.setattr(findings, "times_that_are_over", lambda: found)
    assert sweep_now().overrides_ended == 0
    assert fresh(row).max_job == 5


def test_a_pause_without_an_end_stays() -> None:
    row = tenant_queue()
    row.pause(until=in_an_hour())
    row.pause()
    sweep_now()
    assert fresh(row).paused


def test_a_change_in_a_transaction_that_is_rolled_back_sends_no_signal(told: list[Change]) -> None:
    row = tenant_queue()

    def change_and_fail() -> None:
        with locks.locked(row.pk):
            row.set_limit(5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        change_and_fail()
    assert (fresh(row).max_job, told) == (1, [])


def test_old_limits_are_kept_for_the_charts_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANGES_KEPT", 2)
    row = tenant_queue(max_job=1)
    for limit in (2, 3, 4):
        row.set_limit(limit)
    assert [before for _, before in fresh(row).limit_history] == [2, 3]


def test_the_oldest_changes_of_many_rows_go_in_one_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANGES_KEPT", 2)
    rows = [tenant_queue(f"tenant {number}", version=version) for number, version in enumerate((50, 100, 51))]
    for number in range(4):
        KeptChange.objects.bulk_create(
            KeptChange(tenant_queue=row, at=timezone.now(), what="limit", new=str(number)) for row in rows
        )
    with CaptureQueriesContext(connection) as queries:
        limits.forget_oldest(rows)
    assert sum(KeptChange._meta.db_table in query["sql"] for query in queries) == 1
    assert [[one.new for one in row.kept_changes.order_by("pk")] for row in rows] == [
        ["2", "3"], ["2", "3"], ["0", "1", "2", "3"],
    ]  # fmt: skip


def test_a_row_that_was_inserted_with_sql_does_not_claim_an_origin() -> None:
    table = connection.ops.quote_name(TenantQueue._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (tenant, queue, max_job, current_job, paused, created_at)"  # noqa: S608 - our table
            " VALUES ('acme', 'imports', 7, 0, %s, CURRENT_TIMESTAMP)",
            [False],
        )
    row = TenantQueue.objects.get()
    assert (row.max_job, row.version, row.limit_source) == (7, 0, LimitSource.UNRECORDED)


def test_raising_a_limit_admits_waiting_jobs() -> None:
    for _ in range(5):
        jobs.add.enqueue(1, 2, tenant="acme")
    TenantQueue.objects.get().set_limit(3)
    assert in_rq("reports") == 3
    assert counters_match()


def test_pausing_lets_nothing_start_and_resuming_does() -> None:
    row = tenant_queue(queue="reports")
    row.pause()
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert fresh(job).state == State.WAITING
    row.resume()
    assert fresh(job).state == State.QUEUED


def test_a_row_that_is_saved_over_an_existing_one_admits_what_fits() -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row)
    TenantQueue(pk=row.pk, tenant=row.tenant, queue=row.queue, max_job=1, created_at=row.created_at).save()
    assert fresh(job).state == State.QUEUED


@pytest.mark.parametrize("fields", [["max_job"], ["current_job"], ["limit_set_by"], None])
def test_any_save_of_a_row_admits_what_fits(fields: list[str] | None) -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row)
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    row.max_job = 1
    row.save(update_fields=fields)
    assert fresh(job).state == State.QUEUED


def test_a_template_changes_nothing() -> None:
    row = tenant_queue()
    rendered = Template("{{ row.pause }}{{ row.resume }}{{ job.cancel }}").render(
        Context({"row": row, "job": waiting_job(row)})
    )
    assert rendered == ""
    assert (fresh(row).version, row.jobs.get().state) == (0, State.WAITING)


class Plan(int, Enum):
    PRO = 3


def test_the_history_has_the_number_of_a_limit_that_is_a_member_of_an_enum() -> None:
    row = tenant_queue(max_job=1)
    row.set_limit(Plan.PRO)
    assert [(one.old, one.new) for one in row.kept_changes.all()] == [("1", "3")]


def raised(tenant: str, waiting: int, idle: int) -> tuple[int, int]:
    """Statements and rows that it takes to raise the limit from 0 to 10,000 of a tenant with so many waiting jobs."""
    rows = 0

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal rows
        result = execute(sql, params, many, context)
        rows += max(0, context["cursor"].rowcount)
        return result

    redis_forgets()
    pretend_idle(idle) if idle else None
    row = tenant_queue(tenant, max_job=0)
    jobs.record.enqueue_many([((tenant, str(number), "/dev/null"), {}) for number in range(waiting)])
    with CaptureQueriesContext(connection) as queries, connection.execute_wrapper(count):
        row.set_limit(10_000)
    return len(queries), rows


@pytest.mark.parametrize("idle", [0, 4])
def test_a_limit_of_10_000_asks_no_more_of_its_caller_where_thousands_wait(no_workers: None, idle: int) -> None:
    few, many = (raised(tenant, waiting, idle) for tenant, waiting in (("few", 20), ("many", 5000)))
    assert many == few
    assert TenantQueue.objects.get(tenant="many").current_job == idle, "the others come as workers turn up"


def test_control_what_is_admitted_is_counted(no_workers: None) -> None:
    (_, few), (_, many) = raised("few", 1, idle=50), raised("many", 30, idle=50)
    assert many > few
