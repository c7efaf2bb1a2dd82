"""A job whose function a worker does not know waits for one that does, for as long as a deploy may take."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import django_rq
import pytest
from django.test import override_settings
from django.utils.dateparse import parse_datetime

from tenant_slots import transitions
from tenant_slots.models import UNKNOWN_TASK, State, TenantJob
from tests.factories import age, counters_match, fresh, tenant_queue, waiting_job, work
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

NEW = "tests.jobs.of_the_next_release"


def unknown_job(task: str = NEW, **values: object) -> TenantJob:
    job = waiting_job(tenant_queue(), **values)
    TenantJob.objects.filter(pk=job.pk).update(task=task)
    transitions.offer(job.tenant_queue_id, "imports")
    return fresh(job)  # type: ignore[no-any-return]


def due_again(job: TenantJob) -> None:
    """As after the pause: the sweep promotes it."""
    age(job, run_after=1)
    assert sweep_now().promoted == 1


def age_first_meeting(job: TenantJob, seconds: float) -> None:
    mark = fresh(job).options[UNKNOWN_TASK]
    met = parse_datetime(mark["since"])
    assert met is not None
    mark["since"] = (met - timedelta(seconds=seconds)).isoformat()
    TenantJob.objects.filter(pk=job.pk).update(options=job.options)


def test_it_goes_back_without_a_failure_and_its_slot_goes_to_the_next_job() -> None:
    job = unknown_job()
    after = waiting_job(job.tenant_queue)
    work()
    assert (fresh(job).state, job.failures, job.crashes) == (State.SCHEDULED, 0, 0)
    assert "of_the_next_release" in job.error
    assert fresh(after).state == State.FINISHED
    assert counters_match()
    assert django_rq.get_queue("imports").failed_job_registry.count == 0, "RQ would keep each try for a year"


def test_it_runs_in_its_old_position_as_soon_as_a_worker_knows_it() -> None:
    job = unknown_job()
    work()
    TenantJob.objects.filter(pk=job.pk).update(task="tests.jobs.add")  # what a worker of the next release makes of it
    due_again(job)
    work()
    assert (fresh(job).state, job.result) == (State.FINISHED, 3)


def test_a_module_that_is_not_there_is_waited_for_too() -> None:
    job = unknown_job("tests.next_release.jobs.run")
    work()
    assert fresh(job).state == State.SCHEDULED


@pytest.mark.parametrize(("seconds", "state"), [(601, State.FAILED), (590, State.SCHEDULED)])
def test_it_fails_when_no_worker_has_known_it_for_long(seconds: float, state: State) -> None:
    job = unknown_job()
    work()
    age_first_meeting(job, seconds)
    due_again(job)
    work()
    assert fresh(job).state == state
    if state == State.FAILED:
        assert "UnknownJob" in job.error
        assert UNKNOWN_TASK not in job.options, "a retry by hand would not wait"
        assert django_rq.get_queue("imports").failed_job_registry.count == 1


def test_the_time_in_the_backlog_does_not_count() -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row)
    TenantJob.objects.update(task=NEW)
    age(job, enqueued_at=24 * 3600)
    row.set_limit(1)
    work()
    assert fresh(job).state == State.SCHEDULED


def test_a_later_deploy_is_waited_for_anew() -> None:
    job = unknown_job()
    work()
    age_first_meeting(job, 601)
    TenantJob.objects.filter(pk=job.pk).update(attempt=2)  # it has run in between
    due_again(job)
    work()
    assert fresh(job).state == State.SCHEDULED


def test_a_project_that_does_not_want_to_wait_need_not() -> None:
    job = unknown_job()
    with override_settings(TENANT_SLOTS={"UNKNOWN_TASK_WAIT": 0}):
        work()
    assert fresh(job).state == State.FAILED


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import a_package_that_is_missing", "a_package_that_is_missing"),
        ("from tests.jobs import missing_name", "missing_name"),
        ("def run(:", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_module_that_cannot_be_loaded_fails_its_jobs_at_once_and_says_why(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_release.py").write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_release", raising=False)
    job = unknown_job("broken_release.run")
    work()
    assert fresh(job).state == State.FAILED
    assert said in job.error


def test_a_job_that_is_to_be_canceled_does_not_wait() -> None:
    job = unknown_job()
    TenantJob.objects.update(cancel_requested_at="2020-01-01T00:00Z")
    work()
    assert fresh(job).state == State.CANCELED
