"""The rate of a tenant queue: who sets it, what a new row gets, and that no change gives back what was used."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from tenant_slots import rates, signals, slots, tenants
from tenant_slots.db import clock
from tenant_slots.exceptions import InvalidRate, InvalidSetting, StaleVersion
from tenant_slots.models import Change, State, TenantQueue
from tests.factories import admit, fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def rate_of(tenant: str, queue: str) -> Any:
    return {"big": "100/m", "own": rates.Rate(5, DAY, 5), "odd": "many"}.get(tenant)


def take(row: TenantQueue, number: int) -> None:
    assert TenantQueue.objects.filter(rates.allows(number), pk=row.pk).update(**rates.taken(number))


def tokens(row: TenantQueue) -> int:
    bucket = rates.bucket(fresh(row), clock.now())
    assert bucket is not None
    return bucket.tokens


def test_a_change_is_stored_versioned_and_told() -> None:
    row, told = tenant_queue(), []

    def receive(*, change: Change, **_: Any) -> None:
        told.append(change)

    signals.limit_changed.connect(receive)
    try:
        changes = row.set_rate(100, per=MINUTE, burst=10, by="anna", reason="partner", version=0)
        assert row.set_rate(100, per=MINUTE, burst=10) == []
        changes += row.set_rate(None)
    finally:
        signals.limit_changed.disconnect(receive)
    assert told == changes
    assert told == [
        Change("rate", None, "100/m, burst 10", "anna", "partner", None),
        Change("rate", "100/m, burst 10", None, "", "", None),
    ]
    assert (row.rate, fresh(row).rate, row.version, row.limit_set_by) == (None, None, 2, "")


def test_without_a_burst_it_is_what_one_second_brings() -> None:
    row = tenant_queue()
    for number, per, burst in [(100, MINUTE, 2), (50, timedelta(seconds=1), 50), (5, DAY, 1)]:
        row.set_rate(number, per=per)
        assert fresh(row).rate == rates.Rate(number, per, burst)


@pytest.mark.parametrize(
    ("number", "options"),
    [(0, {"per": MINUTE}), (5, {}), (5, {"per": 60}), (5, {"per": MINUTE, "burst": 0}), ("5/m", {}), (True, {})],
)
def test_a_wrong_rate_is_refused(number: Any, options: dict[str, Any]) -> None:
    row = tenant_queue()
    with pytest.raises(InvalidRate):
        row.set_rate(number, **options)
    assert (fresh(row).rate, row.version) == (None, 0)


def test_a_change_by_somebody_who_has_not_seen_the_last_one_is_refused() -> None:
    row = tenant_queue()
    row.set_limit(4)
    with pytest.raises(StaleVersion):
        row.set_rate(5, per=MINUTE, version=0)
    assert fresh(row).rate is None


@pytest.mark.parametrize(
    ("number", "burst", "left"),
    [(5, 10, 2), (500, 10, 2), (5, 12, 4), (5, 8, 0), (5, 1, 0), (50, 100, 92)],
)
def test_what_was_used_stays_used_when_the_rate_is_changed(number: int, burst: int, left: int) -> None:
    row = tenant_queue()
    row.set_rate(5, per=100 * DAY, burst=10)
    take(row, 8)
    row.set_rate(number, per=150 * DAY, burst=burst)
    assert tokens(row) == left


def test_what_was_used_beyond_a_smaller_burst_is_forgotten_as_documented() -> None:
    row = tenant_queue()
    row.set_rate(5, per=100 * DAY, burst=10)
    take(row, 8)
    row.set_rate(5, per=100 * DAY, burst=5)
    assert tokens(row) == 0
    row.set_rate(5, per=100 * DAY, burst=10)
    assert tokens(row) == 5


def test_jobs_that_were_admitted_without_a_rate_start_at_the_new_one() -> None:
    """Else each of them that goes back would bring a token that it has not taken."""
    row = tenant_queue(max_job=3)
    for _ in range(3):
        waiting_job(row)
    admitted = admit(row)
    row.set_rate(1, per=DAY, burst=5)
    assert tokens(row) == 2
    assert slots.release(admitted[0], states=(State.QUEUED,), state=State.WAITING)
    assert tokens(row) == 3


def test_the_same_rate_again_refills_nothing() -> None:
    row = tenant_queue()
    row.set_rate(5, per=DAY, burst=10)
    take(row, 10)
    row.set_rate(5, per=DAY, burst=10)
    row.set_limit(7)
    row.pause()
    assert (tokens(row), row.version) == (0, 3)


def test_a_row_in_memory_that_is_saved_refills_nothing() -> None:
    row = tenant_queue()
    row.set_rate(5, per=DAY, burst=2)
    old = TenantQueue.objects.get()
    take(row, 2)
    old.max_job = 9
    old.save()
    assert (fresh(row).max_job, tokens(row)) == (9, 0)


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        ("10/h", "10/h, burst 1"),
        ({"reports": "10/h"}, "None"),
        ({"imports": "10/h"}, "10/h, burst 1"),
        ("tests.test_rate_limits.rate_of", "100/m, burst 2"),
        (None, "None"),
    ],
)
def test_a_new_row_gets_a_rate_or_one_per_queue_or_a_callables_answer(default: Any, expected: str) -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_RATE": default}):
        assert str(tenants.tenant_queue_for("big", "imports").rate) == expected
        assert tenants.tenant_queue_for(tenants.NO_TENANT, "imports").rate is None
    assert tenants.tenant_queue_for("later", "imports").rate is None


def test_a_callable_may_give_a_burst_too() -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_RATE": "tests.test_rate_limits.rate_of"}):
        assert tenants.tenant_queue_for("own", "imports").rate == rates.Rate(5, DAY, 5)
        assert tenants.tenant_queue_for("other", "imports").rate is None


@pytest.mark.parametrize(
    ("default", "error"),
    [
        ("tests.test_rate_limits.rate_of", InvalidRate),
        ("10/month", InvalidRate),
        ("tests.nowhere.rate", InvalidSetting),
    ],
)
def test_a_default_that_is_no_rate_is_named_and_no_row_is_made(default: str, error: type[Exception]) -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_RATE": default}), pytest.raises(error):
        tenants.tenant_queue_for("odd", "imports")
    assert not TenantQueue.objects.exists()
