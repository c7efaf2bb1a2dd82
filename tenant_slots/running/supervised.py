"""A run in two processes: a worker starts and ends it, and its work-horse calls the function."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import UUID

from django.db import Error

from tenant_slots import logs, slots, transitions
from tenant_slots.fair_order import Freed, Turn
from tenant_slots.hand_over import Choosing
from tenant_slots.models import State, TenantJob
from tenant_slots.owners import Owner
from tenant_slots.releases import Admission, Release
from tenant_slots.running import recording
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.recording import NOT_BEGUN, Outcome
from tenant_slots.running.run import Run, WatchedRun
from tenant_slots.transitions import TellOrder

logger = logging.getLogger("tenant_slots")


class SupervisedRun(WatchedRun):
    """In a worker: a run that it starts and ends, while a work-horse calls the function."""

    leaving: TellOrder | None = None
    """Its tenant is to leave the order of tenants, which is told while the work-horse has something to do."""

    @property
    def _later(self) -> Callable[[TellOrder], object]:
        return partial(setattr, self, "leaving")

    def hand_over(self, horse: int) -> None:
        """To a work-horse that was forked after the start: heartbeats, and whoever kills the run, mean this one."""
        if self.job is not None:
            self.witness.handed_to(horse)

    def tell_started(self, job: TenantJob) -> None:
        """Receivers are called where the function is: see `RiddenRun`."""

    def _record_end(self, job: TenantJob, outcome: Outcome) -> Release | None:
        """The outcome is in the outbox, where the work-horse has left it."""
        return self._record_end_briefly(job, outcome)

    def hand_on(self, outcome: Outcome, turn: Turn, following: SupervisedRun) -> bool:
        """Record the end, and take the turn of the same tenant, which `following` runs, in one transaction.

        Returns whether it was done. If not, nothing has changed.

        Raises:
            Error: as `take`, and the end may or may not have been recorded.
        """
        assert self.job is not None, "a run ends that has not begun"
        job, released = self.job, Release(None)

        def release_and_start(owner: Owner, choosing: Choosing) -> Admission:
            nonlocal released
            released = slots.release_and_start(job, turn.rq_queue, owner, choosing, **outcome)
            return released.admission or Admission()

        self.witness.ending()
        following._take_turn(turn, release_and_start)
        if released.admission is None:
            self.hold_again()  # the next one may have been chosen before somebody turned out to hold a row
            return False
        self.is_over()
        self._follow(job, released, outcome, self._free if following.job is None else _handed_on(job, following.job))
        return True

    def hold_again(self) -> None:
        """It is not known to have been handed on."""
        assert self.job is not None, "a run goes on that has not begun"
        self.witness.taking(self.job.pk, self.job.token, self._horse)
        self.witness.holding()

    def put_back(self) -> None:
        """The function was never called; nobody but this process knows so."""
        assert self.job is not None, "a run is put back that has not begun"
        with suppress(OSError):
            self._outbox.put(self.job.token, NOT_BEGUN)
        self.end(NOT_BEGUN)


def _handed_on(job: TenantJob, following: TenantJob) -> Callable[[Freed], object]:
    """What is done with a slot that has changed hands: the key of the job that ended may be below its cap now."""
    has_cap = following.tenant_queue.max_job_per_key is not None
    return transitions.free_key if has_cap and job.key not in ("", following.key) else _keep


def _keep(slot: Freed) -> None:
    """The slot has changed hands."""


class RiddenRun(Run):
    """In a work-horse: a run that its worker has started and will end."""

    def __init__(self, worker: str, job: TenantJob, outbox: Outbox, *, began: float, was_taken: bool) -> None:
        super().__init__(worker, beats=True)
        self.job, self._outbox, self.began, self._was_taken = job, outbox, began, was_taken
        self._horse = os.getpid()
        self._found = recording.found()

    def begin(self, uuid: UUID, attempt: int) -> bool:
        """Whether it is this attempt that the worker has started."""
        if self.job is None or (self.job.uuid, self.job.attempt) != (uuid, attempt):
            return False
        self._outbox.clear()  # of what its worker has left for the case that it does not come to this
        self.tell_started(self.job)
        return True

    def _make_room(self, job: TenantJob) -> None:
        """Its worker does not: it takes its next job itself."""

    def end(self, outcome: Outcome) -> None:
        """Where its worker cannot be told, as after a job that has closed all files, it is recorded here."""
        if self.job is None or not self._is_mine():
            return
        try:
            self._outbox.put(self.job.token, outcome)
        except OSError as error:
            text = "the worker cannot be told the end of job %s, which is recorded by its work-horse: %s"
            logger.warning(text, self.job.uuid, error, extra=logs.about(self.job))
            super().end(outcome)
        else:
            self._came_of_it = State(outcome["state"])

    def has_become(self, state: State) -> bool:
        """Its worker has not written the end yet, unless it was written here, and goes by what the row says then."""
        return super().has_become(state) and (self.job is None or self._is_wanted())

    def _is_wanted(self) -> bool:
        assert self.job is not None, "a run has become something that has not begun"
        recording.leave_leftovers(self.job, self._found)
        try:
            return slots.is_wanted(self.job.pk, self.job.token)
        except Error:  # away, or in a session that the function has left without the rights
            return True
