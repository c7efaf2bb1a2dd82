"""What receivers of Django's signals of Tasks may do, and of what they are told."""

from __future__ import annotations

import pytest
from django.db import transaction
from rq.timeouts import JobTimeoutException

from tenant_slots.django_tasks import results
from tenant_slots.interruptions import NOT_OF_THE_CODE
from tenant_slots.models import State, TenantJob
from tests.django_tasks import tasks
from tests.django_tasks.api import TaskResultStatus, task_enqueued, task_finished, task_started
from tests.factories import work
from tests.test_receivers import heard, raising

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("error", NOT_OF_THE_CODE)
def test_whoever_interrupts_a_receiver_is_obeyed(error: type[BaseException]) -> None:
    with heard(task_enqueued, raising(error)), pytest.raises(error):
        tasks.add.enqueue("acme", 1)
    assert TenantJob.objects.exists()


def test_the_end_of_the_time_of_a_job_is_no_error_of_a_receiver() -> None:
    """Which would swallow it: RQ's alarm rings once, and the function would go on without a limit."""
    result = tasks.add.enqueue("acme", 1)
    with heard(task_started, raising(JobTimeoutException)):
        work()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is JobTimeoutException


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_whatever_else_a_receiver_raises_is_logged_and_the_call_runs_to_its_end(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        heard(task_enqueued, raising(error)),
        heard(task_started, raising(error)),
        heard(task_finished, raising(error)),
    ):
        result = tasks.add.enqueue("acme", 1)
        work()
    result.refresh()
    assert result.return_value == 2
    assert [error in record.exc_info for record in caplog.records if record.exc_info] == [True] * 3


def tracebacks_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


def test_nothing_is_told_of_a_task_that_a_worker_does_not_know(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of the old release, every ten seconds: the job waits for another one, which is no error of ours."""
    tasks.add.enqueue("acme", 1)
    monkeypatch.delattr(tasks, "add")
    work()
    job = TenantJob.objects.get()
    assert job.state == State.SCHEDULED
    job.cancel()
    assert tracebacks_in(caplog) == []
    assert "waits for a worker that knows its function" in caplog.text


def test_nothing_is_told_of_the_end_of_a_call_that_is_deleted_with_it(caplog: pytest.LogCaptureFixture) -> None:
    tasks.add.enqueue("acme", 1)
    with heard(task_finished, raising(AssertionError)), transaction.atomic():
        job = TenantJob.objects.get()
        job.cancel()
        job.delete()
    assert tracebacks_in(caplog) == []


def test_control_what_else_keeps_us_from_telling_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: TenantJob) -> None:
        raise ImportError("the module is broken")

    tasks.add.enqueue("acme", 1)
    monkeypatch.setattr(results, "result_of", broken)
    TenantJob.objects.get().cancel()
    assert tracebacks_in(caplog) == ["a receiver of tenant_slots itself has failed"]
