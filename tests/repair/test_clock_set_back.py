"""The database's clock was ahead and has been set right: what it wrote meanwhile lies ahead, and holds up nothing.

A time that lies further ahead than it can be is no time.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenant_slots.db import clock
from tenant_slots.db.clock import in_seconds
from tenant_slots.models import Kind, State, SweepClaim, TenantJob
from tenant_slots.repair import steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tests.factories import (
    age,
    another_process,
    counters_match,
    fresh,
    owner,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.repair.sweeps import LongContact, sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

AHEAD = 600
"""Seconds by which the clock was set back."""

NAMES = ("beat_at", "admitted_at", "started_at", "enqueued_at")


def written_before(job: TenantJob, *names: str) -> TenantJob:
    """A job with times that the clock gave before it was set back."""
    age(job, **dict.fromkeys(names or NAMES, -AHEAD))
    return job


def a_lease_later() -> None:
    """As if everybody had been silent since."""
    for job in TenantJob.objects.all():
        moved = {name: 30.0 for name in ("beat_at", "admitted_at") if is_past(getattr(job, name))}
        if moved:
            age(job, **moved)


def is_past(time: Any) -> bool:
    return time is not None and time <= clock.now()


def test_a_claim_that_ends_further_ahead_than_a_claim_lasts_is_free() -> None:
    sweeper = Sweeper("one")
    assert sweeper.sweep() is not None
    SweepClaim.objects.update(until=in_seconds(AHEAD))
    assert Sweeper("another").sweep() is not None


def test_control_a_claim_of_this_very_moment_is_not_free() -> None:
    assert Sweeper("one").sweep() is not None
    assert Sweeper("another").sweep() is None


def test_a_dead_owner_is_found_a_lease_after_the_clock_was_set_back() -> None:
    job = written_before(running_job(tenant_queue(), owner("far", host="elsewhere")))
    a_lease_later()
    assert sweep_now().reclaimed == 0  # from here on it counts
    a_lease_later()
    assert sweep_now().reclaimed == 1
    assert (fresh(job).state, job.attempt) == (State.QUEUED, 2)
    assert counters_match()


def test_a_living_owner_loses_nothing_and_sends_its_heartbeats() -> None:
    job = written_before(running_job(tenant_queue(), another_process()))
    assert sweep_now().reclaimed == 0
    assert fresh(job).state == State.RUNNING
    assert is_past(job.beat_at)
    assert sweep_now().reclaimed == 0


def test_a_stock_workers_lost_job_is_found() -> None:
    job = written_before(running_job(tenant_queue(), another_process(beats=False)))
    sweep_now()
    assert is_past(fresh(job).beat_at)


def test_a_job_that_redis_lost_is_pushed_again() -> None:
    row = tenant_queue()
    waiting_job(row)
    row.admit_waiting()
    import django_rq

    django_rq.get_queue("imports").connection.flushdb()
    written_before(TenantJob.objects.get())
    assert sweep_now().repushed == 0
    a_lease_later()
    assert sweep_now().repushed == 1


def test_a_reservation_whose_process_is_gone_is_ended() -> None:
    row = tenant_queue(max_job=0)
    far = owner("far", host="elsewhere")
    job = waiting_job(row, kind=Kind.RESERVATION, beat_at=clock.now(), **far.as_fields())
    written_before(job)
    sweep_now()
    a_lease_later()
    assert sweep_now().reclaimed == 1
    assert fresh(job).state == State.CANCELED


def test_a_job_that_ended_in_the_future_is_pruned_in_time() -> None:
    job = waiting_job(tenant_queue(), state=State.FINISHED)
    written_before(job, "ended_at")
    sweep_now()
    assert is_past(fresh(job).ended_at)


def test_times_that_people_gave_are_left_alone() -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row, state=State.SCHEDULED, run_after=clock.now())
    written_before(job, "run_after")
    row.set_override(3, job.run_after)
    row.pause(until=job.run_after)
    sweep_now()
    assert fresh(job).state == State.SCHEDULED
    assert (fresh(row).max_job, row.paused) == (3, True)


def test_times_that_can_be_are_not_written_again() -> None:
    row = tenant_queue(max_job=2)
    running_job(row, another_process())
    waiting_job(row, state=State.FINISHED, ended_at=clock.now())
    with CaptureQueriesContext(connection) as queries:
        steps.set_times_right(Report(), LongContact())
    assert len(queries) == 1, queries.captured_queries


def jumped(contact: Contact, seconds: float) -> None:
    """As if the database's clock had been set forward since the process last asked it."""
    assert contact.clock is not None
    here, there = contact.clock
    contact.clock = here, there - seconds


def contact_for_a_lease() -> Contact:
    contact = Contact()
    contact.sees(clock.now())
    contact._since -= 3600
    assert contact.covers_a_lease()
    return contact


def test_a_clock_that_is_set_forward_makes_nobody_stale_before_a_lease() -> None:
    job = running_job(tenant_queue(), owner("far", host="elsewhere"))
    contact = contact_for_a_lease()
    age(job, beat_at=AHEAD)
    jumped(contact, AHEAD)
    assert sweep_now(contact).reclaimed == 0
    assert fresh(job).state == State.RUNNING


@pytest.mark.parametrize("is_at_once", [False, pytest.param(True, id="control: before the sweep")])
def test_nor_does_one_that_is_set_forward_while_a_sweep_is_under_way(
    is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running_job(tenant_queue(), owner("far", host="elsewhere"))
    silent = {"beat_at": clock.now(), **owner("web", host="elsewhere").as_fields()}
    reservation = waiting_job(tenant_queue("beta", max_job=0), kind=Kind.RESERVATION, **silent)
    contact = contact_for_a_lease()

    def is_set_forward(*_: Any) -> None:
        age(job, beat_at=AHEAD)
        age(reservation, beat_at=AHEAD)
        jumped(contact, AHEAD)

    if is_at_once:
        is_set_forward()
    else:
        monkeypatch.setattr(steps, "LOCAL_STEPS", (is_set_forward, *steps.LOCAL_STEPS))
    assert sweep_now(contact).reclaimed == 0
    assert (fresh(job).state, fresh(reservation).state) == (State.RUNNING, State.WAITING)


def test_control_without_a_jump_the_same_owner_is_stale() -> None:
    job = running_job(tenant_queue(), owner("far", host="elsewhere"))
    contact = contact_for_a_lease()
    age(job, beat_at=AHEAD)
    assert sweep_now(contact).reclaimed == 1
