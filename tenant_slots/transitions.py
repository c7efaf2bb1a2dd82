"""A tenant's turns, and the moves of a job between states: each with what follows from it once it is committed.

The first half brings a tenant into the fair order and gives it its turns: jobs are admitted and pushed to RQ. The
second half moves jobs: slots are left, and it is told where the jobs went. ``slots.py`` decides and only touches the
database; everybody else moves jobs through the functions here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, Error
from django.utils.module_loading import import_string
from rq.exceptions import StopRequested
from rq.timeouts import BaseTimeoutException

from tenant_slots import (
    chains,
    charges,
    dispatch,
    fair_order,
    held,
    logs,
    news,
    putting_off,
    queue_directory,
    slots,
    unattended,
)
from tenant_slots.chains import Told
from tenant_slots.conf import app_settings
from tenant_slots.db.commits import after_commit
from tenant_slots.db.transactions import patience, waiting_at_most
from tenant_slots.dispatch import CameOf, GivenUp
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.fair_order import Freed, Turn
from tenant_slots.models import ENDED, State, TenantJob, TenantQueue
from tenant_slots.queue_directory import OUT_OF_REACH
from tenant_slots.refusals import is_of_one, is_refusal
from tenant_slots.releases import Admission, Release

T = TypeVar("T")

TellOrder = Callable[[], list[str]]
"""Tells the fair order that a tenant leaves it; gives the RQ queues that are to be fed then."""

logger = logging.getLogger("tenant_slots")

RUNS_AT_ONCE = "tenant_slots.running.here.run_at_once"
"""What takes the place of workers and of Redis in immediate mode. It stands above, and is named as RQ names ours."""

NOT_NOW = "since it was given its slot its tenant was paused or limited, or a more urgent job has come"
"""Why an admitted job goes back."""

LOCK_TIMEOUT_SECONDS = 0.2
"""How long one tenant's locked row may hold up what is told of the end of a job."""

SECONDS_IN_VAIN = 1
"""For which one call of `feed` looks at tenants that turn out to have nothing to run: where somebody holds the rows of
many, the first one is due again before the last one was looked at. A worker that waits then goes on.
"""

MOST_LOOKS = 10
"""How often one call of `feed` looks for a tenant in an RQ queue to which no worker listens.

There a tenant gets no turn while its jobs in another queue, which has workers, need the slot. Each look passes over up
to a thousand of those. After so many looks the queue gets nothing this time, so that no caller looks for long.
"""

SECONDS_TO_TELL = 0.5
"""For which a process that ends a job tells others of it. A thousand are told at once."""

_feeding: ContextVar[frozenset[str]] = ContextVar("tenant_slots_feeding", default=frozenset())
"""The RQ queues for which this process is in the midst of `feed`."""


def stored(jobs: list[TenantJob]) -> None:
    """Tell that new jobs are in the database."""
    after_commit(partial(news.send, "jobs_enqueued", jobs=jobs))


def offer(tenant_queue_id: int, rq_queue: str, share: int = 0) -> list[TenantJob]:
    """A tenant has one job more in an RQ queue, and gets its turn. Returns what was admitted at once."""
    return offer_many(rq_queue, [(tenant_queue_id, share)])


def offer_many(rq_queue: str, tenants: list[tuple[int, int]]) -> list[TenantJob]:
    """As `offer`, for primary keys and shares of many."""
    if app_settings.IMMEDIATE:
        return _run_at_once([pk for pk, _ in tenants])
    return _unless_out_of_reach(partial(_offer_many, rq_queue, tenants)) or []


def _offer_many(rq_queue: str, tenants: list[tuple[int, int]]) -> list[TenantJob]:
    return feed(rq_queue) if fair_order.offer(rq_queue, tenants) else []


def freed(tenant_queue_id: int, rq_queue: str) -> list[TenantJob]:
    """A tenant may have a slot free again: it gets its turn in every RQ queue where it waits for one.

    Nothing is charged: no run has left the slot, as after a higher limit. Returns what was admitted at once.
    """
    return free(Freed(tenant_queue_id, fair_order.NOTHING_CHARGED, rq_queue))


def free(slot: Freed) -> list[TenantJob]:
    """As `freed`, and the tenant is charged what the run took that has left the slot."""
    if app_settings.IMMEDIATE:
        return _run_at_once([slot.tenant_queue_id])
    return feed_each(_unless_out_of_reach(partial(fair_order.freed, slot)) or [])


def free_key(slot: Freed) -> list[TenantJob]:
    """A slot has gone to a job with another concurrency key, and that of the job before it is free, or nearer to it.

    Whoever has looked into another RQ queue meanwhile may have seen the key at its cap: the tenant gets its turn there.
    Returns what was admitted at once.
    """
    rooms = _unless_out_of_reach(partial(fair_order.freed_elsewhere, slot.tenant_queue_id, slot.rq_queue))
    return feed_each(rooms or [])


def feed_each(rq_queues: list[str]) -> list[TenantJob]:
    """As `feed`, where that is possible."""
    return [job for name in rq_queues for job in _unless_out_of_reach(partial(feed, name)) or []]


def offer_everywhere(tenant_queue: TenantQueue) -> list[TenantJob]:
    """What the tenant may do has changed: its share is told, and it gets its turn wherever it had none."""
    if app_settings.IMMEDIATE:
        return _run_at_once([tenant_queue.pk])
    share = [(tenant_queue.pk, tenant_queue.share)]
    tell_shares(tenant_queue.queue, share)
    return offer_again(tenant_queue.queue, share)


def tell_shares(queue: str, shares: list[tuple[int, int]]) -> None:
    """What these tenants of one queue may do has changed, by primary key and share: none counts as shut any more.

    The next enqueue gives any of them a turn. So who has something to run is asked afterwards, and offered again.
    """
    if not app_settings.IMMEDIATE:
        _unless_out_of_reach(partial(fair_order.tell_share, queue, shares))


def offer_again(rq_queue: str, tenants: list[tuple[int, int]]) -> list[TenantJob]:
    """These, by primary key and share, have something to run, of which the order may not know; or they may do more.

    The queue is fed in any case. Returns what was admitted at once.
    """
    if app_settings.IMMEDIATE:
        return _run_at_once([pk for pk, _ in tenants])
    return feed_each(_unless_out_of_reach(partial(fair_order.changed, rq_queue, tenants)) or [])


def deleted(tenant_queue_id: int, queue: str) -> None:
    """A tenant queue is no more."""
    if not app_settings.IMMEDIATE:
        _unless_out_of_reach(partial(fair_order.forget, queue, tenant_queue_id))


def _run_at_once(tenant_queues: list[int]) -> list[TenantJob]:
    """Nobody is admitted for a worker."""
    import_string(RUNS_AT_ONCE)(tenant_queues)
    return []


def feed(rq_queue: str) -> list[TenantJob]:
    """Admit as many jobs in fair order as workers wait for, and push them to RQ.

    Raises:
        RedisError: the order cannot be asked.
    """
    if app_settings.IMMEDIATE:
        return []
    if rq_queue in _feeding.get():
        return []  # on a synchronous queue a job runs while it is pushed; whoever pushes goes on afterwards
    feeder = fair_order.new_feeder() if queue_directory.queue_named(rq_queue).is_async else ""
    token, fed = _feeding.set(_feeding.get() | {rq_queue}), []
    try:
        in_vain = 0.0
        for turn in _turns(rq_queue, feeder):
            if in_vain > SECONDS_IN_VAIN:
                fair_order.undo(turn)
                break
            began = time.monotonic()
            fed.append(_admit(turn))
            if not fed[-1][0]:
                in_vain += time.monotonic() - began
    except BaseException:
        _unless_out_of_reach(partial(fair_order.give_up, rq_queue, feeder))
        raise
    finally:
        _feeding.reset(token)
        for admitted, given_up in fed:  # others have left their jobs to this process: receivers may take their time
            _tell_admitted(admitted, given_up)
    return [job for admitted, _ in fed for job in admitted]


def _turns(rq_queue: str, feeder: str) -> Iterator[Turn]:
    """While there is room in the window."""
    looks = 0
    while looks < MOST_LOOKS and (turn := fair_order.next_turn(rq_queue, feeder)):
        if turn.for_nobody and _keeping_its_place(turn, unattended.passes_over):
            looks += 1
        else:
            yield turn


def _keeping_its_place(turn: Turn, ask: Callable[[Turn], T]) -> T:
    """What the database says, if it can be reached."""
    try:
        return ask(turn)
    except Error:
        _unless_out_of_reach(partial(fair_order.undo, turn))
        raise


def _admit(turn: Turn) -> tuple[list[TenantJob], list[GivenUp]]:
    """Let the head of a tenant's backlog into its free slots, and push it to RQ; and what that is not to run."""
    admission = Admission()
    with in_turn(turn) as came_of:
        admission = slots.admit(turn.tenant_queue_id, turn.rq_queue, turn.jobs)
        came_of(admission)
    return admission.jobs, _hand_over(admission.jobs, turn.rq_queue, turn.feeder)


@contextmanager
def in_turn(turn: Turn, later: Callable[[TellOrder], object] | None = None) -> Iterator[Callable[[Admission], None]]:
    """Around the admission that a turn is for: a tenant that has no more to run leaves the order.

    A tenant queue that somebody holds leaves it too, and one with a row that the database does not take, or that we
    cannot read: nobody else is to wait for it. One that is held comes back by itself, as does one whose trigger has met
    what would be about all, such as a disk that is full. A job that is not taken is put off, so that the next one can
    have the turn. A tenant queue that was deleted is forgotten. Where the database is out of reach the tenant keeps its
    place. What was admitted stands, whether or not the order can be told.

    Args:
        turn: whose.
        later: given what is to be done before the next turn, where a job was started that need not wait for it.
    """
    end = _TurnEnd(turn, later)
    try:
        with waiting_at_most(min(patience.get(), held.seconds_to_wait(turn.tenant_queue_id))):
            yield end.came_of
    except TenantQueueLocked as error:
        end.lose_while_held(error)
    except TenantQueue.DoesNotExist as error:
        logger.warning("a tenant queue loses its turn: %s", error, extra=logs.about_named(queue=turn.rq_queue))
        deleted(turn.tenant_queue_id, turn.rq_queue)
    except Error as error:
        if end.is_told:
            raise
        if not is_of_one(error):
            end.keep_place()
            raise
        if is_refusal(error):
            end.lose("the database refuses its next job")
            _put_off_refused(turn)
        else:
            end.lose_for_a_moment(error)
    except (BaseTimeoutException, StopRequested):
        raise
    except Exception:
        if end.is_told:
            raise
        end.lose("its next job cannot be admitted")


class _TurnEnd:
    """How a turn ends: the tenant leaves the order of tenants, or stays in it for what is left of its backlog."""

    def __init__(self, turn: Turn, later: Callable[[TellOrder], object] | None) -> None:
        self._turn, self._later = turn, later
        self._began = time.monotonic()
        self.is_told = False
        """Whether the admission has come to something: an error after that takes no turn away."""

    def came_of(self, admission: Admission) -> None:
        self.is_told = True
        turn = self._turn
        held.forget(turn.tenant_queue_id)
        taken = len(admission.jobs) + (admission.started is not None)
        for_workers = taken - sum(job.is_reservation for job in admission.jobs)
        if not taken and not admission.is_shut:  # the next enqueue leads to another look
            self._charge_look()
        stays_out = turn.is_out and admission.is_full and admission.wakes_in is None and for_workers == turn.jobs
        if (taken < turn.jobs or not admission.has_more) and not stays_out:
            self._leave_with(admission, for_workers)
        else:
            self._stay(admission, for_workers)

    def _charge_look(self) -> None:
        """It has cost a worker time, and given it nothing to do."""
        seconds = time.monotonic() - self._began
        _unless_out_of_reach(partial(fair_order.cost, self._turn.rq_queue, self._turn.tenant_queue_id, seconds))

    def _leave_with(self, admission: Admission, for_workers: int) -> None:
        tell = partial(_leave_order, self._turn, for_workers, admission)
        if self._later is not None and admission.started is not None:
            self._later(tell)
        else:
            feed_after(tell)

    def _stay(self, admission: Admission, for_workers: int) -> None:
        turn = self._turn
        if for_workers < turn.jobs:
            _unless_out_of_reach(partial(fair_order.undo, turn, for_workers))
        if turn.is_out and admission.has_more:
            freed(turn.tenant_queue_id, turn.rq_queue)

    def lose(self, why: str) -> None:
        """Called while an error is handled, which the log shows."""
        text = "tenant queue %s loses its turn, %s"
        about_queue = logs.about_named(queue=self._turn.rq_queue)
        logger.exception(text, self._turn.tenant_queue_id, why, extra=about_queue)
        self.leave()

    def leave(self) -> None:
        """Nothing was admitted: it is as if the tenant had no free slot."""
        self._leave_with(Admission(is_full=True), 0)

    def lose_while_held(self, error: Exception) -> None:
        """Unless it is offered before, as by who has held it."""
        pk = self._turn.tenant_queue_id
        level = logging.DEBUG if held.is_known(pk) else logging.WARNING  # it may come back for as long as it is held
        self._lose_for(held.note(pk, time.monotonic() - self._began), error, level)

    def lose_for_a_moment(self, error: Exception) -> None:
        self._lose_for(held.MOMENT, error, logging.WARNING)

    def _lose_for(self, seconds: float, error: Exception, level: int) -> None:
        about_queue = logs.about_named(queue=self._turn.rq_queue)
        logger.log(level, "a tenant queue loses its turn: %s", error, extra=about_queue)
        self._charge_look()
        self._leave_with(Admission(is_full=True, wakes_in=seconds), 0)

    def keep_place(self) -> None:
        _unless_out_of_reach(partial(fair_order.undo, self._turn))


def _leave_order(turn: Turn, admitted: int, admission: Admission) -> list[str]:
    def drop() -> bool:
        full, shut = admission.is_full, admission.is_shut
        return fair_order.drop(turn, admitted, is_full=full, is_shut=shut, wakes_in=admission.wakes_in)

    return [turn.rq_queue] if _unless_out_of_reach(drop) else []


def feed_after(tell: TellOrder) -> None:
    """Nothing that goes wrong with others is the turn's."""
    try:
        feed_each(tell())
    except Error as error:
        logger.warning("a sweep admits jobs for workers that wait, the database did not answer: %s", error)


def _put_off_refused(turn: Turn) -> None:
    """The tenant gets another turn only for a job that can be admitted: it would be first again, before all others.

    It gets none where its rows cannot even be read, or somebody holds them. The time that it takes is the tenant's.
    """
    began = time.monotonic()
    try:
        with waiting_at_most(LOCK_TIMEOUT_SECONDS):
            put_off = putting_off.put_off_refused(turn.tenant_queue_id, turn.rq_queue, turn.jobs)
    except (TenantQueue.DoesNotExist, TenantQueueLocked):
        return
    except Error as error:
        if not is_of_one(error):
            raise
        return  # what it is was told when the turn was lost
    for job in put_off.jobs:
        text = "job %s is tried again in %s s: %s"
        logger.error(text, job.uuid, putting_off.SECONDS_PUT_OFF, job.error, extra=logs.about(job))
    seconds = time.monotonic() - began
    _unless_out_of_reach(partial(fair_order.cost, turn.rq_queue, turn.tenant_queue_id, seconds))
    if put_off.has_next:
        offer(turn.tenant_queue_id, turn.rq_queue)


def _unless_out_of_reach(action: Callable[[], T]) -> T | None:
    """The sweep offers again whoever has something to run."""
    try:
        return action()
    except OUT_OF_REACH as error:
        logger.warning("Redis cannot be asked for the order of tenants, so a sweep offers them again: %s", error)
        return None


def push(admitted: list[TenantJob], rq_queue: str) -> list[TenantJob]:
    """Hand admitted jobs to RQ."""
    _tell_admitted(admitted, _hand_over(admitted, rq_queue))
    return admitted


def _hand_over(admitted: list[TenantJob], rq_queue: str, feeder: str = "") -> list[GivenUp]:
    """In the turn of a `feeder` if it was one's. Returns the jobs that RQ is not to run any more."""
    if not admitted:
        return []
    given_up = dispatch.push(admitted).given_up
    if pushed := [job.last_rq_id for job in admitted if not job.is_reservation]:
        _unless_out_of_reach(partial(fair_order.bring_before_plain_jobs, rq_queue, pushed, feeder))
    return given_up


def _tell_admitted(admitted: list[TenantJob], given_up: list[GivenUp]) -> None:
    if admitted:
        news.send("jobs_admitted", jobs=admitted)
    for job, came_of in given_up:
        give_up(job, came_of)


def give_up(job: TenantJob, came_of: CameOf) -> bool:
    """End an admitted plain job that RQ is not to run any more. False: it has moved on."""
    return bool(release(job, states=(State.QUEUED,), state=came_of.state, error=came_of.error))


def admit_here(job: TenantJob) -> bool:
    """Give a waiting job a slot that starts in this process, and is therefore not pushed. False: there is none for it.

    It is up to date afterwards. Reservations that got theirs with it are started by those who wait for them.
    """
    admitted = slots.admit_this(job)
    if admitted:
        news.send("jobs_admitted", jobs=admitted)
    if job not in admitted:
        job.refresh_from_db(fields=["state", "attempt"])
    return job in admitted


def admitted_here(job: TenantJob) -> None:
    """Tell that a job has a slot which is not pushed."""
    news.send("jobs_admitted", jobs=[job])


def started(job: TenantJob) -> None:
    """Tell that a job runs."""
    news.send("job_started", job=job)


def release(job: TenantJob, *, seconds: float | None = None, reason: str = "", **changes: Any) -> Release:
    """Move a job out of its slot, give its tenant a turn, and tell where the job went.

    Args:
        job, changes: as of `slots.release`.
        seconds: as of `follow`; None where nobody has measured them.
        reason: what is told, where nothing is written into the job's row.
    """
    seconds = charges.unmeasured(job) if seconds is None else seconds
    released = slots.release(job, **changes)
    follow(job, released, reason or changes.get("error", ""), seconds)
    return released


def put_back(job: TenantJob) -> bool:
    """An admitted job would not be admitted by now: it goes to its place in the backlog. False: it has moved on."""
    return bool(release(job, reason=NOT_NOW, states=(State.QUEUED,), state=State.WAITING))


def follow(
    job: TenantJob,
    released: Release,
    error: str,
    seconds: float,
    *,
    free: Callable[[Freed], object] = free,
) -> None:
    """What follows from the release of a job's slot: `release` does both, and others do something in between.

    The tenant is charged and gets its turn, receivers are told where the job went, and jobs that run after it go on.
    If the slot had been taken away before, nothing is charged. Its tenant gets its turn all the same: this process may
    have released the slot itself, by a commit whose answer was lost.

    Args:
        job, released, error: what was released, and why.
        seconds: for which the job has run, or as in `Freed`.
        free: what is done with the free slot, instead of `free` above.
    """
    charged = seconds if released else fair_order.NOTHING_CHARGED
    with suppress(TenantQueue.DoesNotExist):
        is_over = released.state in ENDED
        after_commit(partial(free, Freed(job.tenant_queue_id, charged, job.rq_queue_name, is_over)))
    if released.state is not None:
        job.awaited = released.is_awaited
        left([job], released.state, error)


def cancel_unstarted(job: TenantJob, error: str = "", *, stays_in_rq: bool = False) -> bool:
    """Cancel a job or a reservation that has not begun, whether it waits or was admitted, and tell so.

    False when it moved on since the row was read; nothing is changed then.

    Args:
        job, error: which, and why.
        stays_in_rq: RQ's record of it stands for another row.
    """
    had_slot = job.state == State.QUEUED
    if had_slot:
        values: dict[str, Any] = {"error": error} if error else {}
        done = bool(slots.release(job, states=(State.QUEUED,), state=State.CANCELED, **values))
    else:
        done = slots.withdraw(job, error)
    if done:
        if not stays_in_rq:
            after_commit(partial(dispatch.remove, job))
        if had_slot:  # and once it has left RQ's list, there is room for another one
            slot = Freed(job.tenant_queue_id, charges.unmeasured(job), job.rq_queue_name)
            after_commit(partial(free, slot))
        with suppress(TenantJob.DoesNotExist):
            job.refresh_from_db()
        left([job], State.CANCELED, error or job.error)
    return done


def fail_unadmitted(job: TenantJob, error: str) -> bool:
    """End a waiting job that can never be admitted, and tell so. False when it moved on since the row was read."""
    done = slots.withdraw(job, error, State.FAILED)
    if done:
        after_commit(partial(dispatch.remove, job))
        with suppress(TenantJob.DoesNotExist):
            job.refresh_from_db(fields=["awaited"])
        left([job], State.FAILED, error)
    return done


def left(jobs: Collection[TenantJob], state: State, error: str = "") -> None:
    """Tell where jobs went that have left their slot or the backlog: receivers, and jobs that wait for their end.

    `awaited` is to be what the statement found that moved them.
    """
    _announce(jobs, state, error)
    if ended := [job.pk for job in jobs if job.has_ended and job.awaited]:
        after_commit(partial(tell_dependents, ended))


def await_jobs(pks: Collection[int]) -> None:
    """Jobs wait for these from now on: once that is committed, their ends are told, also those that have come by then.

    The other side of `left`, see ``chains.py``.
    """

    def watch() -> None:
        chains.watch(pks)
        tell_dependents(pks)

    after_commit(watch)


def tell_dependents(ended: Collection[int]) -> None:
    """Tell the jobs that wait for these ones of their end, and then those that wait for what is canceled by that.

    What takes long is left to the sweep, as is a tenant queue that somebody holds: a worker that tells runs no job.
    """
    until = time.monotonic() + SECONDS_TO_TELL
    while ended:
        canceled: list[TenantJob] = []
        for tenant_queue_id in chains.concerned(ended):
            canceled += _tell_tenant(tenant_queue_id, ended, until)
            if time.monotonic() >= until:  # not before the first ones: a slow database must not leave all of them out
                return
        ended = [job.pk for job in canceled if job.awaited]


def _tell_tenant(tenant_queue_id: int, ended: Collection[int], until: float) -> list[TenantJob]:
    """Those that were canceled."""
    canceled: list[TenantJob] = []
    has_more = True
    try:
        with waiting_at_most(LOCK_TIMEOUT_SECONDS):
            while has_more:
                told = tell_some(tenant_queue_id, ended)
                canceled += told.canceled
                has_more = told.has_more and time.monotonic() < until
    except (TenantQueue.DoesNotExist, TenantQueueLocked) as error:
        logger.warning("a sweep tells jobs that others have ended: %s", error)
    except DatabaseError as error:
        if not is_of_one(error):
            raise
        logger.exception("a sweep tells jobs that others have ended, those that the database lets change")
    return canceled


def tell_some(tenant_queue_id: int, ended: Collection[int] | None = None, jobs: Collection[int] | None = None) -> Told:
    """Tell some of a tenant queue's jobs that others have ended; what gets free to run is offered to workers.

    Args, and raises: as of `chains.tell`.
    """
    told = chains.tell(tenant_queue_id, ended, jobs)
    _offer_told(tenant_queue_id, told)
    for job in told.canceled:
        _announce([job], State.CANCELED, job.error)
    return told


def promote_forgotten(tenant_queue_id: int, pks: Collection[int]) -> Told:
    """`chains.promote_forgotten`; what gets free to run is offered to workers."""
    told = chains.promote_forgotten(tenant_queue_id, pks)
    _offer_told(tenant_queue_id, told)
    return told


def _offer_told(tenant_queue_id: int, told: Told) -> None:
    for rq_queue in {job.rq_queue_name for job in told.promoted}:
        after_commit(partial(offer, tenant_queue_id, rq_queue))


def _announce(jobs: Iterable[TenantJob], state: State, error: str) -> None:
    for job in jobs:
        job.state, job.error = state, error
        if job.has_ended:
            after_commit(partial(news.send, "job_ended", job=job))
        else:
            after_commit(partial(news.send, "job_put_back", job=job, reason=error))
