"""What a worker of ours is in its work-horse: it runs one job after the other as it is told."""

from __future__ import annotations

import contextvars
import logging
import os
import random
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from django.db import Error, connections
from rq.executions import Execution
from rq.job import Job
from rq.queue import Queue
from rq.timeouts import JobTimeoutException
from rq.utils import now
from rq.worker import BaseWorker

from tenant_slots import dispatch
from tenant_slots.conf import app_settings
from tenant_slots.owners import Owner
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.run import WatchedRun
from tenant_slots.witness import Witness
from tenant_slots.workers.baseline import Baseline, resident_bytes
from tenant_slots.workers.horses import Order, Reins, Report

logger = logging.getLogger("tenant_slots")


class RidingWorker(BaseWorker):
    """The part of a worker that lives in the work-horse. RQ's records of a job of ours are fewer there.

    What nobody reads is left out: that a job began and ended within moments, and the heartbeats of such a one. A job
    that lasts is announced by the worker, and by RQ's own means. Plain RQ jobs are treated as RQ does.
    """

    owner: Owner
    witness: Witness
    outbox: Outbox

    @property
    def jobs_per_horse(self) -> int:
        raise NotImplementedError

    def live_as_horse(self, reins: Reins) -> None:
        """What the forked process does, until it is not needed any more or not fit for another job."""
        self._become_horse()
        baseline = Baseline()
        process = os.getpid()
        left = self.jobs_per_horse
        while (order := reins.next_order()) is not None:
            job = contextvars.copy_context().run(self._perform, order)
            if os.getpid() != process:
                return  # a child that the job has forked, and that fell through to here
            left -= 1
            is_fit = left > 0 and not self._timed_out and _is_small() and threading.active_count() <= baseline.threads
            if is_fit:
                baseline.restore()
            status = job.get_status(refresh=False)
            reins.report(Report(status.value if status else "", is_fit, self._met_outage))
            if not is_fit:
                return

    def _become_horse(self) -> None:
        """As RQ's main_work_horse, and with a session of its own."""
        random.seed()
        self._is_horse = True
        self._timed_out = self._met_outage = False
        with suppress(Error):  # the job's start waits for a database that is away
            connections[app_settings.DATABASE].ensure_connection()

    def _perform(self, order: Order) -> Job:
        queue = next(queue for queue in self.queues if queue.name == order.queue)
        os.environ["RQ_WORKER_ID"], os.environ["RQ_JOB_ID"] = self.name, order.rq_id
        self._met_outage = False
        job = self.job_class.fetch(order.rq_id, connection=self.connection, serializer=self.serializer)
        job.redis_server_version = self.get_redis_server_version()  # type: ignore[no-untyped-call]
        self.execution = self._execution(order)
        run = WatchedRun(self.owner, self.witness, self.outbox, in_horse=True, on_outage=self._note_outage)
        run.hand_to(job)
        self.perform_job(job, queue)
        return job

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
        if not _is_ours(job):
            super().prepare_job_execution(job, remove_from_intermediate_queue)

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        if _is_ours(job):
            job.ended_at = now()
        else:
            super().handle_execution_ended(job, queue, heartbeat_ttl)

    def cleanup_execution(self, job: Job, pipeline: Any) -> None:
        """Called by RQ whenever it records an end. In the work-horse nothing is announced of a job of ours."""
        if self.is_horse and _is_ours(job):
            pipeline.lrem(Queue(job.origin, connection=self.connection).intermediate_queue_key, 1, job.id)
        else:
            super().cleanup_execution(job, pipeline)

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        self._timed_out = isinstance(exc_info[1], JobTimeoutException)
        super().handle_exception(job, *exc_info)


def _is_ours(job: Job) -> bool:
    return dispatch.named_by(job.id) is not None


def _is_small() -> bool:
    limit = app_settings.HORSE_MAX_RSS
    return limit is None or resident_bytes() <= limit
