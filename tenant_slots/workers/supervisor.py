"""A worker that runs jobs in work-horses: it hands them out, watches, and makes good what a dead one left.

Its own process runs no code of the project: no import of a job's module, no receiver, no callable of the settings. What
calls those is done by the work-horse, or aside by a process that is killed when it takes too long. The worker itself
marks a job as running and records its end: it is warm, and has a session. A thread of its own sends the heartbeats.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from rq.job import Job
from rq.queue import Queue
from rq.worker import Worker

from tenant_slots import dispatch, logs, signals, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import PrivateConnection
from tenant_slots.models import State
from tenant_slots.news import News, collecting, is_of_task, tell
from tenant_slots.running.recording import NOT_BEGUN, PASSING, Outcome
from tenant_slots.running.supervised import SupervisedRun
from tenant_slots.workers.aside import AsideWorker, aside_at_once
from tenant_slots.workers.dependents import DependentsWorker
from tenant_slots.workers.handing_on import HandingOnWorker
from tenant_slots.workers.heartbeats import Token
from tenant_slots.workers.horses import Horse, Order, Report, RQEnd, Tell
from tenant_slots.workers.records import Ended, RecordingWorker, fields_of
from tenant_slots.workers.riding import AFTER_THE_END, RidingWorker
from tenant_slots.workers.unobserved import stop_observing

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

SECONDS_WITHOUT_HORSE = 5
"""How long a worker that could fork no work-horse takes no other job."""

SECONDS_TO_SEND = 0.02
"""How long the end of a job waits for a work-horse that sends something to a collector before it parts.

Most have ended by then: their worker hands on at once, and has no memory copied that it shares with one which lives.
"""

SECONDS_TO_TELL = 60
"""How long the project's receivers may take to hear of the end of a job."""


STOPPED: Outcome = {"state": State.CANCELED, "error": "stopped before its function was called", "unstarted": True}
"""By RQ's command."""


class Supervisor(HandingOnWorker, DependentsWorker, AsideWorker, RidingWorker, RecordingWorker, Worker):
    """See the module; its subclasses say how many jobs a work-horse runs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.job_monitoring_interval = max(1, int(app_settings.BEAT_INTERVAL))
        self._horse: Horse | None = None
        self._rq_id: str | None = None
        """Of the job that the work-horse runs."""
        self._handing = threading.RLock()
        """Whoever has it may trust that the work-horse does not turn to another job."""
        self._next_rq_heartbeat = 0.0
        self._session = PrivateConnection(app_settings.LEASE_TTL / 4, is_silent=True)
        self._asked_at: float | None = None
        self._news: list[News] = []
        """Of jobs that were admitted while one ran here, which is told when that has ended."""

    @property
    def runs_a_job(self) -> bool:
        return self._rq_id is not None

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by who started us, it would leave nobody to wait for
        stop_observing(forks=True)  # before there is another thread, which is in Sentry's scope of this one then
        with self._session.used():
            super().bootstrap(*args, **kwargs)
        gc.collect()
        gc.freeze()  # what is loaded by now is never garbage; horses need not look at it, and so not copy it

    def execute_job(self, job: Job, queue: Queue) -> None:
        job.connection = self.impatient
        try:
            with self._noting_failure(), self._undisturbed(), self.charging_what_follows():
                self._execute(job, queue)
        finally:
            self._busy_with_bookkeeping = False  # as it was from when the job was taken

    def taken_run(self) -> SupervisedRun | None:
        run = super().taken_run()
        assert run is None or isinstance(run, SupervisedRun), "a run was taken that nobody supervises"
        return run

    def _execute(self, job: Job, queue: Queue) -> None:
        named = dispatch.named_by(job.id)
        began = time.monotonic()
        run, report = self.taken_run(), None
        if run is None:
            self.tell_untold()
        self.is_in_redis = run is None
        self.enqueue_dependents_aside(queue)
        try:
            if named and run is None:
                run = self._begin(*named)
            has_begun = run is not None and run.job is not None
            if run is not None and run.job is not None:
                self.tenant_queues[job] = run.job.tenant_queue_id
            else:
                self.begin_execution(job)
            try:
                self._hand_out(job, queue, run)
            except OSError as error:
                self._put_back(job, queue, run, error)
                return
            self._do_meanwhile(run)
            report = self._watch(job, began, announce=has_begun)
        except BaseException:
            self._take_back(job, queue, run, None, time.monotonic() - began)
            raise
        self._take_back(job, queue, run, report, time.monotonic() - began)

    def _begin(self, uuid: UUID, attempt: int) -> SupervisedRun:
        """Mark a job of ours as running here, where there is a session. One that is not to run the horse refuses.

        Its RQ id says which one it is. RQ leaves it to the horse to unpickle what is in Redis, and so do we.
        """
        run = self.new_run()
        with self._database(), collecting() as news:
            run.begin(uuid, attempt)
        self._tell(news, None)
        return run

    def new_run(self) -> SupervisedRun:
        return SupervisedRun(
            self.owner,
            self.witness,
            self.outbox,
            horse=self._horse.pid if self._horse is not None and not self._horse.child.has_ended() else 0,
            on_outage=lambda: self.sweeper.contact.broken(),
            free=self.free,
        )

    @contextmanager
    def _in_session(self) -> Iterator[None]:
        """For a moment. `look_at_clock` cuts the session of a database that does not answer at all.

        One that met an error is not used again: it may belong to a server, or a time, in which nobody may write.
        """
        self._asked_at = time.monotonic()
        try:
            with self._session.used():
                yield
        except PASSING:
            self._session.close()
            raise
        finally:
            self._asked_at = None

    def look_at_clock(self) -> None:
        asked_at = self._asked_at
        if asked_at is not None and time.monotonic() - asked_at > app_settings.LEASE_TTL / 4:
            self._session.cut()

    def _put_back(self, job: Job, queue: Queue, run: SupervisedRun | None, error: OSError) -> None:
        """No work-horse could be forked, which is no fault of the job: it goes back, and this worker waits."""
        known = logs.about(run.job) if run is not None and run.job is not None else logs.about_named(queue=queue.name)
        logger.error("no work-horse can be forked, job %s is put back: %s", job.id, error, extra=known)
        self._rq_id = None
        news: list[News] = []
        if run is not None and run.job is not None:
            self.looks_at_once = True  # so that `settle_up` tells of the slot, to whoever waits for one
            with self._database(), collecting() as news:
                run.put_back()
            self.keep_what_is_left()
        else:
            self._unless_redis_is_away(self._push_back, job, queue)
        self.settle_up()
        self.execution = None
        time.sleep(SECONDS_WITHOUT_HORSE)
        self._tell(news, None)

    def _push_back(self, job: Job, queue: Queue) -> None:
        """RQ would take an execution that it is not told the end of for one that was lost."""
        with self.connection.pipeline() as pipeline:
            if self.execution is not None:
                self.cleanup_execution(job, pipeline)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            queue.push_job_id(job.id, pipeline=pipeline, at_front=True)
            pipeline.execute()

    def _hand_out(self, job: Job, queue: Queue, run: SupervisedRun | None) -> None:
        """To the work-horse; to a new one if there is none, or it has died."""
        begun = self.execution
        execution = (begun.id, begun.created_at.timestamp()) if begun is not None else None
        order = Order(job.id, queue.name, execution)
        if run is not None and run.job is not None:
            order = Order(job.id, queue.name, execution, run.job, fields_of(job), run.began, not self.is_in_redis)
        with self._handing:
            self._rq_id = job.id
            if self._horse is not None and run is not None:
                self._leave_unbegun(run)
            if self._horse is None or not self._horse.can_take(order):
                self._horse = Horse(self.live_as_horse, order)
                if run is not None:
                    run.hand_over(self._horse.pid)
            self._horse_pid = self._horse.pid

    def _leave_unbegun(self, run: SupervisedRun) -> None:
        """What a job before has left may end the work-horse first, which is no fault of this one."""
        if run.job is not None:
            with suppress(OSError):
                self.outbox.put(run.job.token, NOT_BEGUN)

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
                self.tell_untold()  # while RQ has not heard of this one
                self._session.close()  # the heartbeats have one from now on; it takes little to open it for the end
                self._unless_redis_is_away(self.announce, job)
                self.heartbeats.look_now()  # a cancel that came before found nobody to stop the job
            pause = 1 / LOOKS_PER_SECOND
            if time.monotonic() - looked >= pause:
                looked = time.monotonic()
                self._look_around(job, looked - began)
        return report

    def _look_around(self, job: Job, seconds: float) -> None:
        """What a worker does while a job runs."""
        if _is_overdue(job, seconds) or self._is_kept_from_beginning(seconds):
            self.kill_horse()
        self.see_to_dependents()
        self.settle_kept()
        self.sweep()
        self.see_to_scheduler()
        self.show_presence()
        self.say_that_it_leaves()
        self.learn_of_suspension()
        if self.execution is not None and time.monotonic() >= self._next_rq_heartbeat:
            self._next_rq_heartbeat = time.monotonic() + self.job_monitoring_interval
            self._unless_redis_is_away(self.set_current_job_working_time, seconds)
            self._unless_redis_is_away(self.maintain_heartbeats, job)

    def _is_kept_from_beginning(self, seconds: float) -> bool:
        """Whether what a job before has left in the work-horse has kept it from a job of ours for half a lease.

        So long it may take to put sessions back, see `Horse.can_take`.
        """
        token = self.witness.read().token
        return bool(token) and seconds > app_settings.LEASE_TTL / 2 and self.outbox.take(token) == NOT_BEGUN

    def _take_back(
        self, job: Job, queue: Queue, run: SupervisedRun | None, report: Report | None, seconds: float
    ) -> None:
        """The job has run, its work-horse has died, or this worker is to end at once and takes the horse along."""
        with self._handing:
            self._rq_id, self._horse_pid = None, 0
        report = self._once_sent(self._if_begun(run, report))
        with self._parting_if_unfit(report) as status:
            if report is not None and report.met_outage:
                self.sweeper.contact.broken()
            waits = report is None or report.lingers or self._is_to_hear(report)
            self.looks_at_once = not waits and self.has_nothing_else_to_do()
            news = [*self._news, *self._end(job, run)]
            self._news = []
            decided = {} if report else {"state": self._decided(job, seconds), "was_interrupted": self._stop_requested}
            charge = run.charge if run is not None else None
            lost, since = run.job if run is not None else None, time.monotonic()
            if self.following is None and self.keep_what_is_left(seconds=charge, **decided):
                self.settle_and_wait(0 if report else SECONDS_FOR_A_SLOT)
                if lost is not None:
                    self.freed_aside(lost, queue, since)
            if report is not None and report.ended is not None and self._is_told_later(job, report.ended):
                self.keep_untold(Ended(job, queue, report.ended))
            else:
                self.tell_untold()
                self._tell_of(job, queue, report, status)
            if self.execution is not None:
                self.heartbeats.let_go()
            self.execution = None
            self.set_state("idle")
            self._tell(news, report)
            if report is not None and report.lingers and report.is_fit:
                self._let_linger()

    def _if_begun(self, run: SupervisedRun | None, report: Report | None) -> Report | None:
        """The report. Where the job was not begun one before has broken the work-horse: all would go back, for ever."""
        if report is None or run is None or run.job is None or self.outbox.take(run.job.token) != NOT_BEGUN:
            return report
        text = "a work-horse has not begun job %s, which goes back; another work-horse takes the next one"
        logger.error(text, run.job.uuid, extra=logs.about(run.job))
        return replace(report, is_fit=False)

    def _once_sent(self, report: Report | None) -> Report | None:
        """The report, as it is when a work-horse that parts has had a moment for what it does before."""
        horse = self._horse
        if horse is None or report is None or report.is_fit or not report.lingers or self._is_to_hear(report):
            return report
        horse.child.wait(SECONDS_TO_SEND)
        return replace(report, lingers=not horse.child.has_ended())

    @contextmanager
    def _parting_if_unfit(self, report: Report | None) -> Iterator[int | None]:
        """Dismiss a work-horse that is dead or unfit for another job; gives how it ended.

        Before all else: what it shares with us must not be copied when we write. Last where the project's receivers are
        to hear in it of the end, and where it has something else to do, for which no slot is kept.
        """
        if report is None or not (report.is_fit or report.lingers or self._is_to_hear(report)):
            yield self._dismiss(at_once=report is None)
            return
        yield None
        if not report.is_fit:
            self._dismiss()

    def _dismiss(self, *, at_once: bool = False) -> int | None:
        """The work-horse is not needed any more; returns how it ended."""
        horse, self._horse = self._horse, None
        if horse is None:
            return None
        if at_once:
            horse.child.end()
        horse.part(SECONDS_TO_EXIT)
        return horse.child.status

    def _end(self, job: Job, run: SupervisedRun | None) -> list[News]:
        """Record the end of a run of ours that the work-horse has left; returns what is to be told of it."""
        if run is None or run.job is None:
            return []
        outcome = self.outbox.take(run.job.token)
        if outcome is None:
            return []
        if outcome == NOT_BEGUN and self._stopped_job_id == job.id:
            outcome = STOPPED
            with suppress(OSError):
                self.outbox.put(run.job.token, outcome)  # should the database not take it at once
        news = self.hand_on(run, outcome)
        if news is None:
            with self._database(), collecting() as news:
                run.end(outcome)
        return news

    def _is_to_hear(self, report: Report | None) -> bool:
        """Whether the project has receivers for what follows from the end of a job, as far as one of us knows."""
        return bool(report and report.hears) or any(map(signals.heard_by_project, AFTER_THE_END))

    def _tell(self, news: list[News], report: Report | None) -> None:
        """Have receivers called by the work-horse; ours alone, which write the log, are called here."""
        if not news:
            return
        if not (self._is_to_hear(report) or is_of_task(news)):
            tell(news)
        elif self._horse is not None and self._horse.can_take(Tell(news)):
            self._wait_for(self._horse)
        else:
            aside_at_once(lambda: tell(news))

    def _tell_news(self, news: list[News]) -> None:
        """The work-horse has no ear for it while it runs a job."""
        if not (self.runs_a_job and news and (self._is_to_hear(None) or is_of_task(news))):
            self._tell(news, None)
        elif not self.tell_while_a_job_runs(news):
            self._news += news

    def _let_linger(self) -> None:
        """The next job is not taken before the work-horse is ready for it."""
        if self._horse is not None and self._horse.can_take(Tell([])):
            self._wait_for(self._horse)

    def _wait_for(self, horse: Horse) -> None:
        """Until it has done what it was told."""
        until = time.monotonic() + SECONDS_TO_TELL
        while (report := horse.report(1 / LOOKS_PER_SECOND)) is None:
            if horse.child.has_ended() or time.monotonic() > until:
                logger.error("what follows from the end of a job took too long, or ended its process")
                self._dismiss(at_once=True)
                return
            self.settle_kept()
            self.sweep()
        if not report.is_fit:
            self._dismiss()

    def _decided(self, job: Job, seconds: float) -> State | None:
        """What was done to the work-horse on purpose."""
        if self._stopped_job_id == job.id:
            return State.CANCELED
        if _is_overdue(job, seconds):
            return State.FAILED
        return None

    def settle_up(self) -> None:
        with self._undisturbed():
            super().settle_up()
            self.tell_untold()

    def _is_told_later(self, job: Job, how: RQEnd) -> bool:
        return self.looks_at_once and self.may_hear_later(job, how)

    def _tell_of(self, job: Job, queue: Queue, report: Report | None, status: int | None) -> None:
        with self.telling_what_it_can():
            if report is None:
                self._unless_redis_is_away(self._tell_rq_of_death, job, queue, status)
            elif report.ended is not None:
                self._unless_redis_is_away(self.tell_rq, Ended(job, queue, report.ended))

    def _do_meanwhile(self, run: SupervisedRun | None) -> None:
        """What can wait until the work-horse has something to do. No error of it ends a job that runs."""
        tell_order = partial(self._tell_order, run)
        for do in (tell_order, self.tell_untold_if_due, self.see_to_dependents, self.learn_of_suspension):
            try:
                do()
            except Exception:
                known = logs.about(run.job) if run is not None and run.job is not None else logs.about()
                logger.exception("what was left to be done after a job was handed out has failed", extra=known)

    def _tell_order(self, run: SupervisedRun | None) -> None:
        if run is not None and run.leaving is not None and (rooms := run.leaving()):
            self._feed_others(partial(transitions.feed_each, rooms))

    def _tell_rq_of_death(self, job: Job, queue: Queue, status: int | None) -> None:
        was_stopped = self._stopped_job_id == job.id
        self.tell_rq_of_death(job, queue, status)
        if was_stopped and job._stopped_callback_name:
            aside_at_once(lambda: job.execute_stopped_callback(self.death_penalty_class))

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
            if self.runs_a_job and self._horse is not None:
                self._horse.child.kill(*args)

    def wait_for_horse(self) -> tuple[None, None, None]:
        """Called by RQ after it has killed the horse, when the worker is to end at once."""
        if self._horse is not None:
            self._horse.child.end()
        return None, None, None

    def _part(self) -> None:
        if self.is_horse:
            return
        super()._part()
        self._dismiss()
        self._session.close()


def _is_overdue(job: Job, seconds: float) -> bool:
    """Whether a work-horse that has run the job for so many seconds did not end itself at its timeout."""
    return bool(job.timeout and 0 < job.timeout <= seconds - GRACE_AFTER_TIMEOUT)
