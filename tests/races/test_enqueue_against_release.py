"""Rule 4 by numbers: a job is enqueued at the moment when the tenant's only slot is released, again and again.

The forced interleaving is in test_lost_wake_up.py; this one lets the two meet where they like.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from tenant_slots import slots
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import admit, counters_match, tenant_queue, waiting_job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor != "postgresql", reason="SQLite has one writer at a time, so the two cannot meet"
    ),
]

Action = Callable[[Any], object]

ROUNDS = 2000
CONTROL_ROUNDS = 20

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


def stranded_in(
    rounds: int, admit: Action, release: Action, until_they_meet: Callable[[int], object] = head_start
) -> int:
    """How often a job was left waiting beside the free slot."""
    row = tenant_queue(max_job=1)
    stranded = 0
    with helper() as other:
        for number in range(rounds):
            other.begin(release, admitted_job(row))
            until_they_meet(number)
            newcomer = waiting_job(row)
            admit(row)
            other.finished()
            if TenantJob.objects.waiting().filter(pk=newcomer.pk).exists():
                stranded += TenantQueue.objects.get(pk=row.pk).free > 0
            clear(row)
    return stranded


def admitted_job(row: TenantQueue) -> TenantJob:
    waiting_job(row)
    (job,) = admit(row)
    return job


def clear(row: TenantQueue) -> None:
    TenantJob.objects.all().delete()
    TenantQueue.objects.filter(pk=row.pk).update(current_job=0)


class Naive:
    """The seed design without a lock on the tenant's row.

    The window between a release's look at the backlog and its commit is as short as the machine makes it, so the
    newcomer is let in exactly there: a control that depends on luck would fail where nothing is wrong.
    """

    def __init__(self) -> None:
        self._looked = Event()
        self._answered = Event()

    def meets(self, number: int) -> None:
        assert self._looked.wait(30)

    def admit(self, row: TenantQueue) -> None:
        """The conditional UPDATE is exact, and answers "full" while the release next to it is not committed."""
        with transaction.atomic():
            head = row.jobs.backlog().first()
            if head is not None and TenantQueue.objects.filter(pk=row.pk).with_free(1).update(
                current_job=F("current_job") + 1
            ):
                TenantJob.objects.filter(pk=head.pk).update(state=State.QUEUED, attempt=1)
        self._looked.clear()
        self._answered.set()

    def release(self, job: TenantJob) -> None:
        """Gives the slot to the next job that it sees, without having locked anything first."""
        with transaction.atomic():
            row = TenantQueue.objects.get(pk=job.tenant_queue_id)
            TenantJob.objects.held_as(job).update(state=State.FINISHED)
            head = row.jobs.backlog().first()
            if head is not None:
                TenantJob.objects.filter(pk=head.pk).update(state=State.QUEUED, attempt=1)
            else:
                TenantQueue.objects.filter(pk=row.pk).update(current_job=F("current_job") - 1)
            self._looked.set()
            assert self._answered.wait(30)
            self._answered.clear()


def test_no_job_is_stranded_in_2000_rounds() -> None:
    stranded = stranded_in(ROUNDS, lambda row: admit(row), lambda job: slots.release(job, state=State.FINISHED))
    assert stranded == 0
    assert counters_match()


def test_control_the_naive_form_strands_a_job_whenever_the_two_meet() -> None:
    naive = Naive()
    assert stranded_in(CONTROL_ROUNDS, naive.admit, naive.release, naive.meets) == CONTROL_ROUNDS
