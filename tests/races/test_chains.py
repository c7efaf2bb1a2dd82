"""A job ends at the moment when another one begins to wait for it, or when the last one of its kind ends too.

Whatever the order of their commits, nobody waits for what has ended. Each schedule in which that could happen is
forced, and strands the job where what prevents it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import pytest
from django.db import connection, transaction

from tenant_slots import chains, transitions
from tenant_slots.db.commits import after_commit
from tenant_slots.enqueueing import after as after_jobs
from tenant_slots.exceptions import InvalidOption
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import pruning
from tests import jobs
from tests.factories import age, counters_match, fresh, in_thread, owner, running_job, tenant_queue
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.races.rounds import rounds
from tests.races.test_enqueue_against_release import head_start, helper
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        connection.vendor != "postgresql", reason="SQLite has one writer at a time, so the two cannot meet"
    ),
]

ROUNDS = rounds(300)


def after(*awaited: TenantJob) -> TenantJob:
    return jobs.echo.using(after=awaited).enqueue("dependent", "b")


def finish(job: TenantJob) -> None:
    assert transitions.release(job, state=State.FINISHED)


def old_and_ended() -> TenantJob:
    job = running_job(tenant_queue(), owner())
    finish(job)
    age(job, ended_at=8 * 86400)
    return job


def test_a_job_that_an_open_transaction_names_is_not_pruned_before_that_has_committed() -> None:
    ended = old_and_ended()
    with transaction.atomic():
        job = after(ended)
        assert in_thread(sweep_now).pruned == 0
    assert sweep_now().pruned == 1, "control: it is old enough"
    assert (fresh(job).state, fresh(job).error) == (State.QUEUED, "")


def test_a_job_that_is_named_after_a_sweep_has_found_it_is_not_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    delete, named = pruning._delete, []

    def name_then_delete(*args: Any) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transitions, "await_jobs", lambda after: None)  # that process dies after its commit
            named.append(in_thread(lambda: after(ended)))
        return delete(*args)

    ended = old_and_ended()
    monkeypatch.setattr(pruning, "_delete", name_then_delete)
    assert sweep_now().pruned == 0
    monkeypatch.undo()
    sweep_now()
    assert (fresh(named[0]).state, fresh(named[0]).error) == (State.QUEUED, "")


def test_a_job_that_is_pruned_before_it_is_named_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not taken for one that could not end well."""
    look = after_jobs.insert_waiting
    ended = old_and_ended()

    def prune_then_insert(*args: Any) -> None:
        assert in_thread(sweep_now).pruned == 1
        look(*args)

    monkeypatch.setattr(after_jobs, "insert_waiting", prune_then_insert)
    with pytest.raises(InvalidOption, match="it was deleted"):
        after(ended)
    assert not TenantJob.objects.exists()


def is_stranded(job: TenantJob) -> bool:
    """Until the next sweep."""
    stranded = bool(fresh(job).state == State.SCHEDULED)
    sweep_now()
    assert fresh(job).state in (State.WAITING, State.QUEUED), "not even a sweep has found it"
    return stranded


def test_no_job_waits_for_one_that_has_ended_in_any_round() -> None:
    row = tenant_queue("awaited")
    with helper() as other:
        for number in range(ROUNDS):
            job = running_job(row, owner())
            other.begin(finish, job)
            head_start(number)
            dependent = after(job)
            other.finished()
            assert fresh(dependent).state != State.SCHEDULED, f"round {number}"
            TenantJob.objects.all().delete()
            TenantQueue.objects.update(current_job=0)


def ends_before_the_commit() -> TenantJob:
    """The end finds no note in its row, nor a dependency: that is not committed yet."""
    job = running_job(tenant_queue("awaited"), owner())
    with helper() as other:
        with transaction.atomic():
            dependent = after(job)
            other.begin(finish, job)
            other.finished()
        return dependent


def ends_while_it_is_noted() -> TenantJob:
    """The end is written without a note and not committed when `watch` comes to the row."""
    job = running_job(tenant_queue("awaited"), owner())
    is_written, is_enqueued = Event(), Event()

    def end(job: TenantJob) -> None:
        with transaction.atomic():
            finish(job)
            is_written.set()
            wait_until(lambda: is_enqueued.is_set() or somebody_waits_for_a_lock())

    with helper() as other:
        other.begin(end, job)
        assert is_written.wait(20)
        dependent = after(job)
        is_enqueued.set()
        other.finished()
    return dependent


def tell_nobody_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def await_jobs(pks: Any) -> None:
        after_commit(lambda: chains.watch(pks))

    monkeypatch.setattr(transitions, "await_jobs", await_jobs)


def wait_for_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing:
        def update(self, *args: Any, **values: Any) -> int:
            return 0

    monkeypatch.setattr(chains, "NOTE_AWAITED", Nothing())


MEETINGS = pytest.mark.parametrize(
    ("meet", "without"),
    [(ends_before_the_commit, tell_nobody_after_the_commit), (ends_while_it_is_noted, wait_for_no_row)],
)


@MEETINGS
def test_an_end_that_meets_whoever_begins_to_wait_is_told(
    meet: Callable[[], TenantJob], without: Callable[[pytest.MonkeyPatch], None]
) -> None:
    assert not is_stranded(meet())
    assert counters_match()


@MEETINGS
def test_control_it_is_not_without_what_prevents_that(
    meet: Callable[[], TenantJob],
    without: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch)
    assert is_stranded(meet())


def test_an_end_that_waits_for_the_note_finds_it() -> None:
    job = running_job(tenant_queue("awaited"), owner())
    dependent = after(job)
    TenantJob.objects.update(awaited=False)
    with helper() as other:
        with transaction.atomic():
            TenantJob.objects.filter(pk=job.pk).update(awaited=True)
            other.begin(finish, job)
            wait_until(somebody_waits_for_a_lock)
        other.finished()
    assert not is_stranded(dependent)


def both_end_at_once(monkeypatch: pytest.MonkeyPatch, patience: float) -> TenantJob:
    """Both have closed their own dependency when each of them looks whether the other one's is open.

    With the lock the second one does not come there, and the first one goes on when its patience is over.
    """
    one, two = (running_job(tenant_queue(tenant), owner()) for tenant in ("one", "two"))
    dependent = after(one, two)
    together = Barrier(2)
    promote = chains._promote

    def meet() -> None:
        with suppress(BrokenBarrierError):
            together.wait(patience)

    def promote_together(*args: Any) -> Any:
        meet()
        promoted = promote(*args)
        meet()  # neither commits before both have looked
        return promoted

    monkeypatch.setattr(chains, "_promote", promote_together)
    monkeypatch.setattr(transitions, "LOCK_TIMEOUT_SECONDS", 20)
    with helper() as other:
        other.begin(finish, one)
        finish(two)
        other.finished()
    return dependent


def test_the_last_two_that_end_at_once_are_both_told() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        dependent = both_end_at_once(monkeypatch, patience=0.15)
    assert fresh(dependent).state in (State.WAITING, State.QUEUED)


def test_control_they_are_not_without_the_lock() -> None:
    @contextmanager
    def unlocked(tenant_queue_id: int) -> Iterator[TenantQueue]:
        with transaction.atomic():
            yield TenantQueue.objects.get(pk=tenant_queue_id)

    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(chains, "locked", unlocked)
        dependent = both_end_at_once(inner, patience=20)
    assert fresh(dependent).state == State.SCHEDULED
