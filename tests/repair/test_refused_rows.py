"""A row that the database does not let be changed, as a trigger of the project refuses it, keeps no other from it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, DataError, connection, transaction

from tenant_slots import chains, transitions
from tenant_slots.db.clock import in_seconds
from tenant_slots.enqueueing import on_busy
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import JobDependency, State, TenantJob, TenantQueue
from tenant_slots.repair import asking, steps, together, turns, waits
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.together import in_halves
from tests.factories import another_process, fresh, in_thread, running_job, tenant_queue, waiting_job
from tests.jobs import only_now
from tests.refusals import ERRORS, any_change_of, refused
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the trigger is PostgreSQL's"),
]


def left_out(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "leaves out" in record.getMessage()]


def due(tenant: str, number: int) -> list[TenantJob]:
    row = tenant_queue(tenant, max_job=number)
    return [waiting_job(row, state=State.SCHEDULED, run_after=in_seconds(-60)) for _ in range(number)]


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_due_job_that_is_refused_keeps_no_other_from_being_promoted(
    as_error: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused_one, *others = [*due("acme", 4), *due("beta", 3)]
    with refused(any_change_of(refused_one), as_error):
        with pytest.raises(DatabaseError):  # control
            TenantJob.objects.filter(pk=refused_one.pk).update(priority=1)
        report = sweep_now()
    assert (report.failed, report.promoted) == ([], 6)
    assert {fresh(job).state for job in others} == {State.QUEUED}
    assert fresh(refused_one).state == State.SCHEDULED
    why = f"promoted: 1, the first one with the primary key {refused_one.pk}"
    assert left_out(caplog) == [f"the sweep leaves out jobs that cannot be {why}"]


def test_of_many_that_are_refused_one_record_tells(caplog: pytest.LogCaptureFixture) -> None:
    own, others = due("acme", 5), due("beta", 5)
    with refused(any_change_of(*own)):
        assert sweep_now().promoted == 5
    assert {fresh(job).state for job in others} == {State.QUEUED}
    assert [text.partition(",")[0] for text in left_out(caplog)] == [
        "the sweep leaves out jobs that cannot be promoted: 5"
    ]


def test_a_time_that_is_refused_keeps_no_other_from_being_set_right() -> None:
    jobs = [running_job(tenant_queue(f"tenant {number}"), another_process()) for number in range(3)]
    TenantJob.objects.update(beat_at=in_seconds(3600))
    with refused(any_change_of(jobs[0])):
        assert sweep_now().failed == []
    ahead = TenantJob.objects.filter(beat_at__gt=in_seconds(60))
    assert list(ahead) == [jobs[0]]


def test_a_job_that_is_refused_keeps_no_other_from_leaving_a_queue_that_was_given_up() -> None:
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, rq_queue="given up") for _ in range(3)]
    with refused(any_change_of(jobs[1])):
        assert sweep_now().failed == []
    assert [fresh(job).rq_queue for job in jobs] == ["", "given up", ""]


def test_a_job_that_is_refused_keeps_no_other_tenant_from_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: "discard")
    monkeypatch.setattr(random, "shuffle", lambda tenants: tenants.sort())
    first, second = (waiting_job(tenant_queue(tenant, max_job=0), asks=True) for tenant in ("acme", "beta"))
    with refused(any_change_of(first)):
        assert sweep_now().failed == []
    assert (fresh(first).state, fresh(second).state) == (State.WAITING, State.CANCELED)


@pytest.mark.parametrize("changes", ["NEW.id = {}", "NEW.id = {} AND NEW.state = 'canceled'"])
def test_a_job_that_is_refused_keeps_no_other_of_its_tenant_from_what_its_on_busy_says(
    changes: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def discards(job: TenantJob, row: TenantQueue) -> str:
        asked.append(job.pk)
        return "discard"

    monkeypatch.setattr(on_busy, "_on_busy", lambda job: discards)
    monkeypatch.setattr(turns, "SECONDS_OF_ONE", 60)  # whom there is no time for now is asked again in another turn
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, asks=True) for _ in range(4)]
    with refused(changes.format(jobs[1].pk)):
        assert sweep_now().failed == []
    states = [fresh(job).state for job in jobs]
    assert states == [State.CANCELED, State.WAITING, State.CANCELED, State.CANCELED]
    assert len(asked) == len(set(asked)), "each is asked once"
    assert "not this one" in caplog.text


@pytest.mark.parametrize("seconds", [on_busy.SECONDS_TO_LEAVE, math.inf], ids=["a while", "control: for ever"])
def test_whoever_enqueues_tries_those_that_are_refused_for_a_while_and_a_sweep_asks_the_rest(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count(step=0.5)
    tried: list[int] = []
    leave = on_busy._leave_backlog

    def noted(row: int, decisions: dict[int, Any]) -> list[TenantJob]:
        tried.append(len(decisions))
        return leave(row, decisions)

    monkeypatch.setattr(on_busy, "SECONDS_TO_LEAVE", seconds)
    monkeypatch.setattr(on_busy, "_leave_backlog", noted)
    tenant_queue(max_job=0)
    with refused("NEW.state = 'canceled'"), monkeypatch.context() as patch:
        patch.setattr(on_busy, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        only_now.enqueue_many([(("acme",), {})] * 20)
    to_ask = TenantJob.objects.waiting().filter(asks=True).count()
    assert len(tried) - 1 + to_ask == 20, "each is tried alone, or asked later"
    assert (to_ask > 10) is (seconds < math.inf)
    sweep_now()
    assert TenantJob.objects.filter(state=State.CANCELED).count() == to_ask


def test_jobs_whose_note_is_refused_or_that_are_locked_do_not_keep_those_behind_them_from_being_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One turn has room for none but these."""
    monkeypatch.setattr(asking, "JOBS_OF_ONE", 2)
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: "discard")
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, asks=True) for _ in range(6)]

    def ask() -> list[State]:
        asking.ask(Report(), Contact())
        return [fresh(job).state for job in jobs]

    with refused(any_change_of(*jobs[:2])), transaction.atomic():
        list(TenantJob.objects.filter(pk__in=[job.pk for job in jobs[2:4]]).select_for_update())
        assert in_thread(ask) == [State.WAITING] * 4 + [State.CANCELED] * 2
    assert ask() == [State.CANCELED] * 6  # control


@pytest.mark.parametrize("one", [turns.SECONDS_OF_ONE, math.inf], ids=["a share", "control: no share"])
@pytest.mark.parametrize("what", ["forgotten", "told of an end", "expired"])
def test_jobs_of_one_tenant_that_are_refused_leave_other_tenants_their_turns(
    what: str, one: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count(step=0.05)
    for module in (waits, turns, together):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(turns.random, "shuffle", list.sort)
    monkeypatch.setattr(turns, "SECONDS_OF_ONE", one)
    values: dict[str, Any] = {"expires_at": in_seconds(-60)} if what == "expired" else {"state": State.SCHEDULED}
    first, second = tenant_queue("acme", max_job=9), tenant_queue("beta", max_job=9)
    many = [waiting_job(first, **values) for _ in range(40)]
    other = waiting_job(second, **values)
    if what == "told of an end":
        after_an_ended_one([*many, other])
    before, contact = fresh(other).state, Contact()
    contact.pace._rows = waits.JOBS_OF_ONE
    with refused(any_change_of(*many)):
        (waits.promote_forgotten if what == "forgotten" else waits.end_waits)(Report(), contact)
    assert (fresh(other).state != before) is (one < math.inf)


def refused_with_others(**values: Any) -> tuple[list[TenantJob], str]:
    """Some jobs of one tenant, and which change is refused: any of the second one."""
    row = tenant_queue(max_job=9)
    jobs = [waiting_job(row, **values) for _ in range(4)]
    return jobs, any_change_of(jobs[1])


def test_a_job_that_is_refused_keeps_no_other_of_its_tenant_from_being_canceled_when_it_is_expired() -> None:
    jobs, change = refused_with_others(expires_at=in_seconds(-60))
    with refused(change):
        report = sweep_now()
    assert (report.failed, report.canceled) == ([], 3)
    assert fresh(jobs[1]).state == State.WAITING
    assert sweep_now().canceled == 1  # control


def after_an_ended_one(jobs: list[TenantJob]) -> list[JobDependency]:
    ended = waiting_job(tenant_queue("other"), state=State.FINISHED, ended_at=in_seconds(-60))
    return [JobDependency.objects.create(job=job, after=ended) for job in jobs]


def test_a_job_that_is_refused_keeps_no_other_of_its_tenant_from_being_told_of_an_end() -> None:
    jobs, change = refused_with_others(state=State.SCHEDULED)
    after_an_ended_one(jobs)
    with refused(change):
        report = sweep_now()
    assert (report.failed, report.promoted) == ([], 3)
    assert fresh(jobs[1]).state == State.SCHEDULED
    assert sweep_now().promoted == 1  # control


def test_nor_does_a_dependency_that_is_refused() -> None:
    jobs, _ = refused_with_others(state=State.SCHEDULED)
    edges = after_an_ended_one(jobs)
    with refused(f"NEW.id = {edges[1].pk}", model=JobDependency):
        assert sweep_now().promoted == 3
    assert fresh(jobs[1]).state == State.SCHEDULED


def test_a_job_that_is_refused_keeps_no_other_of_its_tenant_forgotten() -> None:
    jobs, change = refused_with_others(state=State.SCHEDULED)
    with refused(change):
        assert sweep_now().promoted == 3
    assert fresh(jobs[1]).state == State.SCHEDULED


def test_more_than_one_step_changes_that_are_refused_do_not_keep_the_others_of_their_tenant_out_of_each_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "JOBS_OF_ONE", 2)
    monkeypatch.setattr(waits, "random", random.Random(7))
    row = tenant_queue(max_job=9)
    jobs = [waiting_job(row, state=State.SCHEDULED) for _ in range(8)]
    after_an_ended_one(jobs)
    with refused(any_change_of(*jobs[:5])):
        for _ in range(30):
            sweep_now()
        assert [fresh(job).state for job in jobs] == [State.SCHEDULED] * 5 + [State.QUEUED] * 3


@pytest.mark.parametrize("what", ["forgotten", "told of an end", "expired"])
def test_nor_do_more_than_are_drawn_from(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "CHOSEN_FROM", 4)
    monkeypatch.setattr(waits, "random", random.Random(7))
    row = tenant_queue(max_job=9)
    values: dict[str, Any] = {"expires_at": in_seconds(-60)} if what == "expired" else {"state": State.SCHEDULED}
    *many, last = [waiting_job(row, **values) for _ in range(9)]
    if what == "told of an end":
        after_an_ended_one([*many, last])
    before = fresh(last).state
    with refused(any_change_of(*many)):
        for _ in range(30):
            (waits.promote_forgotten if what == "forgotten" else waits.end_waits)(Report(), Contact())
        assert fresh(last).state != before
        assert {fresh(job).state for job in many} == {before}  # control


def test_a_job_that_is_refused_keeps_no_other_tenant_from_being_told_of_an_end_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    concerned = chains.concerned
    monkeypatch.setattr(chains, "concerned", lambda ended: sorted(concerned(ended)))
    rows = [tenant_queue(tenant, max_job=0) for tenant in ("acme", "beta", "gamma")]
    awaited, *_ = [waiting_job(row) for row in rows]
    first, second = (waiting_job(row, state=State.SCHEDULED) for row in rows[1:])
    for job in (first, second):
        JobDependency.objects.create(job=job, after=awaited, any_outcome=True)
    transitions.await_jobs([awaited.pk])
    with refused(any_change_of(first)):
        assert awaited.cancel()
    assert (fresh(first).state, fresh(second).state) == (State.SCHEDULED, State.WAITING)


def test_a_tenant_queue_that_is_locked_is_not_tried_for_each_row() -> None:
    connection.ensure_connection()
    tried: list[Sequence[int]] = []

    def locked(rows: Sequence[int]) -> int:
        tried.append(rows)
        raise TenantQueueLocked(tenant_queue=1, seconds=1)

    with pytest.raises(TenantQueueLocked):
        in_halves(range(8), locked, lambda row, error: None)
    assert len(tried) == 1


def refusing(bad: set[int], tried: list[Sequence[int]]) -> Callable[[Sequence[int]], int]:
    def change(rows: Sequence[int]) -> int:
        tried.append(rows)
        if bad & set(rows):
            raise DataError
        return len(rows)

    return change


def test_halves_are_tried_in_order_until_the_rest_is_left_to_the_next_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "FEW", 1)
    connection.ensure_connection()  # without one, the database would be out of reach
    tried: list[Sequence[int]] = []
    known: list[int] = []

    def tell(row: int, error: Exception) -> None:
        known.append(row)

    change = refusing({2, 6}, tried)
    assert in_halves(range(8), change, tell) == 6
    assert known == [2, 6]
    assert [list(rows) for rows in tried if len(rows) == 1] == [[2], [3], [6], [7]]
    tried.clear()
    assert in_halves(range(8), change, tell, until=-1.0) == 2
    assert [list(rows) for rows in tried] == [[*range(8)], [*range(4)], [0, 1]]


@pytest.mark.parametrize(("bad", "most_tries"), [(range(256), 290), ([200], 32)])
def test_finding_out_who_is_refused_takes_few_tries(bad: Sequence[int], most_tries: int) -> None:
    """One for each where all are; where one is, those of the halves with it and of the last few."""
    connection.ensure_connection()
    tried: list[Sequence[int]] = []
    known: list[int] = []
    in_halves(range(256), refusing({*bad}, tried), lambda row, error: known.append(row))
    assert known == list(bad)
    assert len(bad) < len(tried) <= most_tries


def test_many_that_are_refused_do_not_keep_those_behind_them_out_of_each_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    connection.ensure_connection()
    monkeypatch.setattr(together, "random", random.Random(3))
    tried: list[Sequence[int]] = []
    change = refusing(set(range(200)), tried)
    for _ in range(2000):
        in_halves(range(256), change, lambda row, error: None, until=-1.0, in_order=False)
    assert {row for rows in tried for row in rows if min(rows) >= 200} == set(range(200, 256))


def test_many_that_are_refused_do_not_keep_a_later_one_from_being_promoted_for_more_than_some_sweeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "ROWS_PER_STEP", 5)
    monkeypatch.setattr(steps, "SECONDS_TO_PROMOTE", 0)
    many = [job for number in range(20) for job in due(f"tenant {number}", 1)]
    (last,) = due("well", 1)
    contact = Contact()
    with refused(any_change_of(*many)):
        for _ in range(len(many)):
            steps.promote(Report(), contact)
        steps.promote(Report(), contact)
        assert fresh(last).state == State.QUEUED
        (later,) = due("later", 1)
        steps.promote(Report(), contact)
        assert fresh(later).state == State.QUEUED, "it is not tried together with those that are known"
    for _ in many:
        steps.promote(Report(), contact)
    assert {fresh(job).state for job in many} == {State.QUEUED}, "they are tried again"
    steps.promote(Report(), contact)
    assert contact.refused == set()
