"""The worker without work-horses: for tests, and for platforms that cannot fork."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from rq.job import Job
from rq.queue import Queue
from rq.utils import now
from rq.worker import SimpleWorker

from tenant_slots import dispatch, fair_order, garbage, logs
from tenant_slots.db.leftovers import note_sessions, ways_of_all
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.parting import grant_soon, granting_wishes
from tenant_slots.running.coroutines import in_same_loop
from tenant_slots.running.run import WatchedRun
from tenant_slots.workers import output
from tenant_slots.workers.heartbeats import Token
from tenant_slots.workers.presence import Presence
from tenant_slots.workers.sessions import (
    close_ended_sessions,
    end_thread_of_coroutines,
    leave_transactions,
    restore_sessions,
)
from tenant_slots.workers.turns import TurnTakingWorker

logger = logging.getLogger("tenant_slots")


class TenantSimpleWorker(TurnTakingWorker, SimpleWorker):
    """RQ's worker without a fork. It runs jobs, sweeps and calls receivers in one process and thread.

    Of what a job changes in this process, only the database sessions are put back: its own work needs them.
    """

    _ends_at_once = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.presence = Presence(partial(self._if_redis_answers, self._say_that_it_runs_a_job))

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        note_sessions()  # before any code of a job
        super().bootstrap(*args, **kwargs)
        self.presence.start()

    def request_force_stop(self, *args: Any) -> None:
        """Called in the midst of a job's function, perhaps: RQ's own error would be taken for one of the job."""
        try:
            super().request_force_stop(*args)
        except SystemExit as error:
            self._ends_at_once = True
            raise EndedAtOnce from error

    def work(self, *args: Any, **kwargs: Any) -> bool:
        try:
            with granting_wishes():
                return super().work(*args, **kwargs)
        finally:
            gc.unfreeze()  # for whoever goes on in this process, as a test does

    def execute_job(self, job: Job, queue: Queue) -> None:
        taken = self.taken_run()
        try:
            with self._noting_failure(), self.charging_what_follows(), self.presence.shown():
                self._execute(job, queue, taken)
                grant_soon()
        finally:
            output.flush()
            self._busy_with_bookkeeping = False  # as it was from when the job was found

    def _say_that_it_runs_a_job(self) -> None:
        """Called by a thread of its own. RQ keeps the record for the job's timeout, or 7 minutes if it has none."""
        fair_order.show_presence(self.key, self.queue_names())
        self.register_again_if_forgotten()
        with self.impatient.pipeline() as pipeline:
            self.heartbeat(pipeline=pipeline)
            pipeline.execute()

    def _execute(self, job: Job, queue: Queue, taken: WatchedRun | None) -> None:
        if taken is not None:
            self._unless_redis_is_away(job.save)
        (taken or self.new_run()).hand_to(job)
        ways = ways_of_all()
        close_ended_sessions()
        try:
            with in_same_loop():
                super().execute_job(job, queue)
        finally:
            with in_same_loop():
                garbage.collect_between_jobs()
            leave_transactions(ways)
            end_thread_of_coroutines()
            restore_sessions()  # which what is left is then recorded in, too
            self.keep_what_is_left(was_interrupted=self._ends_at_once)

    def prepare_execution(self, job: Job) -> Any:
        self.begin_execution(job)

    def prepare_job_execution(self, job: Job, *args: Any, **kwargs: Any) -> None:
        """A job of ours, which may be marked as running already, needs no Redis to run."""
        prepare = partial(super().prepare_job_execution, job, *args, **kwargs)
        if dispatch.is_ours(job.id):
            self._unless_redis_is_away(prepare)
        else:
            prepare()

    def perform_job(self, job: Job, queue: Queue) -> bool:
        """What RQ does once the end is told must end no worker: it has `str()` called on the result, for its log."""
        try:
            return super().perform_job(job, queue)
        except RedisError:
            raise
        except Exception:
            logger.exception("what follows from the end of job %s for RQ has failed", job.id, extra=logs.about_named())
            return False

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Called by RQ when the function has returned or raised, before it tells Redis or anybody else (RQ 2.12).

        A child that a job has forked, and that fell through to here, would go on as a second worker of this name.
        """
        if os.getpid() != self.owner.pid:
            os._exit(0)
        job.ended_at = now()
        self._unless_redis_is_away(super().handle_execution_ended, job, queue, heartbeat_ttl)

    def handle_job_success(self, job: Job, *args: Any, **kwargs: Any) -> None:
        self._tell_end(job, partial(super().handle_job_success, job, *args, **kwargs))

    def handle_job_failure(self, job: Job, *args: Any, **kwargs: Any) -> None:
        self._tell_end(job, partial(super().handle_job_failure, job, *args, **kwargs))

    def _tell_end(self, job: Job, tell: Callable[[], object]) -> None:
        """RQ would take a Redis that is away, or takes no writes, for an error of the job, and end the worker.

        Of a plain RQ job nobody else knows that it has ended: it is told as patiently as RQ does.
        """
        if dispatch.is_ours(job.id):
            self._unless_redis_is_away(tell)
            return
        try:
            tell()
        except RedisError as error:
            text = "Redis could not be told the end of plain RQ job %s: %s"
            logger.error(text, job.id, error, extra=logs.about_named(queue=job.origin))

    @contextmanager
    def _in_session(self) -> Iterator[None]:
        """In the project's session, which jobs use too, and which may have been idle for long."""
        close_ended_sessions()
        yield

    def new_run(self) -> WatchedRun:
        """For the next job; an outage that it meets is this worker's, which then calls no owner stale for a lease."""
        return WatchedRun(self.owner, self.witness, self.outbox, on_outage=self.sweeper.contact.broken, free=self.free)

    def end_run(self, run: Token) -> None:
        """Without a work-horse, the only way to end a run is to end this process."""
        if self.is_executing(run):
            os.kill(os.getpid(), signal.SIGKILL)

    def _part(self) -> None:
        super()._part()
        self.presence.stop()
