"""The database refuses a job that comes through plain RQ: it fails, and says so, instead of coming back for ever."""

from __future__ import annotations

import django_rq
import pytest
from django.db import connection
from rq.job import Job, JobStatus

from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import recording
from tests import jobs
from tests.factories import age, counters_match, fresh, in_rq, tenant_queue, work
from tests.history import History
from tests.refusals import RAISED, refused
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the trigger is PostgreSQL's"),
]

ERRORS = [RAISED, "check_violation", "query_canceled"]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PAUSES", (0.01,) * recording.MOST_TRIES + (30.0,))


def enqueued(history: History) -> Job:
    return django_rq.get_queue("imports").enqueue(jobs.record, "acme", "once", history.path)


def told(rq_job: Job) -> str:
    assert rq_job.get_status() == JobStatus.FAILED
    return str(rq_job.latest_result().exc_string).strip().splitlines()[-1]


@pytest.mark.parametrize("as_error", ERRORS)
@pytest.mark.parametrize(
    ("condition", "events", "problem"),
    [
        ("NEW.state = 'running'", "UPDATE", "the database refuses its start: not this one"),
        ("NEW.state = 'queued'", "UPDATE", "the database refuses it: not this one"),
        ("NEW.state = 'waiting'", "INSERT", "the database refuses it: not this one"),
    ],
)
def test_it_fails_and_is_not_pushed_again(
    as_error: str, condition: str, events: str, problem: str, history: History
) -> None:
    row = tenant_queue(max_job=1)
    with refused(condition, as_error, events=events):
        rq_job = enqueued(history)
        work()
        for job in TenantJob.objects.all():
            age(job, admitted_at=3600)
        assert (sweep_now().repushed, in_rq()) == (0, 0)
        assert told(rq_job).endswith(f"Refused: {problem}")
    rows = list(TenantJob.objects.values_list("state", "error"))
    assert rows == ([] if events == "INSERT" else [(State.FAILED, problem)])
    assert (history.started(), counters_match()) == ([], True)
    assert TenantQueue.objects.get(pk=row.pk).current_job == 0


@pytest.mark.parametrize("as_error", ERRORS)
def test_one_that_may_neither_start_nor_fail_is_canceled_and_not_pushed_again(as_error: str, history: History) -> None:
    row = tenant_queue(max_job=1)
    with refused("NEW.state IN ('running', 'failed')", as_error):
        rq_job = enqueued(history)
        work()
        for job in TenantJob.objects.all():
            age(job, admitted_at=3600)
        assert (sweep_now().repushed, in_rq()) == (0, 0)
    problem = "the database refuses its start: not this one"
    assert told(rq_job).endswith(f"Refused: {problem}")
    assert list(TenantJob.objects.values_list("state", "error")) == [(State.CANCELED, problem)]
    assert (history.started(), counters_match(), fresh(row).current_job) == ([], True, 0)


def test_one_that_may_not_fail_either_waits_in_its_backlog_until_it_can(history: History) -> None:
    """RQ has said that it failed by then, and called whoever is to hear of that: it does not run after all."""
    tenant_queue(max_job=1)
    with refused("NEW.state IN ('queued', 'failed')", "check_violation"):
        rq_job = enqueued(history)
        work()
        assert told(rq_job).endswith("Refused: the database refuses it: not this one")
        assert TenantJob.objects.get().state == State.WAITING
    sweep_now()
    work()
    assert (history.started(), TenantJob.objects.get().state) == ([], State.FAILED)
    assert counters_match()
