"""By the class of its error a failed job is found among all that have failed; no other job has one."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from tenant_slots import hold_slot, slots, tenant_job, transitions
from tenant_slots.enqueueing import retry
from tenant_slots.locks import locked
from tenant_slots.models import Stage, State, TenantJob
from tenant_slots.models.tenant_job import ERROR_CLASS_LENGTH
from tenant_slots.repair import lost_runs
from tenant_slots.running import errors
from tests import jobs
from tests.factories import counters_match, dead_process, fresh, owner, running_job, tenant_queue, waiting_job, work
from tests.plans import explained

pytestmark = pytest.mark.django_db(transaction=True)


class FeedBroken(Exception):
    class TwiceOver(Exception):
        """Of a class in a class."""


class Odd(type):
    def __getattribute__(cls, name: str) -> object:
        if name == "__module__":
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Odd):
    """Its name cannot be read."""


@tenant_job("imports", tenant="tenant")
def raise_nameless(tenant: str) -> None:
    raise Nameless


def failed_job() -> TenantJob:
    job = jobs.fail.enqueue("acme")
    work()
    return fresh(job)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("x"), "ValueError"),
        (FeedBroken.TwiceOver(), f"{__name__}.FeedBroken.TwiceOver"),
        (type("Odd", (Exception,), {"__module__": "a\0b"})(), "a\\0b.Odd"),
        (type("L" * 500, (Exception,), {"__module__": "builtins"})(), "L" * ERROR_CLASS_LENGTH),
        (Nameless(), ""),
    ],
)
def test_the_name_of_a_class(error: BaseException, name: str) -> None:
    assert errors.class_of(error) == name


def test_a_failed_job_has_the_class_of_its_error() -> None:
    job = failed_job()
    assert (job.state, job.error_class) == (State.FAILED, "ValueError")


def test_an_error_whose_class_has_no_name_to_be_read_ends_its_job_as_any_other() -> None:
    job = raise_nameless.enqueue("acme")
    work()
    assert (fresh(job).state, fresh(job).error_class) == (State.FAILED, "")
    assert counters_match()


def test_a_finished_job_has_none() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert (fresh(job).state, fresh(job).error_class) == (State.FINISHED, None)


def test_a_job_that_raised_and_is_to_run_again_has_none() -> None:
    job = jobs.flaky.enqueue("acme")
    work()
    assert (fresh(job).state, fresh(job).error_class) == (State.SCHEDULED, None)
    assert "flaky" in fresh(job).error


def test_a_job_that_failed_and_is_canceled_instead_has_none() -> None:
    job = running_job(tenant_queue(), owner())
    TenantJob.objects.update(cancel_requested_at=job.enqueued_at)
    assert slots.release(job, state=State.FAILED, error="x", error_class="ValueError")
    assert (fresh(job).state, fresh(job).error_class) == (State.CANCELED, None)


def test_a_reservation_whose_block_raises_has_one() -> None:
    with pytest.raises(ZeroDivisionError), hold_slot("acme", "imports"):
        raise ZeroDivisionError
    assert TenantJob.objects.get().error_class == "ZeroDivisionError"


def test_a_job_that_failed_without_an_error_of_its_function_has_an_empty_one() -> None:
    lost = running_job(tenant_queue(max_job=2), dead_process())
    assert lost_runs.end_lost_run(lost, "gone", state=State.FAILED)
    waiting = waiting_job(lost.tenant_queue)
    assert transitions.fail_unadmitted(waiting, "never")
    assert [fresh(job).error_class for job in (lost, waiting)] == ["", ""]


def test_a_waiting_job_that_is_withdrawn_has_none() -> None:
    job = waiting_job(tenant_queue())
    assert slots.withdraw(job)
    assert (fresh(job).state, fresh(job).error_class) == (State.CANCELED, None)


def test_a_job_that_is_retried_has_none_any_more() -> None:
    job = failed_job()
    job.retry()
    assert fresh(job).error_class is None


def test_jobs_that_are_retried_together_have_none_any_more() -> None:
    job = failed_job()
    with locked(job.tenant_queue_id) as row:
        assert retry.retry_all(row, [job])
    assert fresh(job).error_class is None


@pytest.mark.skipif(connection.vendor != "postgresql", reason="how PostgreSQL plans")
def test_failed_jobs_are_read_from_an_index_that_has_no_other_jobs() -> None:
    def plan(**asked: Any) -> str:
        found = TenantJob.objects.filter(**asked).order_by("-ended_at").values_list("task", "error_class")
        return explained(found)

    assert "Index Only Scan Backward using tenant_slots_failed" in plan(has_failed=True)
    assert "tenant_slots_failed" not in plan(stage=Stage.ENDED), "the control: it is not for all that have ended"
