"""What a worker of ours is in its work-horse: it runs one job after the other as it is told."""

from __future__ import annotations

import contextvars
import logging
import os
import random
import sys
import time
from datetime import UTC, datetime
from typing import Any

from rq.defaults import UNSERIALIZABLE_RETURN_VALUE_PAYLOAD
from rq.exceptions import NoSuchJobError
from rq.executions import Execution
from rq.job import Job, JobStatus, _job_stack
from rq.queue import Queue
from rq.timeouts import JobTimeoutException
from rq.utils import now
from rq.worker import BaseWorker

from tenant_slots import dispatch, garbage, logs, parting, signals
from tenant_slots.db import leftovers
from tenant_slots.db.leftovers import note_sessions, ways_of_all
from tenant_slots.models import TenantJob
from tenant_slots.news import tell
from tenant_slots.owners import Owner
from tenant_slots.running.coroutines import has_left_loop, in_same_loop
from tenant_slots.running.deliveries import failure_text
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.run import Run, WatchedRun
from tenant_slots.running.supervised import RiddenRun
from tenant_slots.tasks import attempts
from tenant_slots.witness import Witness
from tenant_slots.workers import output
from tenant_slots.workers.baseline import Baseline
from tenant_slots.workers.horses import Order, Reins, Report, RQEnd, Tell
from tenant_slots.workers.inheritance import die_with
from tenant_slots.workers.sessions import close_ended_sessions, leave_transactions, restore_sessions
from tenant_slots.workers.unobserved import observed, stop_observing

logger = logging.getLogger("tenant_slots")

RESULT_BYTES = 64 * 1024 * 1024
"""Largest result that goes through a worker to RQ. The worker needs seven times as much memory for that moment."""

AFTER_THE_END = ("job_ended", "job_put_back", "jobs_admitted")
"""The signals of what follows from the end of a job."""


class RidingWorker(BaseWorker):
    """The part of a worker that lives in the work-horse.

    It calls the function of a job of ours and reports to the worker, which marks the job as running, records its end
    and keeps RQ's records of it: see `records`. Plain RQ jobs are treated as RQ does.
    """

    owner: Owner
    witness: Witness
    outbox: Outbox

    @property
    def jobs_per_horse(self) -> int:
        raise NotImplementedError

    def live_as_horse(self, reins: Reins) -> None:
        """What the forked process does, until its worker hangs up."""
        self._become_horse()
        with parting.granting_wishes():
            self._run_job_after_job(reins)

    def _run_job_after_job(self, reins: Reins) -> None:
        note_sessions()
        process, worker, ways, jobs = os.getpid(), os.getppid(), ways_of_all(), 0
        baseline = Baseline() if self.jobs_per_horse > 1 else None
        while (order := reins.next_order()) is not None:
            jobs += isinstance(order, Order)
            close_ended_sessions()
            context = contextvars.copy_context()
            with in_same_loop():
                ended = context.run(self._obey, order)
                if os.getpid() != process:
                    return  # a child that a job has forked, and that fell through to here
                with garbage.left_in_time():
                    del context  # with what the job has put there, which ends now
            has_flushed = output.flush()
            job = order.job if isinstance(order, Order) else None
            may_go_on = jobs < self.jobs_per_horse and not self._timed_out and has_flushed
            is_fit = may_go_on and baseline is not None and _is_as_before(baseline, job)
            if os.getpid() != process:
                return  # or that what it has left has forked
            has_left_block = leave_transactions(ways, job)
            is_fit = is_fit and not has_left_block
            hears = any(map(signals.heard_by_project, AFTER_THE_END)) or (job is not None and attempts.is_call(job))
            lingers = parting.has_wishes(parts=not is_fit)
            reins.report(Report(ended, is_fit, self._met_outage, hears, lingers))
            if is_fit:
                self._make_ready(worker)
            elif not hears:
                return  # nobody needs it any more but what it wishes for, and its worker waits until it has ended

    def _make_ready(self, worker: int) -> None:
        """For the next job, while the worker records the end of the last one."""
        restore_sessions()
        leftovers.forget_queries()
        self.connection.connection_pool.disconnect()  # a job may have selected another database on one of these
        die_with(worker)  # the kernel forgets it where a job has changed its user or group for a while

    def _become_horse(self) -> None:
        """As RQ's main_work_horse."""
        random.seed()
        stop_observing()
        self._is_horse = True
        self._timed_out = self._met_outage = False

    @observed()
    def _obey(self, order: Order | Tell) -> RQEnd | None:
        if isinstance(order, Tell):
            tell(order.news)
            parting.grant_soon()
        elif order.job is not None:
            return self._perform_ours(order, order.job)
        else:
            self._perform_as_rq(order)
        return None

    def _perform_ours(self, order: Order, ours: TenantJob) -> RQEnd:
        """Call the function as RQ's perform_job does, and leave all records to the worker."""
        self._tell_environment(order)
        job = self.job_class(order.rq_id, connection=self.connection)
        vars(job).update(order.rq_fields or {}, serializer=self.serializer)  # which it need not find to be one again
        vars(job).update(_call_of(ours))
        self._run_of(order).hand_to(job)
        job.worker_name = self.name
        job.started_at = job.last_heartbeat = now()
        failure: BaseException | None = None
        try:
            timeout = job.timeout or self.queue_class.DEFAULT_TIMEOUT
            with self.death_penalty_class(timeout, JobTimeoutException, job_id=job.id):
                result = _performed(job)
        except BaseException as error:
            failure = error
            self._hand_to_handlers(job, ours, *sys.exc_info())
        if failure is not None:
            with garbage.left_in_time():
                failure = None  # with what its frames hold, which ends now
            return RQEnd(job.started_at.timestamp(), time.time(), failure_text(str(ours.uuid)))
        kept = b"" if result is None else self._serialized(result, ours)
        return RQEnd(job.started_at.timestamp(), time.time(), None, kept)

    def _hand_to_handlers(self, job: Job, ours: TenantJob, *error: Any) -> None:
        """As RQ does. Who looks at the job's status, as Sentry does, must not ask Redis, which has never heard of it.

        How the job ended is known by now: a handler that fails is no reason for the work-horse to end.
        """
        job._status = JobStatus.FAILED
        try:
            self.handle_exception(job, *error)
        except Exception:
            logger.exception("a handler of errors has failed", extra=logs.about(ours))

    def _serialized(self, result: Any, ours: TenantJob) -> bytes:
        """As RQ does it, which keeps a sentence in place of what cannot be serialized; or is too large for a worker."""
        try:
            serialized: bytes = self.serializer.dumps(result)
        except Exception:
            return self._without_result()
        if len(serialized) > RESULT_BYTES:
            text = "RQ does not keep the result of job %s: of its %s bytes a worker passes on at most %s"
            logger.warning(text, ours.uuid, len(serialized), RESULT_BYTES, extra=logs.about(ours))
            return self._without_result()
        return serialized

    def _without_result(self) -> bytes:
        sentence: bytes = self.serializer.dumps(UNSERIALIZABLE_RETURN_VALUE_PAYLOAD)
        return sentence

    def _perform_as_rq(self, order: Order) -> None:
        """A plain RQ job, or one of ours that is not to run."""
        queue = next(queue for queue in self.queues if queue.name == order.queue)
        self._tell_environment(order)
        self.execution = self._execution(order)
        try:
            job = self.job_class.fetch(order.rq_id, connection=self.connection, serializer=self.serializer)
        except NoSuchJobError:  # it was canceled, or deleted, since the worker took it
            self._forget_execution(order)
            return
        job.redis_server_version = self.get_redis_server_version()  # type: ignore[no-untyped-call]
        self._run_of(order).hand_to(job)
        self.perform_job(job, queue)

    def _forget_execution(self, order: Order) -> None:
        """What the worker has begun for a job that RQ has no more."""
        job = self.job_class(order.rq_id, connection=self.connection, serializer=self.serializer)
        job.origin = order.queue
        with self.connection.pipeline() as pipeline:
            self.cleanup_execution(job, pipeline)
            pipeline.execute()

    def _tell_environment(self, order: Order) -> None:
        os.environ["RQ_WORKER_ID"], os.environ["RQ_JOB_ID"] = self.name, order.rq_id
        self._met_outage = False

    def _run_of(self, order: Order) -> Run:
        """A plain RQ job, or one of ours that is not to run, finds out here whether it gets a slot."""
        if order.job is not None:
            return RiddenRun(self.name, order.job, self.outbox, began=order.began, was_taken=order.was_taken)
        return WatchedRun(self.owner, self.witness, self.outbox, horse=os.getpid(), on_outage=self._note_outage)

    def _note_outage(self) -> None:
        self._met_outage = True

    def _execution(self, order: Order) -> Execution | None:
        """What the worker has begun for a plain RQ job."""
        if order.execution is None:
            return None
        name, created = order.execution
        execution = Execution(name, order.rq_id, self.connection, self.name)
        execution.created_at = datetime.fromtimestamp(created, tz=UTC)
        return execution

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """In the work-horse, of a job of ours, only where it is not to run.

        Its id does not tell it from a plain one, whose id anybody may choose.
        """
        if not dispatch.is_ours(job.id) or job.func_name != dispatch.RUNNER:
            super().prepare_job_execution(job, remove_from_intermediate_queue)

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        if dispatch.is_ours(job.id):
            job.ended_at = now()
        else:
            super().handle_execution_ended(job, queue, heartbeat_ttl)

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        self._timed_out = isinstance(exc_info[1], JobTimeoutException)
        super().handle_exception(job, *exc_info)


def _call_of(job: TenantJob) -> dict[str, Any]:
    """What RQ's object calls: known here, whatever is in Redis, and with whichever serializer that was written."""
    return {"_func_name": dispatch.RUNNER, "_args": (str(job.uuid), job.attempt), "_kwargs": {}, "_instance": None}


def _is_as_before(baseline: Baseline, job: TenantJob | None) -> bool:
    """Put back what a job has changed of this process, and end what is then nobody's, before its sessions are put back.

    False where that cannot be done.
    """
    if not baseline.is_restorable(job):
        return False
    try:
        with garbage.in_time():  # until signals are put back, which is after what may take long
            baseline.let_go()
        with in_same_loop():
            garbage.collect_between_jobs()
        baseline.restore()  # what was collected may have changed something in its turn
    except Exception:
        logger.exception("what a job has changed cannot be put back", extra=logs.about(job))
        return False
    return not has_left_loop()


def _performed(job: Job) -> Any:
    """As RQ's perform (2.12), but for Redis, which need not keep what it may not have, and may be away by now.

    Where the project has a class of jobs with another one, or something that watches jobs has put its own around RQ's,
    that is called.
    """
    perform = type(job).perform
    if perform.__module__ != Job.__module__ or hasattr(perform, "__wrapped__"):
        return job.perform()
    _job_stack.push(job)  # type: ignore[no-untyped-call]
    try:
        job._result = job._execute()
    finally:
        _job_stack.pop()  # type: ignore[no-untyped-call]
    return job._result
