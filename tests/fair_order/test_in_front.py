"""Who comes with nothing to its account stands in front of all, for as long as it has nothing there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenant_slots import fair_order
from tenant_slots.fair_order import Freed, Turn
from tests.fair_order.orders import QUEUE, A, B, C, alone, offer, order, redis, served

pytestmark = alone

HOUR = 3600.0


def is_swept() -> None:
    """Three jobs of A have run for an hour, of which Redis has forgotten the start."""
    fair_order.charge(QUEUE, [(A, 3, 3 * HOUR)], shares={A: 1})


def ends() -> None:
    fair_order.freed(Freed(A, HOUR, QUEUE))


def has_cost() -> None:
    """Receivers of its last job's end have kept the worker."""
    fair_order.cost(QUEUE, A, HOUR)


@pytest.mark.parametrize("is_charged", [is_swept, ends, has_cost])
def test_who_is_charged_stands_in_front_no_more(is_charged: Callable[[], None]) -> None:
    """Its turn would move the clock over all of that, and with it whoever comes afterwards."""
    redis().flushall()
    offer(A), offer(B)
    assert order() == [A, B]
    is_charged()
    assert order() == [B, A]
    served(6)
    offer(C)
    had = served(100)
    assert abs(had.count(B) - had.count(C)) <= 8


def test_who_is_charged_nothing_stays_in_front() -> None:
    offer(B)
    served(50)
    offer(A)
    fair_order.charge(QUEUE, [])
    fair_order.tell_share(QUEUE, [(A, 5)])
    turn, _ = fair_order.take("rq:worker:one", [QUEUE], waits=False)
    assert isinstance(turn, Turn)
    assert turn.tenant_queue_id == A
