"""A nudge in RQ's list: who waits there asks again who is next, and who does not wait passes it over and knows that."""

from __future__ import annotations

import time

import django_rq
import pytest
from rq import Queue
from rq.exceptions import DequeueTimeout
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job

from tenant_slots.dispatch import NUDGE
from tenant_slots.workers import nudges
from tenant_slots.workers.nudges import Nudged
from tests import jobs

QUEUE, OTHER = "imports", "reports"


def queues(*names: str) -> list[Queue]:
    return [django_rq.get_queue(name) for name in names]


def a_class_of_its_own() -> type[Nudged]:
    return type("Queue", (Nudged,), {})


def nudge() -> None:
    django_rq.get_connection(QUEUE).lpush(f"rq:queue:{QUEUE}", NUDGE)


def under_way() -> list[bytes]:
    found: list[bytes] = django_rq.get_connection(QUEUE).lrange(
        IntermediateQueue.get_intermediate_queue_key(f"rq:queue:{QUEUE}"), 0, -1
    )
    return found


@pytest.mark.parametrize("names", [(QUEUE,), (QUEUE, OTHER)])
def test_it_ends_a_wait(names: tuple[str, ...]) -> None:
    nudge()
    own = a_class_of_its_own()
    with pytest.raises(DequeueTimeout):
        own.dequeue_any(queues(*names), 5, connection=django_rq.get_connection(QUEUE))
    assert (django_rq.get_queue(QUEUE).job_ids, under_way(), own.has_passed_over) == ([], [], False)


@pytest.mark.parametrize("names", [(QUEUE,), (QUEUE, OTHER)])
def test_who_does_not_wait_comes_to_the_job_behind_it(names: tuple[str, ...]) -> None:
    expected = django_rq.get_queue(QUEUE).enqueue(jobs.add, 1, 2)
    nudge()
    own = a_class_of_its_own()
    found = own.dequeue_any(queues(*names), None, connection=django_rq.get_connection(QUEUE))
    assert found is not None
    assert found[0].id == expected.id
    assert (own.has_passed_over, Nudged.has_passed_over) == (True, False)
    assert NUDGE.encode() not in under_way()


def wait_until_due(monkeypatch: pytest.MonkeyPatch, seconds: float, lateness: float) -> tuple[Job, Queue]:
    monkeypatch.setattr(nudges, "LATENESS", lateness)
    found = a_class_of_its_own().dequeue_until(queues(QUEUE), seconds, connection=django_rq.get_connection(QUEUE))
    assert not under_way() or found
    return found


@pytest.mark.parametrize("lateness", [0.05, 60], ids=["Redis waits", "Redis is asked"])
def test_a_wait_that_is_to_end_on_time_ends_by_a_nudge_too(monkeypatch: pytest.MonkeyPatch, lateness: float) -> None:
    nudge()
    with pytest.raises(DequeueTimeout):
        wait_until_due(monkeypatch, 30, lateness)
    assert (django_rq.get_queue(QUEUE).job_ids, under_way()) == ([], [])


@pytest.mark.parametrize("lateness", [0.05, 60], ids=["Redis waits", "Redis is asked"])
def test_and_by_a_job(monkeypatch: pytest.MonkeyPatch, lateness: float) -> None:
    expected = django_rq.get_queue(QUEUE).enqueue(jobs.add, 1, 2)
    assert wait_until_due(monkeypatch, 30, lateness)[0].id == expected.id


@pytest.mark.parametrize("lateness", [0.05, 60], ids=["Redis waits", "Redis is asked"])
def test_and_when_it_is_over(monkeypatch: pytest.MonkeyPatch, lateness: float) -> None:
    began = time.monotonic()
    with pytest.raises(DequeueTimeout):
        wait_until_due(monkeypatch, 0.2, lateness)
    assert time.monotonic() - began >= 0.2
