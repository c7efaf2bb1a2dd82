"""A standby without the last commits is promoted: an attempt is given twice, and only one run may speak for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenant_slots import slots
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running.run import Run
from tests.factories import admit, counters_match, fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def started(job: TenantJob) -> Run:
    run = Run("worker", beats=True)
    assert run.begin(job.uuid, 1)
    return run


def lose_the_start_of(job: TenantJob) -> None:
    """As the standby has it that was promoted before the start had reached it."""
    TenantJob.objects.filter(pk=job.pk).update(state=State.QUEUED, token=0, started_at=None, beat_at=None, worker="")


def lose_the_admission_of(job: TenantJob) -> None:
    lose_the_start_of(job)
    TenantJob.objects.filter(pk=job.pk).update(state=State.WAITING, attempt=0, admitted_at=None)
    TenantQueue.objects.update(current_job=0)
    admit(job.tenant_queue)


@pytest.mark.parametrize("lose", [lose_the_start_of, lose_the_admission_of])
def test_i2_i4_of_two_runs_of_one_attempt_only_the_later_one_beats_and_releases(
    lose: Callable[[TenantJob], None],
) -> None:
    row = tenant_queue()
    job, successor = waiting_job(row), waiting_job(row)
    admit(row)
    first = started(job)
    lose(job)
    second = started(job)
    assert first.job is not None
    assert second.job is not None
    assert first.job.attempt == second.job.attempt == 1, "the number of the attempt does not tell them apart"

    assert not slots.beat(*first.witness.read()[:2]), "the first run must hear that it has lost its lease"
    assert slots.beat(*second.witness.read()[:2])
    first.end({"state": State.FINISHED, "result": "stale"})
    assert (fresh(job).state, job.result, fresh(successor).state) == (State.RUNNING, None, State.WAITING)
    assert (fresh(row).current_job, counters_match()) == (1, True)

    second.end({"state": State.FINISHED, "result": "right"})
    assert (fresh(job).state, job.result, fresh(successor).state) == (State.FINISHED, "right", State.QUEUED)
    assert (fresh(row).current_job, counters_match()) == (1, True)


def test_control_a_release_that_asks_for_the_attempt_alone_takes_the_other_runs_slot() -> None:
    row = tenant_queue()
    job, successor = waiting_job(row), waiting_job(row)
    admit(row)
    first = started(job)
    lose_the_start_of(job)
    second = started(job)
    assert first.job is not None
    assert second.job is not None
    first.job.token = second.job.token  # what a fence amounts to that is the attempt alone
    first.end({"state": State.FINISHED})
    assert fresh(successor).state == State.QUEUED, "two run at limit 1: the second run of the job, and its successor"


def test_a_second_start_of_an_attempt_that_runs_is_refused() -> None:
    row = tenant_queue()
    job = waiting_job(row)
    admit(row)
    run = started(job)
    assert not Run("another").begin(job.uuid, 1)
    assert slots.beat(*run.witness.read()[:2]), "the run that was there first goes on"
