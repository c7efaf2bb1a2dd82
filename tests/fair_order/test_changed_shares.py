"""A share that is changed counts from then on: not for what jobs under way have taken before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tenant_slots import fair_order
from tenant_slots.fair_order import Freed, Turn
from tests.fair_order.orders import QUEUE, A, B, C, alone, offer, record, seem_to_run_for_longer

pytestmark = alone

HOUR = 3600.0

WORKERS = 4


def starts() -> Turn:
    turn, _ = fair_order.take("rq:worker:one", [QUEUE], waits=False)
    assert isinstance(turn, Turn)
    return turn


def ends(tenant: int, seconds: float) -> None:
    fair_order.freed(Freed(tenant, seconds, QUEUE))


def runs_for_an_hour(tenant: int, share: int) -> None:
    """On all workers, which is its limit; and a sweep has seen that."""
    offer(tenant, share=share)
    for _ in range(WORKERS):
        turn = starts()
    fair_order.drop(turn, 1, is_full=True)
    seem_to_run_for_longer(tenant, HOUR)
    is_swept(tenant)


def is_swept(tenant: int, seconds: float = HOUR) -> None:
    fair_order.charge(QUEUE, [(tenant, WORKERS, WORKERS * seconds)])


def had(turns: int) -> Counter[int]:
    """Who had so many, with jobs of a second each."""
    found: Counter[int] = Counter()
    for _ in range(turns):
        tenant = starts().tenant_queue_id
        ends(tenant, 1.0)
        found[tenant] += 1
    return found


def told(share: int) -> None:
    fair_order.tell_share(QUEUE, [(A, share)])


def corrected(share: int) -> None:
    """As a sweep finds it in the database, where Redis could not be told."""
    fair_order.correct_shares(QUEUE, [(A, record(A).share, share)])


@pytest.mark.parametrize("tell", [told, corrected])
@pytest.mark.parametrize("share", [2, 10, 1000])
def test_who_comes_before_the_share_of_a_tenant_with_long_jobs_is_raised_has_its_part(
    tell: Callable[[int], None], share: int
) -> None:
    runs_for_an_hour(A, share=1)
    offer(B, share=1)
    tell(share)
    is_swept(A)
    for _ in range(WORKERS):
        ends(A, HOUR)
    turns = had(2000)
    assert turns[B] == pytest.approx(2000 / (share + 1), abs=4)


@pytest.mark.parametrize("tell", [told, corrected])
def test_those_beside_a_tenant_with_long_jobs_whose_share_is_lowered_have_their_parts(
    tell: Callable[[int], None],
) -> None:
    """B was full for a moment, and C comes now."""
    runs_for_an_hour(A, share=10)
    offer(B, share=1)
    had(3)
    fair_order.drop(starts(), 0, is_full=True)
    tell(1)
    is_swept(A)
    ends(A, HOUR)
    assert starts().tenant_queue_id == A
    fair_order.freed(Freed(B, fair_order.NOTHING_CHARGED, QUEUE))
    offer(C, share=1)
    turns = had(2000)
    assert abs(turns[B] - turns[C]) <= 4
    assert turns[A] == 0, "it has three jobs under way, for which it is charged by the hour"


def test_what_a_job_takes_after_its_tenants_share_was_changed_counts_by_the_new_one() -> None:
    runs_for_an_hour(A, share=10)
    told(1)
    seem_to_run_for_longer(A, HOUR)
    is_swept(A, 2 * HOUR)
    for _ in range(WORKERS):
        ends(A, 2 * HOUR)
    assert record(A).done == pytest.approx(WORKERS * (HOUR / 10 + HOUR), abs=10)


def test_nobody_stands_in_front_of_newcomers_by_ends_that_are_not_charged() -> None:
    """Below zero are those in front."""
    runs_for_an_hour(A, share=10)
    offer(A), offer(B)
    told(1)
    for _ in range(WORKERS):
        fair_order.freed(Freed(A, fair_order.NOTHING_RAN, QUEUE))
    assert [starts().tenant_queue_id for _ in range(2)] == [B, A]


def by_a_sweep() -> None:
    """They ended while Redis was away."""


def by_runs_that_were_none() -> None:
    for _ in range(WORKERS):
        fair_order.freed(Freed(A, fair_order.NOTHING_RAN, QUEUE))


@pytest.mark.parametrize("lose", [by_a_sweep, by_runs_that_were_none])
def test_ends_that_nobody_has_told_leave_no_credit_for_a_share_that_was_lowered(lose: Callable[[], None]) -> None:
    runs_for_an_hour(A, share=10)
    offer(B, share=1)
    had(3)
    told(1)
    lose()
    for _ in range(2):
        fair_order.charge(QUEUE, [])
    fair_order.changed(QUEUE, [(A, 1)])
    had(int(WORKERS * HOUR / 10) + 10)  # as much as it had by its share, and may have once more
    turns = had(1000)
    assert abs(turns[A] - turns[B]) <= 8
