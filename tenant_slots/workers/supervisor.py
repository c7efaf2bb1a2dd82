"""A worker that runs jobs in work-horses: it hands them out, watches, and makes good what a dead one left.

Its own process runs no code of the project: no import of a job's module, no receiver, no callable of the settings. What
calls those, and what may hang for the database, is done by the work-horse, or aside by a process that is killed when it
takes too long. The worker itself only talks to Redis, and a thread of its own sends the heartbeats.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from rq.exceptions import InvalidJobOperation
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.worker import Worker

from tenant_slots import dispatch
from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import private_connection
from tenant_slots.models import State
from tenant_slots.repair.contact import Contact
from tenant_slots.workers import kept
from tenant_slots.workers.base import SweepingWorker
from tenant_slots.workers.children import Aside
from tenant_slots.workers.heartbeats import Token
from tenant_slots.workers.horses import Horse, Order, Report
from tenant_slots.workers.riding import RidingWorker

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

GRACE_AFTER_TIMEOUT = 60
"""Seconds after a job's timeout when a work-horse that did not end itself is killed, as by RQ's worker (RQ 2.12)."""

ANNOUNCED_AFTER = 0.1
"""Seconds after which RQ is told that a job of ours runs. Nobody sees a shorter one, and nobody can stop it."""

LOOKS_PER_SECOND = 1
"""At what else there is to do while a job runs."""

SECONDS_FOR_A_SLOT = 2
"""How long the next job waits until the slot of one whose work-horse died is back."""

SECONDS_TO_EXIT = 5
"""How long a work-horse that is not needed any more may take to end: it may have callbacks for that."""

TRIES = 3
"""How many work-horses may die before one of them has begun a job. Then the job is left to a sweep."""


class Supervisor(SweepingWorker, RidingWorker, Worker):
    """See the module; its subclasses say how many jobs a work-horse runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.job_monitoring_interval = max(1, int(app_settings.BEAT_INTERVAL))
        self._horse: Horse | None = None
        self._rq_id: str | None = None
        """Of the job that the work-horse runs."""
        self._handing = threading.RLock()
        """Whoever has it may trust that the work-horse does not turn to another job."""
        self._sweeping = Aside(app_settings.LEASE_TTL / 2)
        self._settling = Aside(app_settings.LEASE_TTL)
        self._breaks_before = 0
        self._next_rq_heartbeat = 0.0

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        with private_connection(app_settings.LEASE_TTL / 4):
            super().bootstrap(*args, **kwargs)
        gc.collect()
        gc.freeze()  # what is loaded by now is never garbage; horses need not look at it, and so not copy it

    def dequeue_job_and_maintain_ttl(self, *args: Any, **kwargs: Any) -> tuple[Job, Queue] | None:
        """No job is taken before there is somebody to run it."""
        self._have_a_horse()
        return super().dequeue_job_and_maintain_ttl(*args, **kwargs)

    def execute_job(self, job: Job, queue: Queue) -> None:
        with self._noting_failure(), self._undisturbed():
            self._execute(job, queue)

    def _execute(self, job: Job, queue: Queue) -> None:
        is_ours = dispatch.named_by(job.id) is not None
        if not is_ours:
            self.prepare_execution(job)
        began = time.monotonic()
        report: Report | None = None
        try:
            for _ in range(TRIES):
                self._hand_out(job, queue)
                report = self._watch(job, began, announce=is_ours)
                if report is not None or not is_ours or self._has_begun() or self._stopped_job_id == job.id:
                    break
                logger.warning("the work-horse died before it began job %s", job.id)
        finally:
            self._take_back(job, queue, report, time.monotonic() - began)

    def _has_begun(self) -> bool:
        return bool(self.witness.read().phase)

    def _have_a_horse(self) -> Horse:
        """The work-horse; a new one, as soon as the system has room, if there is none or it has died."""
        while self._horse is None or self._horse.child.has_ended():
            try:
                self._horse = Horse(self.live_as_horse)
            except OSError as error:
                logger.error("no work-horse can be forked, no job is taken until one can: %s", error)
                time.sleep(1)
                self.heartbeat()
        return self._horse

    def _hand_out(self, job: Job, queue: Queue) -> None:
        begun = self.execution
        execution = (begun.id, begun.created_at.timestamp()) if begun is not None else None
        order = Order(job.id, queue.name, execution)
        while True:
            horse = self._have_a_horse()
            with self._handing:
                self._rq_id, self._horse_pid = job.id, horse.pid
                if horse.can_take(order):
                    return

    def _watch(self, job: Job, began: float, *, announce: bool) -> Report | None:
        """Until the work-horse has run the job, or died: then None."""
        horse = self._horse
        assert horse is not None, "nobody was told to run the job"
        looked = began
        pause = ANNOUNCED_AFTER if announce else 1 / LOOKS_PER_SECOND
        while (report := horse.report(pause)) is None:
            if horse.child.has_ended():
                return horse.report(0)  # it may have said so right before
            if announce and self.execution is None and time.monotonic() - began >= ANNOUNCED_AFTER:
                self._announce(job)
            pause = 1 / LOOKS_PER_SECOND
            if time.monotonic() - looked >= pause:
                looked = time.monotonic()
                self._look_around(job, looked - began)
        return report

    def _look_around(self, job: Job, seconds: float) -> None:
        """What a worker does while a job runs."""
        if job.timeout and 0 < job.timeout <= seconds - GRACE_AFTER_TIMEOUT:
            self.kill_horse()
        self.settle_kept()
        self.sweep()
        if self.execution is not None and time.monotonic() >= self._next_rq_heartbeat:
            self._next_rq_heartbeat = time.monotonic() + self.job_monitoring_interval
            self._unless_redis_is_away(self.set_current_job_working_time, seconds)
            self._unless_redis_is_away(self.maintain_heartbeats, job)

    def _announce(self, job: Job) -> None:
        """Tell RQ that a job of ours runs: for its pages, and so that a stop command finds this worker.

        A cancel that came before found nobody to stop the job, hence the look.
        """
        self._unless_redis_is_away(self._register, job)
        self.heartbeats.look_now()

    def _register(self, job: Job) -> None:
        self.prepare_execution(job)
        with self.connection.pipeline() as pipeline:
            self.set_current_job_id(job.id, pipeline=pipeline)
            job.prepare_for_execution(self.name, pipeline=pipeline)
            pipeline.execute()

    def _take_back(self, job: Job, queue: Queue, report: Report | None, seconds: float) -> None:
        """The job has run, its work-horse has died, or this worker is to end at once and takes the horse along."""
        horse = self._horse
        assert horse is not None, "nobody was told to run the job"
        with self._handing:
            self._rq_id, self._horse_pid = None, 0
        if report is None:
            horse.child.end()
        if report is None or not report.is_fit:
            horse.part(SECONDS_TO_EXIT)
            self._horse = None
        if report is not None and report.met_outage:
            self.sweeper.contact.broken()
        decided = {} if report else {"state": self._decided(job, seconds), "was_interrupted": self._stop_requested}
        if self.keep_what_is_left(**decided):
            self._settle_and_wait(0 if report else SECONDS_FOR_A_SLOT)
        if report is None:
            self._unless_redis_is_away(self._end_rq_job, job, queue, horse.child.status)
        elif self.execution is not None and dispatch.named_by(job.id):
            self._unless_redis_is_away(self._withdraw, job, report.status)
        self.execution = None
        self.set_state("idle")

    def _decided(self, job: Job, seconds: float) -> State | None:
        """What was done to the work-horse on purpose."""
        if self._stopped_job_id == job.id:
            return State.CANCELED
        if job.timeout and 0 < job.timeout <= seconds - GRACE_AFTER_TIMEOUT:
            return State.FAILED
        return None

    def _end_rq_job(self, job: Job, queue: Queue, status: int | None) -> None:
        """As RQ's worker does when a work-horse has died (RQ 2.12, monitor_work_horse)."""
        try:
            known = job.get_status()
        except InvalidJobOperation:  # somebody has deleted it
            return
        if self._stopped_job_id == job.id:
            if job._stopped_callback_name:
                self._aside_at_once(lambda: job.execute_stopped_callback(self.death_penalty_class))
            self.handle_job_failure(job, queue=queue, exc_string="Job stopped by user, work-horse terminated.")
        elif known not in (JobStatus.FINISHED, JobStatus.FAILED):
            self.handle_work_horse_killed(job, None, status, None)  # type: ignore[no-untyped-call]
            self.handle_job_failure(job, queue=queue, exc_string=f"Work-horse terminated unexpectedly: {status}")

    def _withdraw(self, job: Job, status: str) -> None:
        """The job that was announced has ended: RQ's records of it may have been written in any order."""
        with self.connection.pipeline() as pipeline:
            self.cleanup_execution(job, pipeline)
            pipeline.hexists(job.key, "data")
            *_, is_known = pipeline.execute()
        if is_known and status:
            job.set_status(JobStatus(status))
        elif not is_known:  # with a result_ttl of 0, or deleted by hand: only what was announced is left of it
            self.connection.delete(job.key)

    def _aside_at_once(self, function: Callable[[], Any]) -> None:
        one = Aside(app_settings.LEASE_TTL)
        if one.start(function):
            one.answer(app_settings.LEASE_TTL + 1)

    def settle_kept(self) -> None:
        """Aside: a receiver of the job's end may take its time, and so may the database."""
        self._settle_and_wait(0)

    def _settle_and_wait(self, seconds: float) -> None:
        self._note_settled(0)
        if len(self.kept) and self._settling.start(_with_session(lambda: list(kept.settle(self.kept.whole())))):
            self._note_settled(seconds)

    def _note_settled(self, seconds: float) -> None:
        answer = self._settling.answer(seconds)
        if answer is not None and answer.is_whole:
            self.kept.remove(answer.value)

    def sweep(self) -> None:
        """Aside, and waited for while no job runs: in burst mode, what it promotes is still to be run."""
        self._note_swept(0)
        if self.sweeper.is_due and self._sweeping.start(_with_session(self._sweep_in_child)):
            self.sweeper.put_off()
            self._breaks_before = self.sweeper.contact.breaks
            self._note_swept(0 if self._rq_id else app_settings.LEASE_TTL)

    def _sweep_in_child(self) -> Contact:
        self.sweeper.sweep_if_due()
        return self.sweeper.contact

    def _note_swept(self, seconds: float) -> None:
        """Take over what the process saw; nothing, if this worker has itself met an outage meanwhile."""
        answer = self._sweeping.answer(seconds)
        if answer is None:
            return
        if not answer.is_whole:
            self.sweeper.contact.broken()
        elif self.sweeper.contact.breaks == self._breaks_before:
            self.sweeper.contact = answer.value

    def end_run(self, run: Token) -> None:
        """Called by the thread of the heartbeats."""
        with self._handing:
            if self.is_executing(run):
                self.kill_horse()

    def handle_payload(self, message: Any) -> None:
        """A command that RQ's thread has received. The job that it means is still the one that runs meanwhile."""
        with self._handing:
            super().handle_payload(message)  # type: ignore[no-untyped-call]

    def get_current_job_id(self, pipeline: Any = None) -> str | None:
        return self._rq_id or super().get_current_job_id(pipeline)

    def kill_horse(self, *args: Any) -> None:
        """Only one that runs a job. RQ forgets the pid of a horse that has ended, and kills the group of process 0."""
        with self._handing:
            if self._rq_id is not None and self._horse is not None:
                self._horse.child.kill(*args)

    def wait_for_horse(self) -> tuple[None, None, None]:
        """Called by RQ after it has killed the horse, when the worker is to end at once."""
        if self._horse is not None:
            self._horse.child.end()
        return None, None, None

    def _part(self) -> None:
        super()._part()
        if self._horse is not None and not self.is_horse:
            self._horse.part(SECONDS_TO_EXIT)


def _with_session(function: Callable[[], T]) -> Callable[[], T]:
    """For what is done aside: with a session that ends with it."""

    def run() -> T:
        with private_connection(app_settings.LEASE_TTL / 4):
            return function()

    return run
