"""The thread behind a reservation: it waits for the slot, sends heartbeats for it and gives it back."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, OperationalError, connections

from tenant_slots import concurrency_keys, fair_order, logs, rates, rests, slots, tenants, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db import sessions, transactions
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.migrated import naming_missing_tables
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.enqueueing.backlog_limit import require_room
from tenant_slots.exceptions import NoFreeSlot, TenantQueueLocked
from tenant_slots.models import HOLD_SLOT, Kind, State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.repair import lost_runs
from tenant_slots.running.recording import persistently
from tenant_slots.running.run import Run

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.1
"""Seconds between two looks at the row while it waits: a look is one query by primary key."""

LOCK_TIMEOUT_SECONDS = 1
"""How long one statement waits for a tenant queue, or a row of it, that a foreign transaction keeps locked; and for how
much longer than its time-out a reservation waits for such rows altogether.
"""

SECONDS_FOR_ANSWER = 10
"""For how much longer than its time-out a reservation waits for a database that does not answer at all."""

FIRST_LOOK, LONGEST_BETWEEN_LOOKS = 0.1, 5.0
"""Seconds until it is asked whether the caller waits for himself, and between two such questions at the most."""

BLOCKS = "SELECT pg_backend_pid() = ANY(pg_blocking_pids(%s))"
"""Whether this session has what another one waits for."""

SECONDS_FOR_RELEASE = 2
"""How long the end of a block waits for its release to be recorded; a database that is away is tried for longer."""

NO_SLOT = "no slot became free for it; try again later, wait longer with timeout=, or raise the tenant's limit"
LOCKED = "another transaction keeps the tenant queue locked; end that one"
OWN_LOCK = (
    "the transaction around hold_slot() keeps the tenant queue locked, for which the reservation needs another "
    "transaction; hold the slot around it, or change the tenant queue elsewhere"
)
NO_ANSWER = "the database does not answer"
CANCELED = "the reservation was canceled"


@dataclass
class Reservation:
    """What ``with hold_slot(...) as reservation`` gives."""

    job: TenantJob
    """The row. Its `cancel_requested_at` is renewed with each heartbeat: nobody can stop the block from outside."""
    is_lost: bool = False
    """The lease ran out, as when the process stood still, and another may have the slot: end what you do."""


class ReservationRun(Run):
    """Whoever waits for the slot wants an answer: a start that fails is not tried again."""

    @property
    def charge(self) -> float:
        """It takes no worker's time."""
        return fair_order.NOTHING_CHARGED

    def _make_room(self, job: TenantJob) -> None:
        """It was in no list of RQ's, and a Redis that does not answer keeps no block from beginning."""

    def _record_start(self, job: TenantJob, owner: Owner) -> bool:
        if not slots.start(job, owner):
            return False
        job.refresh_from_db()
        return True


class Keeper:
    """The thread that gets one slot, sends heartbeats for it and gives it back."""

    def __init__(self, tenant: str, queue: str, timeout: float, wanted: dict[str, Any]) -> None:
        self.thread = threading.Thread(target=self._keep_and_close, name="tenant_slots reservation", daemon=True)
        self.begun: Future[Reservation] = Future()
        self._tenant, self._queue, self._timeout, self._wanted = tenant, queue, timeout, wanted
        self._deadline = time.monotonic() + timeout
        self._run = ReservationRun(f"{socket.gethostname()}.{os.getpid()}", beats=True)
        self._has_ended = threading.Event()
        self._outcome: dict[str, Any] = {}
        self._next_beat = 0.0
        self._session: int | None = None
        """PostgreSQL's number for the session of this thread."""
        self._is_left_behind = False
        """Nobody waits for its end, which may take long."""

    def answer(self) -> Reservation:
        """What the thread has got. Raises NoFreeSlot too when that waits for the caller, or for a dead database."""
        pause = FIRST_LOOK
        while not futures.wait([self.begun], pause).done:
            pause = min(pause * 2, LONGEST_BETWEEN_LOOKS)
            if self._waits_for_caller():
                raise self._left_behind(OWN_LOCK)
            if time.monotonic() > self._deadline + SECONDS_FOR_ANSWER:
                raise self._left_behind(NO_ANSWER)
        return self.begun.result()

    def _waits_for_caller(self) -> bool:
        """Whether the caller's own transaction has locked what the session of this thread waits for.

        In a coroutine Django lets nobody ask.
        """
        callers = connections[app_settings.DATABASE]
        with suppress(Error, SynchronousOnlyOperation):
            if self._session is not None and transactions.is_open(callers.alias):
                with callers.cursor() as cursor:
                    cursor.execute(BLOCKS, [self._session])
                    return bool(cursor.fetchone()[0])
        return False

    def _left_behind(self, reason: str) -> NoFreeSlot:
        self._is_left_behind = True
        return self._no_slot(reason)

    def end(self, outcome: dict[str, Any]) -> None:
        """The block has ended, or whoever waited for it does so no longer."""
        self._outcome = outcome
        self._has_ended.set()
        if self.thread.ident is not None and not self._is_left_behind:
            self.thread.join(SECONDS_FOR_RELEASE)

    def _keep_and_close(self) -> None:
        transactions.patience.set(LOCK_TIMEOUT_SECONDS)
        try:
            # Not one of a pool, which may have none but those of callers that wait for this thread.
            with sessions.private_connection(app_settings.LEASE_TTL / 4):
                self._keep()
        finally:
            connections.close_all()

    def _keep(self) -> None:
        job: TenantJob | None = None
        try:
            with naming_missing_tables():
                job = self._in_time(lambda: tenants.though_deleted(self._insert))
            with self._canceled_if_deleted():
                self._begin(job)
        except BaseException as error:
            self.begun.set_exception(error)
            if job is not None and not job.has_ended:
                self._give_up(job, str(error))
            return
        reservation = Reservation(job)
        self.begun.set_result(reservation)
        pause: float = app_settings.BEAT_INTERVAL
        while not self._has_ended.wait(pause):
            pause = self._beat(reservation)
        self._run.end(self._outcome)

    @contextmanager
    def _canceled_if_deleted(self) -> Iterator[None]:
        """The row may go between any two looks at it."""
        try:
            yield
        except (TenantJob.DoesNotExist, TenantQueue.DoesNotExist) as error:
            raise self._no_slot(CANCELED) from error

    def _in_time(self, step: Callable[[], T], job: TenantJob | None = None) -> T:
        """What the step gives. While somebody keeps the tenant queue locked it is tried until the time is over."""
        while True:
            left = self._deadline + LOCK_TIMEOUT_SECONDS - time.monotonic()
            try:
                with waiting_at_most(max(SHORTEST_PAUSE, min(LOCK_TIMEOUT_SECONDS, left))):
                    return step()
            except TenantQueueLocked as error:
                if self._is_over:
                    raise self._no_slot(LOCKED) from error
            if job is not None:
                self._beat_in_backlog(job)

    @property
    def _is_over(self) -> bool:
        """Whether nobody waits for the slot any more."""
        return self._has_ended.is_set() or time.monotonic() >= self._deadline

    def _begin(self, job: TenantJob) -> None:
        self._in_time(lambda: self._wait_for_turn(job), job)
        while not self._begins(job):  # the tenant was paused, or has a lower limit, since it was given the slot
            self._in_time(lambda: transitions.put_back(job), job)
            self._in_time(lambda: self._wait_for_turn(job), job)

    def _begins(self, job: TenantJob) -> bool:
        if self._has_ended.is_set() and job.state == State.QUEUED:
            raise self._no_slot(NO_SLOT)
        if job.state != State.QUEUED:
            raise self._no_slot(CANCELED)
        return self._started(job)

    def _started(self, job: TenantJob) -> bool:
        try:
            return self._run.start(job)
        except OperationalError as error:
            if not transactions.is_locked_out(error):
                raise
            raise self._no_slot(LOCKED) from error

    def _give_up(self, job: TenantJob, reason: str) -> None:
        """It must not stay in the backlog, nor keep a slot that it got meanwhile, when nobody waits any more."""

        def end() -> None:
            while self._still_waits(job) or not job.has_ended:
                if not transitions.cancel_unstarted(job, reason):
                    lost_runs.end_lost_run(job, reason, state=State.CANCELED)

        try:
            persistently(end)
        except Error:  # whoever waited has been told already
            logger.exception("%s, which nobody waits for, is left to a sweep", job, extra=logs.about(job))

    def _insert(self) -> TenantJob:
        self._session = sessions.backend_pid()
        row = tenants.tenant_queue_for(self._tenant, self._queue)
        if self._has_ended.is_set():
            raise self._no_slot(NO_SLOT)
        require_room(row, 1)
        self._next_beat = time.monotonic() + app_settings.BEAT_INTERVAL
        with transactions.bounded_at_once(app_settings.DATABASE, row.pk):
            job: TenantJob = TenantJob.objects.create(
                tenant_queue=row,
                kind=Kind.RESERVATION,
                task=HOLD_SLOT,
                beat_at=DatabaseNow(),
                **self._wanted,
                **self._run.owner.as_fields(),
            )
        transitions.stored([job])
        return job

    def _wait_for_turn(self, job: TenantJob) -> None:
        """Until it does not wait any more: it got a slot, or somebody canceled it."""
        pause = SHORTEST_PAUSE
        while self._still_waits(job) and not self._gets_slot(job) and job.state == State.WAITING:
            left = self._deadline - time.monotonic()
            # Where it cannot leave any more it was admitted in this very moment, and the slot is used.
            if self._is_over and transitions.cancel_unstarted(job, NO_SLOT):
                raise self._no_slot(NO_SLOT)
            self._has_ended.wait(max(0.0, min(pause, left)))
            pause = min(pause * 1.5, LONGEST_PAUSE)
            self._beat_in_backlog(job)

    def _gets_slot(self, job: TenantJob) -> bool:
        """Nobody is asked to wait for the row unless it looks as if a slot and a token were free, for its key too."""
        free = TenantQueue.objects.with_free(1).filter(rests.is_over(), rates.allows(1))
        row = free.filter(pk=job.tenant_queue_id).first()
        if row is None:
            return False
        job.tenant_queue = row
        return not concurrency_keys.is_passed_over(job) and transitions.admit_here(job)

    def _still_waits(self, job: TenantJob) -> bool:
        seen = TenantJob.objects.filter(pk=job.pk).values_list("state", "attempt", "token").first()
        job.state, job.attempt, job.token = seen or (State.CANCELED, job.attempt, job.token)
        return job.state == State.WAITING

    def _no_slot(self, reason: str) -> NoFreeSlot:
        return NoFreeSlot(tenant=self._tenant, queue=self._queue, timeout=self._timeout, reason=reason)

    def _beat_in_backlog(self, job: TenantJob) -> None:
        if time.monotonic() >= self._next_beat:
            with suppress(TenantQueueLocked):
                with transactions.bounded_at_once(app_settings.DATABASE, job.tenant_queue_id):
                    TenantJob.objects.reservations_to_begin().filter(pk=job.pk).update(beat_at=DatabaseNow())
                self._next_beat = time.monotonic() + app_settings.BEAT_INTERVAL

    def _beat(self, reservation: Reservation) -> float:
        """Returns the seconds until the next one: soon where it was kept out, or has failed."""
        job = reservation.job
        if reservation.is_lost:
            return app_settings.BEAT_INTERVAL
        try:
            reservation.is_lost = not slots.beat(job.pk, job.token)
            if not reservation.is_lost:
                asked = TenantJob.objects.filter(pk=job.pk).values_list("cancel_requested_at", flat=True)
                job.cancel_requested_at = asked.first()
        except Error as error:
            if transactions.is_locked_out(error):
                return app_settings.LEASE_TTL * slots.AGAIN_SHARE
            logger.warning("a heartbeat of %s failed: %s", job, error, extra=logs.about(job))
            connections.close_all()
            return app_settings.LEASE_TTL * slots.FAILED_SHARE
        if reservation.is_lost:
            logger.error("the lease of %s is lost, its block goes on without a slot", job, extra=logs.about(job))
        return app_settings.BEAT_INTERVAL
