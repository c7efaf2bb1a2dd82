"""A job whose time only SQL from outside, or an `update()` of the project, has taken away is not left for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from tenant_slots import chains
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import in_seconds
from tenant_slots.models import JobDependency, Kind, State, TenantJob
from tenant_slots.repair import doctor, waits
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests import jobs
from tests.factories import (
    admit,
    age,
    another_process,
    counters_match,
    damage_found,
    fresh,
    owner,
    redis_forgets,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.repair.sweeps import LongContact, sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


def take(job: TenantJob, *names: str) -> TenantJob:
    TenantJob.objects.filter(pk=job.pk).update(**dict.fromkeys(names))
    return job


def running_elsewhere(tenant: str = "acme") -> TenantJob:
    return running_job(tenant_queue(tenant), owner("far", host="elsewhere"))


def queued() -> TenantJob:
    row = tenant_queue()
    waiting_job(row)
    (job,) = admit(row)
    redis_forgets()
    return job


def waiting_reservation(tenant: str = "acme") -> TenantJob:
    far = owner("far", host="elsewhere").as_fields()
    return waiting_job(tenant_queue(tenant, max_job=0), kind=Kind.RESERVATION, beat_at=clock.now(), **far)


def ended(tenant: str = "acme") -> TenantJob:
    return waiting_job(tenant_queue(tenant), state=State.FINISHED, ended_at=clock.now())


def tomorrow() -> TenantJob:
    return jobs.add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(1, 2, tenant="acme")


def named(job: TenantJob) -> list[tuple[str, str]]:
    return [(one.kind, one.meaning) for one in damage_found() if one.job == str(job.uuid)]


# --- what holds a slot ---------------------------------------------------------------------------------------------


def test_a_run_without_a_heartbeat_on_another_host_is_taken_for_over_a_lease_later() -> None:
    job = take(running_elsewhere(), "beat_at")
    assert sweep_now().reclaimed == 0  # it may have been taken a moment ago: from here on the lease counts
    assert fresh(job).beat_at is not None
    age(job, beat_at=app_settings.LEASE_TTL + 1)
    assert sweep_now().reclaimed == 1
    assert counters_match()


def test_a_run_that_goes_on_sends_its_next_heartbeat_and_loses_nothing() -> None:
    job = take(running_job(tenant_queue(), another_process()), "beat_at")
    for _ in range(2):
        assert sweep_now().reclaimed == 0
    assert fresh(job).state == State.RUNNING


def test_a_stock_workers_run_gets_a_time_from_which_it_is_silent() -> None:
    job = take(running_job(tenant_queue(), another_process(beats=False)), "beat_at")
    sweep_now()
    assert fresh(job).beat_at is not None


def test_an_admitted_job_that_redis_has_lost_is_pushed_again() -> None:
    job = take(queued(), "admitted_at")
    assert sweep_now().repushed == 0
    assert fresh(job).admitted_at is not None
    age(job, admitted_at=app_settings.SWEEP_INTERVAL + 1)
    assert sweep_now().repushed == 1


def test_a_reservation_of_another_host_that_sends_no_heartbeat_is_ended() -> None:
    job = take(waiting_reservation(), "beat_at")
    assert sweep_now().reclaimed == 0
    assert fresh(job).beat_at is not None
    age(job, beat_at=app_settings.LEASE_TTL + 1)
    assert sweep_now().reclaimed == 1
    assert fresh(job).state == State.CANCELED


# --- what holds none -----------------------------------------------------------------------------------------------


def test_an_ended_job_is_kept_for_the_retention_from_then_on() -> None:
    job = take(ended(), "ended_at")
    assert sweep_now().pruned == 0
    assert fresh(job).ended_at is not None
    age(job, ended_at=app_settings.RETENTION + 1)
    assert sweep_now().pruned == 1


def test_a_job_in_a_state_that_means_nothing_is_not_given_an_end() -> None:
    """Somebody may put its state right."""
    job = ended()
    TenantJob.objects.filter(pk=job.pk).update(state="nowhere", ended_at=None)
    sweep_now()
    assert fresh(job).ended_at is None


def test_a_scheduled_job_without_a_time_runs_now() -> None:
    job = take(tomorrow(), "run_after")
    assert sweep_now().promoted == 1
    work("imports", "reports")
    assert fresh(job).state == State.FINISHED


def test_a_job_whose_dependency_somebody_has_deleted_runs() -> None:
    job = jobs.add.using(after=[tomorrow()]).enqueue(1, 2, tenant="acme")
    assert sweep_now().promoted == 0, "the control: it waits for the other one"
    JobDependency.objects.filter(job=job).delete()
    assert sweep_now().promoted == 1
    assert fresh(job).state != State.SCHEDULED


def test_a_job_whose_dependency_somebody_has_deleted_still_waits_for_its_time() -> None:
    later = timezone.now() + timedelta(days=1)
    job = jobs.add.using(after=[tomorrow()], run_after=later).enqueue(1, 2, tenant="acme")
    JobDependency.objects.filter(job=job).delete()
    sweep_now()
    assert fresh(job).state == State.SCHEDULED
    assert job.run_after == later


def test_more_such_jobs_than_are_told_at_once_are_all_promoted_by_one_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "TOLD_AT_ONCE", 2)
    for _ in range(5):
        take(tomorrow(), "run_after")
    assert sweep_now().promoted == 5


def test_who_found_no_such_job_does_not_look_for_more_in_each_sweep() -> None:
    """It would read all jobs that run after others."""
    contact = LongContact()
    assert sweep_now(contact).promoted == 0
    job = take(tomorrow(), "run_after")
    assert sweep_now(contact).promoted == 0
    contact.looked_for_forgotten_at -= waits.SECONDS_BETWEEN_LOOKS_FOR_FORGOTTEN
    assert sweep_now(contact).promoted == 1
    assert fresh(job).state != State.SCHEDULED


def test_those_that_have_a_time_or_wait_for_a_job_are_left_alone() -> None:
    for number, make in enumerate((running_elsewhere, waiting_reservation, ended)):
        make(f"tenant {number}")
    later = tomorrow()
    after = jobs.add.using(after=[later]).enqueue(1, 2, tenant="acme")
    before = list(TenantJob.objects.order_by("pk").values())
    sweep_now()
    assert list(TenantJob.objects.order_by("pk").values()) == before
    assert named(after) == []


# --- the doctor ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "column"),
    [
        (running_elsewhere, "beat_at"),
        (queued, "admitted_at"),
        (waiting_reservation, "beat_at"),
        (ended, "ended_at"),
        (tomorrow, "run_after"),
    ],
)
def test_the_doctor_names_a_job_without_the_time_that_its_state_has(make: Callable[[], TenantJob], column: str) -> None:
    job = make()
    TenantJob.objects.holding().update(admitted_at=in_seconds(0))
    assert [kind for kind, _ in named(job)] in ([], ["lost in Redis"]), "the control"
    take(job, column)
    ((kind, meaning),) = named(job)
    assert kind == "missing time"
    assert column in meaning
    sweep_now()
    assert "missing time" not in [kind for kind, _ in named(job)]


@pytest.mark.parametrize("itself", [True, False])
def test_the_doctor_names_jobs_that_run_after_each_other_which_no_sweep_can_end(itself: bool) -> None:
    first = jobs.add.using(after=[tomorrow()]).enqueue(1, 2, tenant="acme")
    last = first if itself else jobs.add.using(after=[first]).enqueue(1, 2, tenant="acme")
    assert doctor.findings("rows") == []
    JobDependency.objects.filter(job=first).update(after=last)
    for _ in range(2):
        sweep_now()
    ((kind, meaning),) = named(first)
    assert kind == "circle"
    assert f"job {last.uuid}" in meaning
    assert first.cancel()
    sweep_now()
    assert damage_found() == []
    assert fresh(last).state == State.CANCELED


def test_a_slow_look_for_forgotten_jobs_is_not_repeated_by_each_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, now = [], [1000.0]
    look = chains.forgotten

    def slow() -> Any:
        looks.append(1)
        now[0] += 2 * waits.SECONDS_TO_TELL
        return look()

    monkeypatch.setattr(chains, "forgotten", slow)
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    contact = Contact()
    for _ in range(3):
        waits.promote_forgotten(Report(), contact)
    assert len(looks) == 1
