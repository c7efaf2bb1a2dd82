"""A job that is put back and has a slot again has not begun: its row still tells of its start before."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client, RequestFactory
from django.utils.timezone import localtime

from tenant_slots import slots
from tenant_slots.admin import lists, reasons
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.stats import held, rows
from tenant_slots.stats.pace import pace_of
from tests.admin.site import JOBS, change_page, confirmed
from tests.factories import (
    age,
    another_process,
    fresh,
    owner,
    redis_forgets,
    release_then_admit,
    running_job,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
)

pytestmark = pytest.mark.django_db

RAN_FOR = "ran for"


@pytest.fixture(autouse=True)
def _redis() -> None:
    somebody_sweeps()
    redis_forgets()


def next_again(row: TenantQueue, by: Owner) -> TenantJob:
    job = running_job(row, by)
    age(job, enqueued_at=3100, admitted_at=3050, started_at=3000)
    release_then_admit(job, state=State.WAITING)
    assert fresh(job).state == State.QUEUED
    return job


def why(job: TenantJob) -> str:
    return " ".join(reasons.why_waiting(TenantJob.objects.select_related("tenant_queue").get(pk=job.pk)))


def test_the_worker_of_its_attempt_before_is_not_missed() -> None:
    row = tenant_queue(max_job=1)
    next_again(row, owner("stock-7", beats=False))
    assert "was started by" not in why(waiting_job(row))


def test_control_that_of_a_job_that_runs_is() -> None:
    row = tenant_queue(max_job=1)
    running_job(row, owner("stock-7", beats=False))
    assert "was started by stock-7" in why(waiting_job(row))


def test_nor_does_that_worker_hold_a_slot() -> None:
    row = tenant_queue(max_job=1)
    next_again(row, another_process("worker-7"))
    assert "worker-7" not in why(waiting_job(row))


def test_those_that_run_come_before_it() -> None:
    row = tenant_queue(max_job=2)
    again = next_again(row, another_process("worker-7"))
    runs = running_job(row, another_process("worker-8"))
    assert [job.pk for job in held.holding(row, 10)] == [runs.pk, again.pk]


def test_the_page_of_the_tenant_queue_says_since_when_it_has_its_slot(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    job = next_again(row, another_process("worker-7"))
    TenantJob.objects.filter(pk=job.pk).update(started_at=job.started_at - timedelta(days=40))
    page = boss.get(change_page(row)).content.decode()
    table = page[page.index("slots-holding-title") :]
    assert "worker-7" not in table
    assert f"{localtime(fresh(job).started_at):%m/%d/%Y}" not in table
    assert f"{localtime(job.admitted_at):%m/%d/%Y}" in table


def texts_of(boss: Client, job: TenantJob) -> list[str]:
    return [event.text for event in boss.get(change_page(job)).context["slots_events"]]


def test_an_attempt_that_is_canceled_before_it_began_has_not_started(boss: Client) -> None:
    job = next_again(tenant_queue(max_job=1), another_process("worker-7"))
    assert fresh(job).cancel()
    assert "attempt 2: got a slot" in texts_of(boss, job)
    assert "attempt 2: started" not in texts_of(boss, job)


def test_control_one_that_has_begun_has(boss: Client) -> None:
    job = next_again(tenant_queue(max_job=1), another_process("worker-7"))
    assert slots.start(job, owner())
    assert slots.release(fresh(job), state=State.FINISHED)
    assert "attempt 2: started" in texts_of(boss, job)
    assert RAN_FOR in dict(boss.get(change_page(job)).context["slots_durations"])


def test_nor_has_one_run_whose_slot_was_taken(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    job = next_again(row, another_process("worker-7", host="far"))
    confirmed(boss, JOBS, "release", job, force="on", reason="stuck")
    assert fresh(job).state == State.FAILED
    said = texts_of(boss, job)
    assert "attempt 2: got a slot" in said
    assert not [text for text in said if "attempt 2: started" in text or "was lost" in text], "there was no run"
    assert RAN_FOR not in dict(boss.get(change_page(job)).context["slots_durations"])
    figures = rows.measured([row.pk])[row.pk]
    assert (figures.worker_seconds, sum(figures.activity), figures.failed) == (0, 0, 1)


def test_jobs_that_were_put_back_and_canceled_while_they_waited_say_nothing_of_the_pace() -> None:
    row = tenant_queue(max_job=1)
    for _ in range(5):
        job = running_job(row, another_process("worker-7"))
        age(job, enqueued_at=600, started_at=500)
        assert slots.release(job, state=State.WAITING)
        assert fresh(job).cancel()
    assert pace_of(fresh(row)) is None


@pytest.mark.parametrize("query", ["state__exact=waiting", "state__exact=waiting&tenant="])
def test_an_emptied_filter_by_tenant_reads_the_list_as_none_does(query: str) -> None:
    assert lists.reading_of(RequestFactory().get(f"/?{query}")) == lists.OF_STATE[State.WAITING]
    assert lists.reading_of(RequestFactory().get(f"/?{query}&tenant=acme")) == lists.WAITING_OF_A_TENANT
