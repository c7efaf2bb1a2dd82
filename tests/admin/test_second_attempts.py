"""What a job did in an earlier attempt is not taken for the latest one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import slots
from tenant_slots.models import State
from tenant_slots.stats import rows
from tenant_slots.tasks import attempts
from tests.admin.site import change_page, signed_in
from tests.factories import age, another_process, fresh, release_then_admit, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_that_is_canceled_while_it_waits_again_has_not_run_until_then(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    job = running_job(row, another_process())
    age(job, enqueued_at=3100, started_at=3000)
    assert slots.release(fresh(job), state=State.WAITING)
    assert fresh(job).cancel()
    found = rows.measured([row.pk])[row.pk]
    assert (found.worker_seconds, max(found.activity)) == (0, 0)
    assert "ran for" not in dict(boss.get(change_page(job)).context["slots_durations"])


def test_control_a_job_that_is_stopped_has_run_until_then() -> None:
    row = tenant_queue(max_job=1)
    job = running_job(row, another_process())
    age(job, enqueued_at=3100, started_at=3000)
    assert fresh(job).cancel()
    assert slots.release(fresh(job), state=State.CANCELED)
    assert rows.measured([row.pk])[row.pk].worker_seconds == pytest.approx(3000, abs=5)


def test_a_further_attempt_has_not_started_when_it_gets_its_slot(boss: Client) -> None:
    job = running_job(tenant_queue(max_job=1), another_process())
    release_then_admit(fresh(job), state=State.WAITING)
    texts = [event.text for event in boss.get(change_page(job)).context["slots_events"]]
    assert "attempt 2: got a slot" in texts
    assert "attempt 2: started" not in texts


def test_a_job_that_waits_again_has_waited_since_its_last_run_ended(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    job = running_job(row, another_process())
    age(job, enqueued_at=9100, started_at=9000)
    noted = attempts.noted(fresh(job), "OSError", "", "worker", 9000.0)
    noted["runs"][0]["ended"] = (timezone.now() - timedelta(seconds=150)).isoformat()
    assert slots.release(fresh(job), state=State.WAITING, **noted)
    assert boss.get(change_page(job)).context["slots_durations"] == [("has waited for", "2 min")]


def test_control_what_has_not_run_yet_has_waited_since_it_could(boss: Client) -> None:
    job = waiting_job(tenant_queue(max_job=0))
    age(job, enqueued_at=9100)
    assert boss.get(change_page(job)).context["slots_durations"] == [("has waited for", "2 h 31 min")]


def test_a_job_that_failed_has_waited_until_it_started(boss: Client) -> None:
    job = running_job(tenant_queue(max_job=1), another_process())
    age(job, enqueued_at=9100, started_at=8960)
    noted = attempts.noted(fresh(job), "OSError", "", "worker", 8960.0)
    assert slots.release(fresh(job), state=State.FAILED, error="OSError", **noted)
    assert dict(boss.get(change_page(job)).context["slots_durations"])["waited for"] == "2 min"


def test_the_page_takes_as_many_queries_for_many_holders_of_a_key_as_for_one() -> None:
    viewer = signed_in("view_tenantjob")

    def queries(tenant: str, holders: int) -> int:
        row = tenant_queue(tenant, max_job=9, max_job_per_key=9)
        for _ in range(holders):
            running_job(row, another_process(), key="u")
        type(row).objects.update(max_job_per_key=1)
        job = waiting_job(row, key="u")
        viewer.get(change_page(job))
        with CaptureQueriesContext(connection) as captured:
            viewer.get(change_page(job))
        return len(captured)

    assert queries("a", 1) == queries("b", 4)
