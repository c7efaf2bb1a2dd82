"""Priorities, cancels and lowered caps that meet an admission, a start or an end: whichever of the two commits first.

One side has done its part and has not committed yet when the other one comes. Nobody is told what did not happen, no
slot is lost, and no job is left beside a free one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest
from django.db import connection, transaction

from tenant_slots import slots, transitions
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.compiled import Asked, Statement
from tenant_slots.enqueueing import cancel
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.releases import Release
from tenant_slots.signals import job_ended
from tenant_slots.statements import ATTEMPT, BY_START, PK, START
from tests.factories import (
    admit,
    another_process,
    counters_match,
    fresh,
    owner,
    running_job,
    tenant_queue,
    waiting_job,
)
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import kept_open, meanwhile

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

T = TypeVar("T")


def after(first: Callable[[], object], second: Callable[[], T]) -> T:
    """What `second` gives that comes while `first` is not committed yet, and has to wait for it."""
    answers: list[T] = []
    errors: list[Exception] = []
    with kept_open(first):
        thread = meanwhile(lambda: answers.append(second()), errors)
        wait_until(somebody_waits_for_a_lock)
    thread.join(20)
    assert errors == []
    return answers[0]


@contextmanager
def unlocked(pk: int, *asked: Asked) -> Iterator[TenantQueue]:
    """For controls: a transaction that holds nothing."""
    with transaction.atomic():
        yield TenantQueue.objects.get(pk=pk)


@contextmanager
def unlocked_and_asked(pk: int, *asked: Asked) -> Iterator[tuple[TenantQueue, list[Any]]]:
    with unlocked(pk) as row:
        yield row, []


@pytest.fixture
def ends() -> Iterator[list[int]]:
    """The jobs of which somebody was told that they have ended."""
    told: list[int] = []

    def listen(job: TenantJob, **_: Any) -> None:
        told.append(job.pk)

    job_ended.connect(listen)
    yield told
    job_ended.disconnect(listen)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start waits a second for a job's row, which a busy machine may take."""
    monkeypatch.setattr(slots, "LOCK_SECONDS", 20)


@pytest.fixture
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change itself has nobody look for jobs to admit, who would be sooner or later than the one in question."""
    monkeypatch.setattr(transitions, "free", lambda slot: [])
    monkeypatch.setattr(transitions, "offer_everywhere", lambda row: [])


def states(*jobs: TenantJob) -> list[str]:
    return [fresh(job).state for job in jobs]


def hand_over(job: TenantJob) -> Release:
    """The end of a run whose worker starts the tenant's next job in the same transaction."""
    return slots.release_and_start(job, "imports", owner("next"), lambda chosen: None, state=State.FINISHED)


def start(job: TenantJob) -> bool:
    return slots.start(job, owner())


class TestAdmittedFirst:
    """The admission has chosen the jobs and marked them."""

    def test_a_priority_says_that_it_came_too_late(self) -> None:
        row = tenant_queue(max_job=1)
        first, second = waiting_job(row), waiting_job(row)
        assert after(partial(admit, row), partial(TenantJob.objects.get(pk=first.pk).set_priority, -5)) is False
        assert (fresh(first).priority, *states(first, second)) == (0, State.QUEUED, State.WAITING)

    def test_control_a_priority_that_asks_nobody_is_changed_without_effect(self) -> None:
        row = tenant_queue(max_job=1)
        first, second = waiting_job(row), waiting_job(row)

        def set_priority() -> bool:
            return bool(TenantJob.objects.filter(pk=first.pk).update(priority=-5))

        assert after(partial(admit, row), set_priority) is True
        assert (fresh(first).priority, *states(first, second)) == (-5, State.QUEUED, State.WAITING)

    def test_a_cancel_takes_the_slot_from_the_job_again(self, ends: list[int]) -> None:
        row = tenant_queue(max_job=1)
        first, second = waiting_job(row), waiting_job(row)
        assert after(partial(admit, row), TenantJob.objects.get(pk=first.pk).cancel) is True
        assert states(first, second) == [State.CANCELED, State.QUEUED]
        assert ends == [first.pk]
        assert counters_match()

    def test_control_a_cancel_that_does_not_ask_for_the_state_leaks_the_slot(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def withdraw(job: TenantJob, *_: Any) -> bool:
            ended = {"state": State.CANCELED, "ended_at": DatabaseNow()}
            return bool(TenantJob.objects.filter(pk=job.pk).update(**ended))

        monkeypatch.setattr(slots, "withdraw", withdraw)
        row = tenant_queue(max_job=1)
        first = waiting_job(row)
        assert after(partial(admit, row), TenantJob.objects.get(pk=first.pk).cancel) is True
        assert (fresh(first).state, fresh(row).current_job) == (State.CANCELED, 1)
        assert not counters_match()

    def cancel_waiting(self) -> tuple[int, list[str]]:
        row = tenant_queue(max_job=1)
        first, second = waiting_job(row), waiting_job(row)
        number = after(partial(admit, row), partial(cancel.cancel_waiting, row, [first.pk, second.pk]))
        return number, states(first, second)

    def test_what_was_admitted_is_not_canceled_with_the_backlog(self, ends: list[int]) -> None:
        assert self.cancel_waiting() == (1, [State.QUEUED, State.CANCELED])
        assert len(ends) == 1

    def test_control_without_the_lock_it_is_told_as_canceled_although_it_runs(
        self, ends: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cancel, "locked", unlocked)
        assert self.cancel_waiting() == (2, [State.QUEUED, State.CANCELED])
        assert len(ends) == 2

    def test_a_lowered_limit_holds_back_what_was_admitted_until_there_is_room(self) -> None:
        row = tenant_queue(max_job=2)
        jobs = [waiting_job(row), waiting_job(row)]
        after(partial(admit, row), partial(TenantQueue.objects.get().set_limit, 1))
        assert (states(*jobs), fresh(row).current_job) == ([State.QUEUED] * 2, 2)
        first, second = (TenantJob.objects.get(pk=job.pk) for job in jobs)
        assert start(second) is False
        assert transitions.put_back(second)
        assert start(first) is True
        assert counters_match()

    def test_control_a_start_that_does_not_ask_for_the_limit_goes_beyond_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(slots, "START_IF_DUE", START)
        row = tenant_queue(max_job=2)
        jobs = [waiting_job(row), waiting_job(row)]
        after(partial(admit, row), partial(TenantQueue.objects.get().set_limit, 1))
        assert all(start(TenantJob.objects.get(pk=job.pk)) for job in jobs)


@pytest.mark.usefixtures("_alone")
class TestChangedFirst:
    """The change is not committed yet when the tenant has its turn."""

    def cancel(self) -> list[str]:
        row = tenant_queue(max_job=1)
        first, second = waiting_job(row), waiting_job(row)
        after(TenantJob.objects.get(pk=first.pk).cancel, partial(admit, row))
        assert counters_match()
        return states(first, second)

    def test_a_canceled_job_leaves_its_turn_to_the_next_one(self) -> None:
        assert self.cancel() == [State.CANCELED, State.QUEUED]

    def test_control_without_the_lock_nobody_has_the_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slots, "locked", unlocked)
        assert self.cancel() == [State.CANCELED, State.WAITING]

    def test_of_a_canceled_backlog_none_is_admitted(self) -> None:
        row = tenant_queue(max_job=2)
        jobs = [waiting_job(row) for _ in range(3)]
        assert after(partial(cancel.cancel_waiting, row, [job.pk for job in jobs[:2]]), partial(admit, row)) == [
            jobs[2]
        ]
        assert states(*jobs) == [State.CANCELED, State.CANCELED, State.QUEUED]
        assert counters_match()

    def of_one_key(self) -> int:
        row = tenant_queue(max_job=2)
        waiting_job(row, key="user"), waiting_job(row, key="user")
        return len(after(partial(TenantQueue.objects.get().set_max_job_per_key, 1), partial(admit, row)))

    def test_a_lowered_cap_per_key_holds(self) -> None:
        assert self.of_one_key() == 1

    def test_control_without_the_lock_the_cap_is_the_old_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slots, "locked", unlocked)
        assert self.of_one_key() == 2

    def test_a_lowered_limit_holds(self) -> None:
        row = tenant_queue(max_job=3)
        jobs = [waiting_job(row) for _ in range(3)]
        assert after(partial(TenantQueue.objects.get().set_limit, 1), partial(admit, row)) == jobs[:1]
        assert counters_match()


class TestStart:
    """A worker of RQ's own marks a job as running that was admitted before."""

    def canceled(self) -> tuple[bool, str]:
        job = waiting_job(row := tenant_queue(max_job=1))
        (admitted,) = admit(row)
        started = after(TenantJob.objects.get(pk=job.pk).cancel, partial(start, admitted))
        return started, fresh(job).state

    def test_a_job_that_is_canceled_at_that_moment_does_not_start(self, ends: list[int]) -> None:
        assert self.canceled() == (False, State.CANCELED)
        assert len(ends) == 1
        assert counters_match()

    def test_control_a_start_that_does_not_ask_for_the_state_runs_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whatever = {"state": State.RUNNING}
        anyhow = Statement(lambda: TenantJob.objects.filter(pk=PK, attempt=ATTEMPT), whatever, returning=BY_START)
        monkeypatch.setattr(slots, "START_IF_DUE", anyhow)
        assert self.canceled() == (True, State.RUNNING)
        assert not counters_match()

    def test_a_job_that_starts_at_the_moment_of_its_cancel_is_asked_to_stop(self) -> None:
        job = waiting_job(row := tenant_queue(max_job=1))
        (admitted,) = admit(row)
        assert after(partial(start, admitted), TenantJob.objects.get(pk=job.pk).cancel) is True
        assert (fresh(job).state, fresh(row).current_job) == (State.RUNNING, 1)
        assert job.cancel_requested_at is not None
        assert slots.release(admitted, state=State.FINISHED).state == State.CANCELED

    def test_control_a_cancel_that_does_not_ask_for_the_state_frees_the_slot_of_a_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transitions, "cancel_unstarted", lambda job: bool(slots.release(job, state=State.CANCELED)))
        job = waiting_job(row := tenant_queue(max_job=1))
        admit(row)
        begin = partial(TenantJob.objects.filter(pk=job.pk).update, state=State.RUNNING)
        assert after(begin, TenantJob.objects.get(pk=job.pk).cancel) is True
        assert fresh(job).cancel_requested_at is None
        assert fresh(row).current_job == 0, "its function goes on without a slot"

    @pytest.mark.parametrize(
        "change",
        [
            lambda row, job: job.set_priority(5),
            lambda row, job: cancel.cancel_waiting(row, [job.pk]),
        ],
    )
    def test_what_is_about_the_backlog_leaves_a_job_alone_that_starts(
        self, change: Callable[[TenantQueue, TenantJob], object]
    ) -> None:
        job = waiting_job(row := tenant_queue(max_job=1))
        (admitted,) = admit(row)
        with kept_open(partial(start, admitted)):
            assert not change(TenantQueue.objects.get(), TenantJob.objects.get())
        assert (fresh(job).state, job.priority, fresh(row).current_job) == (State.RUNNING, 0, 1)


class TestEndedFirst:
    """A worker has ended a job and started the next one in its place, in a transaction that is not committed yet."""

    def test_the_job_that_has_ended_cannot_be_canceled(self, ends: list[int]) -> None:
        job = running_job(tenant_queue(max_job=1), another_process())
        assert after(partial(hand_over, job), TenantJob.objects.get(pk=job.pk).cancel) is False
        assert fresh(job).state == State.FINISHED
        assert job.cancel_requested_at is None
        assert ends == []  # whoever has released it tells so

    def test_control_a_cancel_of_what_was_read_before_says_that_it_has_asked(self) -> None:
        job = running_job(tenant_queue(max_job=1), another_process())
        read = TenantJob.objects.filter(pk=job.pk)

        def cancel() -> bool:
            return bool(read.update(cancel_requested_at=DatabaseNow()))

        assert after(partial(hand_over, job), cancel) is True
        assert fresh(job).state == State.FINISHED

    def test_the_next_job_is_asked_to_stop(self) -> None:
        row = tenant_queue(max_job=1)
        job, following = running_job(row, owner()), waiting_job(row)
        assert after(partial(hand_over, job), TenantJob.objects.get(pk=following.pk).cancel) is True
        assert states(job, following) == [State.FINISHED, State.RUNNING]
        assert following.cancel_requested_at is not None
        assert counters_match()

    def cancel_waiting(self) -> int:
        row = tenant_queue(max_job=1)
        job, following = running_job(row, owner()), waiting_job(row)
        number = after(partial(hand_over, job), partial(cancel.cancel_waiting, row, [job.pk, following.pk]))
        assert states(job, following) == [State.FINISHED, State.RUNNING]
        return number

    def test_the_next_job_is_not_canceled_with_the_backlog(self, ends: list[int]) -> None:
        assert self.cancel_waiting() == 0
        assert ends == []

    def test_control_without_the_lock_it_is_told_as_canceled(
        self, ends: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cancel, "locked", unlocked)
        assert self.cancel_waiting() == 1
        assert len(ends) == 1

    def test_the_next_job_has_the_priority_with_which_it_was_chosen(self) -> None:
        row = tenant_queue(max_job=1)
        job, following = running_job(row, owner()), waiting_job(row)
        assert after(partial(hand_over, job), partial(TenantJob.objects.get(pk=following.pk).set_priority, -5)) is False
        assert (fresh(following).state, following.priority) == (State.RUNNING, 0)


@pytest.mark.usefixtures("_alone")
class TestEndWaits:
    """The change is not committed yet when a worker ends a job to start the next one."""

    def started(self, change: Callable[[list[TenantJob]], object], row: TenantQueue, *keys: str) -> list[str]:
        job = running_job(row, owner(), key=keys[0])
        waiting = [waiting_job(row, key=key) for key in keys[1:]]
        after(partial(change, [TenantJob.objects.get(pk=one.pk) for one in waiting]), partial(hand_over, job))
        assert fresh(job).state == State.FINISHED
        assert counters_match()
        return states(*waiting)

    def test_a_canceled_job_is_not_started_but_the_one_behind_it(self) -> None:
        row = tenant_queue(max_job=1)
        assert self.started(lambda jobs: jobs[0].cancel(), row, "", "", "") == [State.CANCELED, State.RUNNING]

    def test_of_a_canceled_backlog_none_is_started_and_the_slot_is_free(self) -> None:
        row = tenant_queue(max_job=1)
        change = lambda jobs: cancel.cancel_waiting(row, [job.pk for job in jobs])  # noqa: E731
        assert self.started(change, row, "", "", "") == [State.CANCELED] * 2
        assert fresh(row).current_job == 0

    def test_a_job_that_was_put_behind_another_is_not_the_next(self) -> None:
        row = tenant_queue(max_job=1)
        assert self.started(lambda jobs: jobs[0].set_priority(-5), row, "", "", "") == [State.WAITING, State.RUNNING]

    def test_a_cap_per_key_that_was_lowered_holds(self) -> None:
        row = tenant_queue(max_job=2, max_job_per_key=2)
        running_job(row, owner(), key="user")
        change = partial(TenantQueue.objects.get().set_max_job_per_key, 1)
        assert self.started(lambda jobs: change(), row, "user", "user", "other") == [State.WAITING, State.RUNNING]

    def test_control_by_what_was_read_without_the_lock_it_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(slots, "locked_and_asked", unlocked_and_asked)
        row = tenant_queue(max_job=2, max_job_per_key=2)
        job = running_job(row, owner(), key="user")
        user, other = waiting_job(row, key="user"), waiting_job(row, key="other")
        with kept_open(partial(TenantQueue.objects.get().set_max_job_per_key, 1)):
            hand_over(job)
        assert states(user, other) == [State.RUNNING, State.WAITING]
