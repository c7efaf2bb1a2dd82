"""A host whose clock is wrong: what is due, and what is over, is a matter of the database's clock alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import django_rq
import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from tenant_slots.admin import forms
from tenant_slots.db import clock
from tenant_slots.exceptions import TimeHasPassed
from tenant_slots.models import State, TenantQueue
from tenant_slots.running import deliveries
from tests import jobs
from tests.factories import fresh, tenant_queue

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def this_clock_is(ahead: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    right = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: right() + ahead)


def in_truth(**time: float) -> datetime:
    """A time by the right clock, which this test and its database share until one is set wrong."""
    return datetime.now(tz=UTC) + timedelta(**time)


BOTH_WAYS = pytest.mark.parametrize("ahead", [HOUR, -HOUR])


@BOTH_WAYS
def test_control_this_processs_clock_is_wrong(ahead: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    this_clock_is(ahead, monkeypatch)
    assert abs(timezone.now() - in_truth() - ahead) < timedelta(minutes=1)
    assert abs(clock.now() - in_truth()) < timedelta(minutes=1)


@BOTH_WAYS
def test_a_job_waits_for_its_time_and_no_longer(ahead: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    this_clock_is(ahead, monkeypatch)
    early = jobs.add.using(run_after=in_truth(minutes=30)).enqueue(1, 2, tenant="acme")
    due = jobs.add.using(run_after=in_truth(minutes=-30)).enqueue(1, 2, tenant="acme")
    assert (early.state, due.state) == (State.SCHEDULED, State.WAITING)


def require(time: datetime) -> None:
    try:
        forms.require_future(time)
    except ValidationError as error:
        raise TimeHasPassed(until=time) from error


@BOTH_WAYS
@pytest.mark.parametrize(
    "use",
    [
        lambda time: tenant_queue().set_override(3, time),
        lambda time: tenant_queue().pause(until=time),
        require,
    ],
)
def test_what_is_to_end_by_itself_ends_in_the_databases_future(
    use: Callable[[datetime], Any], ahead: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    this_clock_is(ahead, monkeypatch)
    with pytest.raises(TimeHasPassed):
        use(in_truth(minutes=-30))
    # The row was made by the refused try.
    type(tenant_queue("other")).objects.all().delete()
    use(in_truth(minutes=30))


@BOTH_WAYS
def test_a_plain_job_comes_back_when_it_is_due(ahead: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    this_clock_is(ahead, monkeypatch)
    queue = django_rq.get_queue("imports")
    job = queue.create_job(print)
    deliveries.deferred(job, until=in_truth(minutes=5))
    job._handle_retry_result(queue=queue, pipeline=queue.connection.pipeline())
    comes_back = queue.scheduled_job_registry.get_scheduled_time(job)
    assert timedelta(seconds=290) < comes_back - in_truth() < timedelta(seconds=302)


def test_the_time_is_of_the_kind_that_the_project_uses(settings: Any) -> None:
    assert clock.now().tzinfo is not None
    settings.USE_TZ = False
    assert clock.now().tzinfo is None
    assert abs(clock.now() - datetime.now()) < timedelta(minutes=1)


def test_the_clock_that_is_asked_is_never_behind_a_time_that_was_written_before() -> None:
    row = tenant_queue()
    for _ in range(100):
        TenantQueue.objects.filter(pk=row.pk).update(resume_at=clock.DatabaseNow())
        asked = clock.now()
        assert fresh(row).resume_at <= asked
