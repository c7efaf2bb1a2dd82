"""The worker with a fresh work-horse for each job."""

from __future__ import annotations

import gc
import logging
import mmap
import time
from contextlib import suppress
from typing import Any

from django.db import Error, connections
from redis.exceptions import RedisError
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.worker import Worker

from tenant_slots import dispatch
from tenant_slots.conf import app_settings
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import lost_runs
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.run import HorsesRun
from tenant_slots.running.witness import Phase, Witness
from tenant_slots.tasks.registry import registered, resolve
from tenant_slots.workers.base import SweepingWorker
from tenant_slots.workers.horses import (
    close_what_cannot_be_inherited,
    die_with,
    forget_inherited_connections,
    wait_for_exit,
)
from tenant_slots.workers.lease import Lease

logger = logging.getLogger("tenant_slots")

GRACE_AFTER_TIMEOUT = 60
"""Seconds after a job's timeout when RQ kills a work-horse that did not end itself (RQ 2.12, monitor_work_horse)."""


class TenantWorker(SweepingWorker, Worker):
    """RQ's forking worker, which keeps a connection to the database that its work-horses then need not open.

    It starts a job before the fork and records its end after it, renews its lease meanwhile, and gives the slot back
    the moment a work-horse dies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.current = self.new_run()
        self.outbox = Outbox()
        self.job_monitoring_interval = max(1, int(app_settings.BEAT_INTERVAL))
        self.lease = Lease(self.witness, self.kill_horse)
        self._next_heartbeat = self._next_suspension_check = 0.0

    def _new_witness(self) -> Witness:
        """In memory that the work-horses share."""
        return Witness(mmap.mmap(-1, Witness.layout.size))

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        gc.collect()
        gc.freeze()  # what is loaded by now is never garbage; horses need not look at it, and so not copy it

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ sends three heartbeats around every job for a record that lives for a minute; once a second is enough."""
        now = time.monotonic()
        if timeout is not None or pipeline is not None or now >= self._next_heartbeat:
            self._next_heartbeat = now + 1
            super().heartbeat(timeout, pipeline)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """RQ says twice after every job that the worker is idle."""
        if pipeline is not None or state != self.get_state():
            super().set_state(state, pipeline)

    def check_for_suspension(self, burst: bool) -> None:
        """RQ asks before every job whether ``rq suspend`` was called; once a second is enough."""
        now = time.monotonic()
        if now >= self._next_suspension_check:
            self._next_suspension_check = now + 1
            super().check_for_suspension(burst)

    def execute_job(self, job: Job, queue: Queue) -> None:
        with self._undisturbed():
            self._execute(job, queue)

    def _execute(self, job: Job, queue: Queue) -> None:
        began = time.monotonic()
        self.lease.renewed()
        self.outbox.empty()
        self._begin(job)
        try:
            super().execute_job(job, queue)
        finally:
            # Also when RQ gives up because it has lost Redis: what has ended is to be recorded all the same.
            self._end_horse()
            self._settle(job, seconds=time.monotonic() - began)

    def _begin(self, job: Job) -> None:
        """Start a job of ours here, where there is a connection. A refused one is left to the horse to refuse.

        Its RQ id says which one it is. RQ leaves it to the horse to unpickle what is in Redis, and so do we.
        """
        self.witness.idle()
        self.current = self.new_run()
        named = dispatch.named_by(job.id)
        if named and self.current.begin(*named) and self.current.job:
            _import_once(self.current.job.task)

    def _end_horse(self) -> None:
        """A horse that RQ stopped watching before it ended would go on without a worker."""
        if self.horse_pid:
            self.kill_horse()
            self.wait_for_horse()
            self._horse_pid = 0

    def _settle(self, job: Job, seconds: float) -> None:
        started = self.current.job
        outcome = self.outbox.take(started.token) if started is not None else None
        if outcome is not None:
            self.current.end(outcome)
        elif self.witness.read()[2] is not Phase.IDLE:
            self._recover_slot(job, seconds)
        self.current.is_over()

    def kill_horse(self, *args: Any, **kwargs: Any) -> None:
        """RQ forgets the pid of a horse that has ended, and would then kill the group of process 0: our own (RQ 2.12).

        A second stop command for a job may come in that very moment, as two clicks on Cancel send it.
        """
        if self.horse_pid:
            super().kill_horse(*args, **kwargs)

    def wait_for_horse(self) -> Any:
        """As RQ, with a look once a second at what signals came.

        After SIGSTOP and SIGCONT the kernel may give RQ's alarm to RQ's pubsub thread. Python then keeps it for the
        main thread, which sleeps in wait4 and would send no heartbeat any more.
        """
        wait_for_exit(self.horse_pid)
        return super().wait_for_horse()

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        close_what_cannot_be_inherited()
        super().fork_work_horse(job, queue)

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        die_with(self.pid)
        forget_inherited_connections()
        run = self.current if self.current.job is None else HorsesRun(self.current, self.outbox)
        run.hand_to(job)
        super().main_work_horse(job, queue)

    def maintain_heartbeats(self, job: Job) -> None:
        """Called by RQ while a horse runs, every `job_monitoring_interval` seconds."""
        try:
            super().maintain_heartbeats(job)
        except RedisError as error:
            logger.warning("Redis is out of reach, the running job goes on: %s", error)
        if not self.lease.beat():
            self.sweeper.contact.broken()
        elif self.lease.is_canceled():
            self.kill_horse()  # RQ's stop command has not reached it: a FLUSHALL took the record that it needs
        self.sweeper.sweep_if_due()

    def set_current_job_working_time(self, current_job_working_time: float, pipeline: Any = None) -> None:
        """Called by RQ before each of the above, and after the end of the horse, where mostly nothing has changed."""
        if pipeline is None and current_job_working_time == self.current_job_working_time:
            return
        try:
            super().set_current_job_working_time(current_job_working_time, pipeline)
        except RedisError as error:
            logger.warning("Redis is out of reach: %s", error)

    def _recover_slot(self, job: Job, seconds: float) -> None:
        """The horse ended without having released what it held."""
        job_id, token = self.witness.run()
        try:
            lost = TenantJob.objects.holding().select_related("tenant_queue").filter(pk=job_id, token=token).first()
            if lost is not None:
                lost_runs.end_lost_run(lost, lost_runs.story(lost), state=_decided(job, seconds))
        except Error:
            logger.exception("the slot of RQ job %s could not be given back; the sweep will do it", job.id)
            connections.close_all()


def _decided(job: Job, seconds: float) -> State | None:
    """What RQ did to the work-horse on purpose."""
    if job.get_status(refresh=False) == JobStatus.STOPPED:
        return State.CANCELED
    if job.timeout and 0 < job.timeout <= seconds - GRACE_AFTER_TIMEOUT:
        return State.FAILED
    return None


def _import_once(task: str) -> None:
    """Import a function's module here, so that not every horse has to. What goes wrong is the horse's to report."""
    if task not in registered:
        with suppress(Exception):
            resolve(task)
        gc.freeze()
