"""A process that has stood still since the start of a run asks whether the slot is still its own, before the call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import django_rq
import pytest
from django.db import OperationalError, connection
from django.db.models.expressions import RawSQL
from rq.job import JobStatus

from tenant_slots import slots
from tenant_slots.db import clock
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import lost_runs
from tenant_slots.running import run as runs
from tests import jobs
from tests.factories import age, counters_match, fresh, running_job, tenant_queue, work
from tests.factories import owner as owner_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as a lease may be."""
    monkeypatch.setattr(runs, "UNASKED_SHARE", 0)


@pytest.fixture
def overtaken(monkeypatch: pytest.MonkeyPatch) -> list[TenantJob]:
    """The first run is taken for lost before it asks."""
    lost, beat = list[TenantJob](), slots.beat

    def overtake(job_id: int, *run: Any) -> bool:
        if not lost:
            job = TenantJob.objects.get(pk=job_id)
            assert lost_runs.end_interrupted_run(job, "silent", silent=True)
            lost.append(job)
        return beat(job_id, *run)

    monkeypatch.setattr(slots, "beat", overtake)
    return lost


def test_one_that_still_has_its_slot_goes_on_with_a_whole_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    beats, beat = list[bool](), slots.beat
    monkeypatch.setattr(slots, "beat", lambda *run: beats.append(beat(*run)) or beats[-1])
    work()
    assert (fresh(job).state, job.result, job.attempt) == (State.FINISHED, 3, 1)
    assert beats == [True]


def test_one_of_ours_that_was_overtaken_leaves_the_call_to_the_next_run(overtaken: list[TenantJob]) -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert overtaken == [job]
    assert (fresh(job).state, job.result, job.attempt, job.interruptions) == (State.FINISHED, 3, 2, 1)
    assert counters_match()


def test_a_plain_rq_job_that_was_overtaken_comes_back_and_runs(overtaken: list[TenantJob]) -> None:
    queue = django_rq.get_queue("reports")
    rq_job = queue.enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    (lost,) = overtaken
    assert fresh(lost).state == State.FAILED
    assert (rq_job.get_status(), rq_job.results()) == (JobStatus.SCHEDULED, [])
    queue.push_job_id(rq_job.id)
    work()
    assert rq_job.return_value() == 3
    assert counters_match()


def test_where_the_database_cannot_be_asked_the_job_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [OperationalError("away")]
    beat = slots.beat
    monkeypatch.setattr(slots, "beat", lambda *run: _raised(answers.pop()) if answers else beat(*run))
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert (fresh(job).state, job.result, job.attempt) == (State.FINISHED, 3, 2)
    assert (job.crashes, job.interruptions, job.failures) == (0, 0, 0)
    assert counters_match()


def _raised(error: Exception) -> bool:
    raise error


@pytest.mark.parametrize("is_heard_of", [True, pytest.param(False, id="control")])
def test_a_heartbeat_in_the_last_moment_keeps_a_run_from_being_taken_for_lost(is_heard_of: bool) -> None:
    job = running_job(tenant_queue(), owner_of(host="elsewhere"))
    age(job, beat_at=3600)
    found = TenantJob.objects.get()
    if is_heard_of:
        assert slots.beat(job.pk, job.token)
    assert lost_runs.end_interrupted_run(found, "silent", silent=True) is not is_heard_of
    assert (fresh(job).state == State.RUNNING) is is_heard_of


@pytest.mark.parametrize("microsecond", [0, 1000, 999_000])
def test_control_one_without_it_is_taken_for_lost_whatever_digits_its_time_has(microsecond: int) -> None:
    job = running_job(tenant_queue(), owner_of(host="elsewhere"))
    TenantJob.objects.update(beat_at=clock.now().replace(microsecond=microsecond) - timedelta(hours=1))
    if connection.vendor == "sqlite":  # as it writes a heartbeat itself
        TenantJob.objects.update(beat_at=RawSQL("strftime('%%Y-%%m-%%d %%H:%%M:%%f', beat_at)", []))
    assert lost_runs.end_interrupted_run(TenantJob.objects.get(), "silent", silent=True)
    assert fresh(job).attempt == 2
