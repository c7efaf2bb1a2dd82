"""Whatever keeps the database from changing a row of one tenant holds up no other; what is about all of them does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import Error, ProgrammingError, connection
from django_rq import get_queue
from rq.exceptions import StopRequested

from tenant_slots import backlog, fair_order, slots, transitions
from tenant_slots.fair_order import Turn
from tenant_slots.models import State, TenantJob
from tenant_slots.refusals import is_refusal
from tenant_slots.repair import doctor
from tenant_slots.repair.finding import Finding
from tenant_slots.repair.sweeper import SweepTimeout
from tenant_slots.running import recording
from tenant_slots.running.run import Run
from tenant_slots.workers import kept
from tenant_slots.workers.kept import Ending
from tests.factories import admit, another_process, counters_match, fresh, running_job, tenant_queue, waiting_job
from tests.refusals import ERRORS, any_change_of, refused

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the trigger is PostgreSQL's"),
]

QUEUE = "imports"


@contextmanager
def sql(do: str, undo: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(do)
        try:
            yield
        finally:
            cursor.execute(undo)


NO_RIGHTS = ("CREATE ROLE looks_on; SET ROLE looks_on", "RESET ROLE; DROP ROLE looks_on")
READS_ALONE = (f"{NO_RIGHTS[0]}; RESET ROLE; GRANT pg_read_all_data TO looks_on; SET ROLE looks_on", NO_RIGHTS[1])
TABLE = TenantJob._meta.db_table
NO_TABLE = (f"ALTER TABLE {TABLE} RENAME TO elsewhere", f"ALTER TABLE elsewhere RENAME TO {TABLE}")
NO_COLUMN = (f"ALTER TABLE {TABLE} RENAME attempt TO tries", f"ALTER TABLE {TABLE} RENAME tries TO attempt")
OF_ALL = {"no rights": NO_RIGHTS, "reads alone": READS_ALONE, "no table": NO_TABLE, "no column": NO_COLUMN}


def in_order() -> list[int]:
    return list(fair_order.known(QUEUE, list(TenantJob.objects.values_list("tenant_queue", flat=True))))


def turn_of(job: TenantJob) -> Turn:
    fair_order.offer(QUEUE, [(job.tenant_queue_id, 1)])
    turn = fair_order.next_turn(QUEUE)
    assert turn is not None
    return turn


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_tenant_whose_next_job_is_refused_loses_its_turn(as_error: str) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with refused(any_change_of(job), as_error):
        assert transitions.admit(turn) == []
    assert in_order() == [], "the next sweep offers it again"
    assert get_queue(QUEUE).count == 0
    assert counters_match()


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*given: object, **named: object) -> None:
        raise error

    return fail


def test_so_does_one_of_whose_rows_something_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    monkeypatch.setattr(backlog, "wakes_in", raising(ValueError("what is that?")))
    assert transitions.admit(turn) == []
    assert (in_order(), fresh(job).state) == ([], State.WAITING)
    assert counters_match()


@pytest.mark.parametrize("error", [StopRequested(), SweepTimeout(), SystemExit()])
def test_what_ends_the_admission_from_outside_is_let_through(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = turn_of(waiting_job(tenant_queue()))
    monkeypatch.setattr(backlog, "wakes_in", raising(error))
    with pytest.raises(type(error)):
        transitions.admit(turn)


def test_what_was_admitted_is_not_taken_for_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    monkeypatch.setattr(fair_order, "drop", raising(ValueError("what is that?")))
    with pytest.raises(ValueError, match="what is that"):
        transitions.admit(turn)
    assert fresh(job).state == State.QUEUED


@pytest.mark.parametrize("kind", OF_ALL.values(), ids=OF_ALL)
def test_it_keeps_its_place_where_nobodys_jobs_can_be_admitted(kind: tuple[str, str]) -> None:
    job = waiting_job(tenant_queue())
    turn = turn_of(job)
    with sql(*kind), pytest.raises(ProgrammingError):
        transitions.admit(turn)
    assert in_order() == [job.tenant_queue_id]


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_job_whose_start_is_refused_fails_at_once(as_error: str) -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    run = Run("w")
    with refused(f"{any_change_of(job)} AND NEW.state = 'running'", as_error):
        assert not run.begin(job.uuid, job.attempt)
    job = fresh(job)
    assert (job.state, job.error) == (State.FAILED, "the database refuses its start: not this one")
    assert counters_match()


def test_one_that_may_not_fail_either_is_canceled() -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    with refused(f"{any_change_of(job)} AND NEW.state IN ('running', 'failed')"):
        assert not Run("w").begin(job.uuid, job.attempt)
    job = fresh(job)
    assert (job.state, job.error) == (State.CANCELED, "the database refuses its start: not this one")
    assert counters_match()


def test_a_start_that_is_canceled_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    start = slots.start

    def canceled_first(*given: Any) -> bool:
        monkeypatch.setattr(slots, "start", start)
        with refused(any_change_of(job), "query_canceled"):
            return start(*given)

    monkeypatch.setattr(slots, "start", canceled_first)
    assert Run("w").begin(job.uuid, job.attempt)
    assert fresh(job).state == State.RUNNING


def test_one_that_the_database_does_not_let_end_either_is_left_to_the_sweep() -> None:
    (job,) = admit(waiting_job(tenant_queue()).tenant_queue)
    with refused(any_change_of(job)):
        assert not Run("w").begin(job.uuid, job.attempt)
    assert fresh(job).state == State.QUEUED
    assert Run("w").begin(job.uuid, job.attempt), "as soon as the database takes it"


@pytest.mark.parametrize("as_error", ERRORS)
def test_an_end_that_is_refused_is_kept_and_holds_up_no_other(as_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "BRIEFLY", (0.0,))
    spoilt, well = (running_job(tenant_queue(tenant), another_process()) for tenant in ("poisoned", "well"))
    outcome = {"state": State.FINISHED}
    with refused(any_change_of(spoilt), as_error):
        assert recording.record_end_briefly(spoilt, outcome, lambda: None) is None
        through = list(kept.settle(Ending((job.pk, job.token), outcome) for job in (spoilt, well)))
    assert through == [(well.pk, well.token)]
    assert (fresh(spoilt).state, fresh(well).state) == (State.RUNNING, State.FINISHED)


@pytest.mark.parametrize("kind", OF_ALL.values(), ids=OF_ALL)
def test_an_end_is_kept_also_where_nobodys_can_be_recorded(kind: tuple[str, str]) -> None:
    job = running_job(tenant_queue(), another_process())
    with sql(*kind):
        assert recording.record_end_briefly(job, {"state": State.FINISHED}, lambda: None) is None


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_check_that_the_database_refuses_keeps_no_other_from_telling_what_it_finds(
    as_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = waiting_job(tenant_queue(current_job=1))

    def changes_it() -> Iterator[Finding]:
        TenantJob.objects.update(state=State.WAITING)
        yield from ()

    monkeypatch.setitem(doctor.CHECKS, "counters", (changes_it, *doctor.CHECKS["counters"]))
    with refused(any_change_of(job), as_error):
        assert [one.kind for one in doctor.findings("counters")] == ["check failed", "counter"]


def test_nobody_is_asked_about_a_session_that_is_lost() -> None:
    with pytest.raises(Error) as raised, connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert not is_refusal(raised.value)
    connection.close()
