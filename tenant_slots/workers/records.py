"""What RQ is told of a job of ours: enough for its pages, its stop command and its results, and no more.

RQ writes some forty commands for each job. Those that nobody reads of a job of ours are left out: that it began and
ended within moments, and the heartbeats of such a one. Of several ends it is told together, moments later, while other
jobs are under way. Written against RQ 2.12.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from rq.exceptions import InvalidJobOperation
from rq.job import UNEVALUATED, Job, JobStatus
from rq.queue import Queue
from rq.results import Result
from rq.utils import utcformat

from tenant_slots import dispatch, logs, rq_copies
from tenant_slots.workers.base import SweepingWorker
from tenant_slots.workers.horses import RQEnd

logger = logging.getLogger("tenant_slots")

UNTOLD_FOR = 0.05
"""Seconds for which RQ may not be told of an end, while further jobs take a few milliseconds each."""

MOST_UNTOLD = 10
"""Ends of which RQ is not told yet."""


class Ended(NamedTuple):
    """A job whose function has ended, in which queue of RQ's, and how."""

    job: Job
    queue: Queue
    how: RQEnd


class RecordingWorker(SweepingWorker):
    """The part of a worker that keeps RQ's records of jobs of ours."""

    is_in_redis = True
    """Whether RQ has the job that is executed. One that the worker has taken by itself is stored when it lasts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._untold: list[Ended] = []
        """Of which RQ is still to be told."""
        self._tells_at = 0.0

    def announce(self, job: Job) -> None:
        """It runs, and has lasted for a moment: for RQ's pages, and so that a stop command finds this worker."""
        self._store(job)
        self.prepare_execution(job)
        with self.connection.pipeline() as pipeline:
            self.set_current_job_id(job.id, pipeline=pipeline)
            job.prepare_for_execution(self.name, pipeline=pipeline)
            pipeline.execute()

    def tell_rq(self, ended: Ended) -> None:
        """It has ended. What it returned is passed on as it is: loading it would import modules of the project."""
        job, queue, how = ended
        if how.error is None:
            self.tell_rq_of_successes([ended])
            return
        _note_end(job, how)
        self._store(job)
        self.handle_job_failure(job, queue=queue, exc_string=how.error)

    def may_hear_later(self, job: Job, how: RQEnd) -> bool:
        """Whether RQ may be told of an end when other jobs are under way, which then need not wait for it.

        Of one that RQ has never heard of, with a result that it keeps. What it does otherwise is said of the job that
        is executed.
        """
        return not self.is_in_redis and how.error is None and self._keeps_result(job)

    def keep_untold(self, ended: Ended) -> None:
        """RQ is told of it later; see `may_hear_later`."""
        if not self._untold:
            self._tells_at = time.monotonic() + UNTOLD_FOR
        self._untold.append(ended)

    def tell_untold_if_due(self) -> None:
        """A round trip for each would take longer than a short job does."""
        if len(self._untold) >= MOST_UNTOLD or time.monotonic() >= self._tells_at:
            self.tell_untold()

    def tell_untold(self) -> None:
        untold, self._untold = self._untold, []
        if untold:
            with self.telling_what_it_can():
                self._unless_redis_is_away(self.tell_rq_of_successes, untold)

    @contextmanager
    def telling_what_it_can(self) -> Iterator[None]:
        """What RQ cannot be told, as where there is no room for a large result, ends no worker."""
        try:
            yield
        except Exception:
            logger.exception("RQ could not be told how jobs have ended")

    def _keeps_result(self, job: Job) -> bool:
        return job.get_result_ttl(self.default_result_ttl) != 0

    def tell_rq_of_death(self, job: Job, queue: Queue, status: int | None) -> None:
        """Its work-horse has died, as RQ's monitor_work_horse says it, but for the callback of a stopped job."""
        self._store(job)
        try:
            known = job.get_status()
        except InvalidJobOperation:  # somebody has deleted it
            return
        if not dispatch.is_ours(job.id):
            self.connection.lrem(queue.intermediate_queue_key, 1, job.id)  # it may have died before it had begun
            rq_copies.keep_latest(job)
        if self._stopped_job_id == job.id:
            self.handle_job_failure(job, queue=queue, exc_string="Job stopped by user, work-horse terminated.")
        elif known not in (JobStatus.FINISHED, JobStatus.FAILED):
            self.handle_work_horse_killed(job, None, status, None)  # type: ignore[no-untyped-call]
            self.handle_job_failure(job, queue=queue, exc_string=f"Work-horse terminated unexpectedly: {status}")

    def cleanup_execution(self, job: Job, pipeline: Any) -> None:
        """Called by RQ whenever it records an end. A job of ours that was not announced has no execution."""
        is_ours = dispatch.is_ours(job.id)
        if is_ours and self.is_in_redis:
            pipeline.lrem(Queue(job.origin, connection=self.connection).intermediate_queue_key, 1, job.id)
        if self.execution is not None or not is_ours:
            super().cleanup_execution(job, pipeline)

    def _store(self, job: Job) -> None:
        if not self.is_in_redis:
            with self.connection.pipeline() as pipeline:
                pipeline.hset(job.key, mapping=self._fields(job, pipeline))
                pipeline.execute()
            self.is_in_redis = True

    def _fields(self, job: Job, pipeline: Any) -> Any:
        """Of a job that RQ does not have. What its function has saved as its meta meanwhile stays."""
        if job.meta:
            pipeline.hsetnx(job.key, "meta", self.serializer.dumps(job.meta))
        return job.to_dict(include_meta=False)

    def tell_rq_of_successes(self, ended: Sequence[Ended]) -> None:
        """As RQ's handle_job_success, of all in one transaction.

        Who depends on a job is read in the transaction that says it is finished. They are enqueued later, as RQ reads
        for that what the project has pickled.
        """
        commands: list[int] = []
        with self.connection.pipeline() as pipeline:
            for job, queue, how in ended:
                _note_end(job, how)
                self._write_success(job, queue, pipeline)
                pipeline.smembers(job.dependents_key)
                commands.append(len(pipeline))
            answers = pipeline.execute()
        for (job, queue, _), command in zip(ended, commands, strict=True):
            if answers[command - 1]:
                queue.enqueue_dependents(job)
            text = "Successfully completed %s in %ss on worker %s"
            self.log.info(text, job.description, _time_of(job), self.name, extra=_about(job, queue))

    def _write_success(self, job: Job, queue: Queue, pipeline: Any) -> None:
        ttl = job.get_result_ttl(self.default_result_ttl)
        job._status = JobStatus.FINISHED
        self._write_end(job, pipeline)
        if ttl:
            self._write_result(job, queue, ttl, pipeline)
        self.cleanup_execution(job, pipeline)
        self.increment_successful_job_count(pipeline=pipeline)
        self.increment_total_working_time(_time_of(job), pipeline)
        if ttl > 0:
            pipeline.expire(job.key, ttl)
        elif ttl == 0:
            pipeline.delete(job.key, job.dependencies_key, job.execution_registry.key)

    def _write_end(self, job: Job, pipeline: Any) -> None:
        fields = {
            **({} if self.is_in_redis else self._fields(job, pipeline)),
            "status": JobStatus.FINISHED.value,
            "worker_name": self.name,
            "started_at": utcformat(job.started_at),  # type: ignore[arg-type]
            "ended_at": utcformat(job.ended_at),  # type: ignore[arg-type]
        }
        pipeline.hset(job.key, mapping=fields)

    def _write_result(self, job: Job, queue: Queue, ttl: int, pipeline: Any) -> None:
        queue.finished_job_registry.add(job, ttl, pipeline)
        Result.create(
            job,
            Result.Type.SUCCESSFUL,
            ttl=ttl,
            return_value=job._result,
            worker_name=self.name,
            pipeline=pipeline,
            execution_started_at=job.started_at,
            execution_ended_at=job.ended_at,
        )


def _about(job: Job, queue: Queue) -> dict[str, Any]:
    """Nobody completes a record of RQ's logger: it has all fields of ours, or none."""
    uuid, attempt = dispatch.named_by(job.id) or (None, None)
    return logs.about_named(queue=queue.name, job=uuid and str(uuid), attempt=attempt)


def _note_end(job: Job, how: RQEnd) -> None:
    job.started_at, job.ended_at = (datetime.fromtimestamp(at, UTC) for at in (how.started_at, how.ended_at))
    job.serializer, job._result = _AlreadySerialized, how.result or None


def _time_of(job: Job) -> timedelta:
    return job.ended_at - job.started_at  # type: ignore[operator]


def fields_of(job: Job) -> dict[str, Any]:
    """What RQ's object holds; what was not looked at yet its class looks up again."""
    own = ("connection", "serializer", "log")
    return {name: value for name, value in vars(job).items() if value is not UNEVALUATED and name not in own}


class _AlreadySerialized:
    """In place of RQ's serializer."""

    loads = staticmethod(bytes)
    dumps = staticmethod(lambda value: value or b"")
