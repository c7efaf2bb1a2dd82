"""The order of tenants in Redis as tests ask it, tell it, and look into it."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest

from tenant_slots import fair_order
from tenant_slots.dispatch import NUDGE
from tenant_slots.fair_order import Freed, Turn
from tests.order_records import Record, records, write

QUEUE, LANE, OTHER_LANE = "imports", "imports_bulk", "imports_slow"

A, B, C, D = 1, 2, 3, 4

OURS = "0b8f9a52-6a0e-4dc6-9d0c-3c6f1d1f0a{:02d}-1"
"""An RQ id as tenants' jobs have it."""

LIST = f"rq:queue:{QUEUE}"

FEEDER = "the test"
"""Who asks for a tenant's turn. It has one at a time: the last one is over with the next question."""


def redis() -> Any:
    return django_rq.get_connection(QUEUE)


def record(tenant: int, queue: str = QUEUE) -> Record:
    return records(tenant)[queue]


def order(queue: str = QUEUE) -> list[int]:
    return [int(name) for name in redis().zrange(f"tenant_slots:order:{queue}", 0, -1)]


def offer(*tenants: int, share: int = 0, queue: str = QUEUE) -> None:
    fair_order.offer(queue, [(tenant, share) for tenant in tenants])


def next_one() -> Turn:
    turn = fair_order.next_turn(QUEUE, FEEDER)
    assert turn is not None
    return turn


def pushed(turn: Turn) -> None:
    """Its jobs are in RQ's list, or were there until a worker has taken them."""
    fair_order.bring_before_plain_jobs(turn.rq_queue, [], turn.feeder)


def away(tenant: int, seconds: float) -> None:
    """As if it had left the order so long before: what the others were served since may have taken that long."""
    before = record(tenant)
    write(tenant, QUEUE, before._replace(left_at=before.left_at - seconds))


def seem_to_run_for_longer(tenant: int, seconds: float) -> None:
    """By so many, each of those that are under way."""
    before = record(tenant)
    write(tenant, QUEUE, before._replace(begun=before.begun - before.jobs * seconds))


def served(turns: int, seconds: dict[int, float] | None = None) -> list[int]:
    """Who had the next turns, where every job runs at once for as long as its tenant's do, and all have more to run."""
    found = []
    for _ in range(turns):
        turn = next_one()
        fair_order.freed(Freed(turn.tenant_queue_id, (seconds or {}).get(turn.tenant_queue_id, 1.0), QUEUE))
        found.append(turn.tenant_queue_id)
    return found


def ended(tenant: int, seconds: float = 1.0) -> Freed:
    return Freed(tenant, seconds, QUEUE)


def full(tenant: int) -> None:
    """Its only slot is taken by a worker of ours."""
    offer(tenant)
    turn, _ = fair_order.take("rq:worker:one", [QUEUE], waits=True)
    assert isinstance(turn, Turn)
    fair_order.drop(turn, 1, is_full=True)


def clock() -> float:
    """That of Redis."""
    seconds, microseconds = redis().time()
    return float(seconds + microseconds / 1_000_000)


def worker_of_rq(name: str, state: str | None, queue: str = QUEUE) -> None:
    redis().sadd(f"rq:workers:{queue}", f"rq:worker:{name}")
    if state:
        redis().hset(f"rq:worker:{name}", mapping={"state": state})


alone = pytest.mark.usefixtures("no_workers")


def asks(feeder: str) -> Turn | None:
    return fair_order.next_turn(QUEUE, f"{feeder:8}")


def nudges() -> int:
    return int(redis().lrange(LIST, 0, -1).count(NUDGE.encode()))


def sleeps(name: str) -> None:
    """A worker of ours, at RQ's lists."""
    fair_order.take(name, [QUEUE], waits=True)


def shut(tenant: int) -> None:
    """Its turn has shown that it is paused, or that all its slots are taken."""
    offer(tenant)
    fair_order.drop(next_one(), is_full=True, is_shut=True)
