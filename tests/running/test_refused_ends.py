"""The database refuses the end of a run that no worker of ours keeps: its job fails, and does not run again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from tenant_slots import hold_slot
from tenant_slots.db.clock import in_seconds
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import recording
from tests import jobs
from tests.factories import counters_match, fresh, tenant_queue, work
from tests.history import History
from tests.refusals import RAISED, refused
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the trigger is PostgreSQL's"),
]

ERRORS = [RAISED, "check_violation", "query_canceled"]

FINISHED = "NEW.state = 'finished'"
ENDED = "OLD.state = 'running' AND NEW.state IN ('finished', 'failed')"

PROBLEM = "the database refuses its end: not this one"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PAUSES", (0.01,) * recording.MOST_TRIES + (30.0,))


@pytest.fixture
def died() -> Iterator[list[Any]]:
    """Threads that an error has ended."""
    found: list[Any] = []
    hook, threading.excepthook = threading.excepthook, found.append
    yield found
    threading.excepthook = hook


def join_keepers() -> None:
    for thread in threading.enumerate():
        if thread.name == "tenant_slots reservation":
            thread.join(60)


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_job_whose_end_is_refused_fails_and_does_not_run_again(as_error: str, history: History) -> None:
    tenant_queue(max_job=1)
    job = jobs.record.enqueue("acme", "once", history.path)
    with refused(FINISHED, as_error):
        work()
        assert (fresh(job).state, job.error) == (State.FAILED, PROBLEM)
        work()
    assert history.started() == ["once"]
    assert (job.attempt, job.crashes, counters_match()) == (1, 0, True)


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_job_that_may_not_fail_either_is_left_to_a_sweep(
    as_error: str, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    tenant_queue(max_job=1)
    job = jobs.record.enqueue("acme", "once", history.path)
    with refused(ENDED, as_error):
        work()
    assert fresh(job).state == State.RUNNING
    assert f"job {job.uuid}, whose end the database refuses, is left to a sweep" in caplog.messages


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_reservation_whose_end_is_refused_gives_its_slot_back(as_error: str, died: list[Any]) -> None:
    row = tenant_queue(max_job=1)
    with refused(FINISHED, as_error), hold_slot("acme", "imports") as held:
        pass
    join_keepers()
    assert (fresh(held.job).state, held.job.error, died) == (State.FAILED, PROBLEM, [])
    assert fresh(row).current_job == 0


@pytest.mark.parametrize("as_error", ERRORS)
def test_a_reservation_that_may_not_fail_either_is_ended_by_a_sweep_once_it_can_be(
    as_error: str, died: list[Any]
) -> None:
    row = tenant_queue(max_job=1)
    with refused(ENDED, as_error):
        with hold_slot("acme", "imports") as held:
            pass
        join_keepers()
    TenantJob.objects.filter(pk=held.job.pk).update(beat_at=in_seconds(-3600))
    sweep_now()
    assert (fresh(row).current_job, fresh(held.job).state, died) == (0, State.FAILED, [])


def test_a_reservation_that_may_not_begin_nor_be_canceled_ends_no_thread(died: list[Any]) -> None:
    row = tenant_queue(max_job=1)
    with refused("NEW.state IN ('running', 'canceled', 'failed')", "check_violation"):
        with pytest.raises(Exception, match="not this one"):
            hold_slot("acme", "imports").__enter__()
        join_keepers()
    assert died == []
    assert TenantQueue.objects.get(pk=row.pk).current_job == 1
