"""A queue that the project has taken out of RQ_QUEUES, while it still has jobs: they rest, and nobody else notices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.conf import settings
from django.test import Client, override_settings

from tenant_slots.models import State, TenantJob
from tenant_slots.repair import doctor, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests.admin.site import change_page
from tests.factories import (
    age,
    counters_match,
    dead_process,
    fresh,
    owner,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

GONE = "imports"


@contextmanager
def without_queue() -> Iterator[None]:
    with override_settings(RQ_QUEUES={name: one for name, one in settings.RQ_QUEUES.items() if name != GONE}):
        yield


def due_job(tenant: str, queue: str) -> TenantJob:
    job = waiting_job(tenant_queue(tenant, queue=queue), state=State.SCHEDULED)
    age(job, run_after=3600 if queue == GONE else 60)  # that of the queue that is gone comes first
    return job


def test_its_due_jobs_keep_no_others_from_being_promoted_and_offered() -> None:
    gone, other = due_job("gone", GONE), due_job("other", "reports")
    report = Report()
    with without_queue():
        steps.promote(report, Contact())
    assert report.promoted == 2
    assert (fresh(gone).state, fresh(other).state) == (State.WAITING, State.QUEUED)


def due_in_its_overflow_queue() -> TenantJob:
    job = waiting_job(tenant_queue("slow", queue="reports"), rq_queue=GONE, state=State.SCHEDULED)
    age(job, run_after=1)
    return job


def killed_in_its_overflow_queue() -> TenantJob:
    job = running_job(tenant_queue("slow", queue="reports"), dead_process())
    TenantJob.objects.filter(pk=job.pk).update(rq_queue=GONE)
    return job


def retried_by_staff() -> TenantJob:
    job = waiting_job(tenant_queue("slow", queue="reports"), rq_queue=GONE)
    assert job.cancel()
    job.retry()
    return job


def enqueued_where_the_queue_is_still_known() -> TenantJob:
    """By a process with the settings from before, while others are started with the new ones."""
    return waiting_job(tenant_queue("slow", queue="reports"), rq_queue=GONE)


@pytest.mark.parametrize(
    "come",
    [
        due_in_its_overflow_queue,
        killed_in_its_overflow_queue,
        retried_by_staff,
        enqueued_where_the_queue_is_still_known,
    ],
)
def test_what_comes_to_wait_in_an_overflow_queue_that_is_gone_goes_on_with_the_next_sweep(
    come: Callable[[], TenantJob],
) -> None:
    contact = Contact()
    with without_queue():
        sweep_now(contact)  # finds nothing, which is no reason to look more seldom
        job = come()
        sweep_now(contact)
    assert (fresh(job).state, job.rq_queue) == (State.QUEUED, "")


def test_a_sweep_does_all_its_steps_and_reclaims_its_slots() -> None:
    dead = running_job(tenant_queue("gone"), dead_process())
    due = due_job("due", GONE)
    with without_queue():
        report = sweep_now()
        assert (report.failed, report.reclaimed) == ([], 1)
        assert {one.kind for one in doctor.findings("queues")} == {"unknown queue"}
    assert (fresh(dead).state, fresh(due).state) == (State.WAITING, State.WAITING)
    assert counters_match()


def test_its_limits_are_changed_and_nothing_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    job = running_job(tenant_queue(max_job=1), owner())
    row = job.tenant_queue
    waiting_job(row)
    with without_queue():
        row.set_limit(3)
        row.pause()
        row.resume()
        assert fresh(job).cancel()
    assert fresh(row).max_job == 3
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert "Queue 'imports' is not in RQ_QUEUES" in caplog.text


@pytest.mark.parametrize("max_job", [0, 1, 3])
def test_the_page_of_each_of_its_jobs_is_shown(max_job: int, boss: Client) -> None:
    row = tenant_queue(max_job=1)
    running, waiting = running_job(row, owner(), beats=False), waiting_job(row)
    row.set_limit(max_job)
    with without_queue():
        for job in (running, waiting):
            assert boss.get(change_page(job)).status_code == 200
        page = boss.get(change_page(waiting)).content.decode()
    assert "RQ_QUEUES does not have queue imports, so that no worker takes its jobs." in page


def test_its_jobs_run_once_it_is_back() -> None:
    job = waiting_job(tenant_queue())
    with without_queue():
        sweep_now()
        work("reports")
        assert fresh(job).state == State.WAITING
    sweep_now()
    work()
    assert fresh(job).state == State.FINISHED
