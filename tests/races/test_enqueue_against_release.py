"""Rule 4 by numbers: a job is enqueued at the moment when the tenant's only slot is released, again and again.

Whatever the order of their commits, the job is admitted once both are through. First they meet where they like, then
where the order of tenants, which is only a hint, would forget one that was offered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import django_rq
import pytest
from django.db import connection

from tenant_slots import fair_order, transitions
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import findings, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests import jobs
from tests.factories import admit, counters_match, tenant_queue, waiting_job
from tests.order_records import records
from tests.races.rounds import rounds

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor != "postgresql", reason="SQLite has one writer at a time, so the two cannot meet"
    ),
]

Action = Callable[[Any], object]

ROUNDS = rounds(1000)
STEPS, STEP = 16, 0.0002
"""The release gets a head start of 0 to 3 milliseconds, so that whatever this machine's speed some rounds meet."""


class Helper:
    """A second session that does one thing at a time, at the same moment as the test's own."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._thread = Thread(target=self._work)
        self._thread.start()

    def begin(self, action: Action, argument: Any) -> None:
        self._orders.put((action, argument))

    def finished(self) -> None:
        error = self._answers.get(timeout=30)
        if error is not None:
            raise error

    def end(self) -> None:
        self._orders.put(None)
        self._thread.join(30)

    def _work(self) -> None:
        try:
            while order := self._orders.get():
                action, argument = order
                try:
                    action(argument)
                except Exception as error:
                    self._answers.put(error)
                else:
                    self._answers.put(None)
        finally:
            connection.close()


@contextmanager
def helper() -> Iterator[Helper]:
    one = Helper()
    try:
        yield one
    finally:
        one.end()


def head_start(number: int) -> None:
    time.sleep(number % STEPS * STEP)


def stranded_in(rounds: int, enqueue: Action, release: Action) -> int:
    """How often a job was not admitted although its tenant's only slot was free."""
    row = tenant_queue(max_job=1)
    stranded = 0
    with helper() as other:
        for number in range(rounds):
            other.begin(release, admitted_job(row))
            head_start(number)
            newcomer = enqueue(row)
            other.finished()
            stranded += TenantJob.objects.waiting().filter(pk=newcomer.pk).exists()
            clear(row)
    return stranded


def admitted_job(row: TenantQueue) -> TenantJob:
    waiting_job(row)
    (job,) = admit(row)
    return job


def clear(row: TenantQueue) -> None:
    with connection.cursor() as cursor:  # `delete()` gives slots back and admits others: longer than a round
        cursor.execute("DELETE FROM tenant_slots_tenantjob")
    TenantQueue.objects.filter(pk=row.pk).update(current_job=0)
    django_rq.get_queue("imports").empty()


def enqueue(row: TenantQueue) -> TenantJob:
    return jobs.record.enqueue(row.tenant, "newcomer", "")


def release(job: TenantJob) -> None:
    assert transitions.release(job, state=State.FINISHED)


def test_no_job_is_stranded_in_any_round() -> None:
    assert stranded_in(ROUNDS, enqueue, release) == 0
    assert counters_match()


class Meeting:
    """The one schedule in which a hint could be forgotten, forced.

    A feeder has asked the database and heard that the tenant has nothing to run. Before it says so to the order of
    tenants, what it was told stops being true, and the tenant is offered. Before whoever offered it can feed the
    window, the feeder has said it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, offering: str) -> None:
        self.asked, self.offered, self.said = Event(), Event(), Event()
        self._drop = fair_order.drop
        self._offer = getattr(fair_order, offering)
        monkeypatch.setattr(fair_order, "drop", self._late_drop)
        monkeypatch.setattr(fair_order, offering, self._offer_then_hold)

    def _late_drop(self, turn: fair_order.Turn, *arguments: Any, **values: Any) -> None:
        if not self.asked.is_set():
            self.asked.set()
            assert self.offered.wait(20)
            self._drop(turn, *arguments, **values)
            self.said.set()
        else:
            self._drop(turn, *arguments, **values)

    def _offer_then_hold(self, *arguments: Any, **values: Any) -> Any:
        answer = self._offer(*arguments, **values)
        if self.asked.is_set() and not self.offered.is_set():
            self.offered.set()
            assert self.said.wait(20)
        return answer


def forget_unconditionally(monkeypatch: pytest.MonkeyPatch) -> None:
    """For controls: a tenant that was offered meanwhile is forgotten all the same."""
    drop = fair_order.drop

    def as_of_now(turn: fair_order.Turn, *arguments: Any, **values: Any) -> None:
        now = records(turn.tenant_queue_id)[turn.rq_queue]
        drop(turn._replace(offers=now.offers, frees=now.frees), *arguments, **values)

    monkeypatch.setattr(fair_order, "drop", as_of_now)


def release_meets_a_feeder_that_found_the_tenant_full(monkeypatch: pytest.MonkeyPatch) -> TenantJob:
    row = tenant_queue(max_job=1)
    holding, newcomer = admitted_job(row), waiting_job(row)
    with helper() as feeder:
        meeting = Meeting(monkeypatch, "freed")
        feeder.begin(lambda pk: transitions.offer(pk, "imports"), row.pk)
        assert meeting.asked.wait(20)
        release(holding)
        feeder.finished()
    return newcomer


def enqueue_meets_a_feeder_that_found_the_tenant_empty(monkeypatch: pytest.MonkeyPatch) -> TenantJob:
    row = tenant_queue(max_job=1)
    fair_order.offer("imports", [(row.pk, 0)])
    with helper() as feeder:
        meeting = Meeting(monkeypatch, "offer")
        feeder.begin(transitions.feed, "imports")
        assert meeting.asked.wait(20)
        newcomer = enqueue(row)
        feeder.finished()
    return newcomer


MEETINGS = pytest.mark.parametrize(
    "meet", [release_meets_a_feeder_that_found_the_tenant_full, enqueue_meets_a_feeder_that_found_the_tenant_empty]
)


@MEETINGS
def test_a_tenant_that_was_offered_meanwhile_is_not_forgotten(
    meet: Callable[..., TenantJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TenantJob.objects.get(pk=meet(monkeypatch).pk).state == State.QUEUED
    assert list(findings.stranded()) == []
    assert counters_match()


@MEETINGS
def test_control_forgotten_in_any_case_it_has_to_wait_for_the_sweep(
    meet: Callable[..., TenantJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_unconditionally(monkeypatch)
    job = meet(monkeypatch)
    assert TenantJob.objects.get(pk=job.pk).state == State.WAITING
    assert list(findings.stranded()) == [("imports", job.tenant_queue_id)]
    steps.offer(Report(), Contact())
    assert TenantJob.objects.get(pk=job.pk).state == State.QUEUED
