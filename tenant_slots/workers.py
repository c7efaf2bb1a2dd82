"""The worker classes; the only file that overrides RQ (written against RQ 2.12).

The gate is in the job, so any worker class keeps the limits. What only a worker itself can do is here: beat the lease
of its running job, see at once that a work-horse died with a slot, take the horse along when it dies, and sweep.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import mmap
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from django.db import Error, connections
from django.utils.module_loading import import_string
from redis import Redis
from redis.exceptions import RedisError
from rq.exceptions import StopRequested
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.worker import BaseWorker, SimpleWorker, Worker

from tenant_slots import dispatch, recording, recovery, shared, weights
from tenant_slots.conf import app_settings
from tenant_slots.decorators import registered, resolve
from tenant_slots.leases import Lease
from tenant_slots.models import State, TenantJob
from tenant_slots.shared import Outbox, Phase, Witness
from tenant_slots.sweep import Sweeper

logger = logging.getLogger("tenant_slots")

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that this process gets when its parent dies."""

LIBC = ctypes.CDLL(None)

GRACE_AFTER_TIMEOUT = 60
"""Seconds after a job's timeout when RQ kills a work-horse that did not end itself (RQ 2.12, monitor_work_horse)."""


class Sweeping(BaseWorker):
    """Sweeps between jobs, and while it waits for one. Looks into its queues by weight."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sweeper = Sweeper(self.name)
        self._busy_with_bookkeeping = False

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        self._warm_up()

    def dequeue_job_and_maintain_ttl(self, *args: Any, **kwargs: Any) -> tuple[Job, Queue] | None:
        """Called by RQ once for every job. An order that was drawn goes before RQ's dequeue strategy."""
        if not app_settings.QUEUE_WEIGHTS.keys().isdisjoint(self.queue_names()):
            self._ordered_queues = weights.drawn(self.queues, app_settings.QUEUE_WEIGHTS)
        return super().dequeue_job_and_maintain_ttl(*args, **kwargs)

    @property
    def dequeue_timeout(self) -> int:
        """RQ blocks for minutes; a sweep is due sooner."""
        return max(1, min(super().dequeue_timeout, int(app_settings.SWEEP_INTERVAL)))

    @property
    def connection_timeout(self) -> int:
        return super().dequeue_timeout + 10

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return self.sweeper.is_due or super().should_run_maintenance_tasks

    def run_maintenance_tasks(self) -> None:
        if super().should_run_maintenance_tasks:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]
        with self._undisturbed():
            self.sweeper.sweep_if_due()
        if self._stop_requested:
            raise StopRequested

    def _shutdown(self) -> None:
        """RQ raises StopRequested wherever a worker is that it does not think busy (RQ 2.12).

        That would end a recording halfway, or be swallowed by what must go on after any error.
        """
        try:
            super()._shutdown()  # type: ignore[no-untyped-call]
        except StopRequested:
            if not self._busy_with_bookkeeping:
                raise
            self._stop_requested = True

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A stop that is asked for meanwhile comes after this."""
        self._busy_with_bookkeeping = True
        try:
            yield
        finally:
            self._busy_with_bookkeeping = False

    def _warm_up(self) -> None:
        """Learn once what every job needs: the runner, the version of Redis, what the first query loads."""
        import_string(dispatch.RUNNER)
        for queue in self.queues:
            dispatch.use_queue(queue)
            queue.get_redis_server_version()
            _name_driver_once(queue.connection)
        try:
            recording.warm_up()
        except Error:
            logger.exception("the database could not be reached at start; jobs wait until it can")


class TenantWorker(Sweeping, Worker):
    """RQ's forking worker, which keeps a connection to the database that its work-horses then need not open.

    It starts a job before the fork and records its end after it, beats its lease meanwhile, and gives the slot back the
    moment a work-horse dies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.witness = Witness(mmap.mmap(-1, Witness.layout.size))
        self.outbox = Outbox()
        self.job_monitoring_interval = max(1, int(app_settings.BEAT_INTERVAL))
        self.lease = Lease(self.witness, self.kill_horse)
        self._next_heartbeat = self._next_suspension_check = 0.0

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        shared.this.witness, shared.this.beats = self.witness, True
        gc.collect()
        gc.freeze()  # what is loaded by now is never garbage; horses need not look at it, and so not copy it

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ beats three times around every job for a record that lives for a minute; once a second is enough."""
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
        started = shared.this.started = self._begin(job)
        try:
            super().execute_job(job, queue)
        finally:
            # Also when RQ gives up because it has lost Redis: what has ended is to be recorded all the same.
            self._end_horse()
            self._settle(job, started, seconds=time.monotonic() - began)

    def _begin(self, job: Job) -> TenantJob | None:
        """Start a job of ours here, where there is a connection. A refused one is left to the horse to refuse.

        Its RQ id says which one it is. RQ leaves it to the horse to unpickle what is in Redis, and so do we.
        """
        self.witness.idle()
        named = dispatch.named_by(job.id)
        started = recording.begin(*named, self.name) if named else None
        if started is not None:
            _import_once(started.task)
        return started

    def _end_horse(self) -> None:
        """A horse that RQ stopped watching before it ended would go on without a worker."""
        if self.horse_pid:
            self.kill_horse()
            self.wait_for_horse()
            self._horse_pid = 0

    def _settle(self, job: Job, started: TenantJob | None, seconds: float) -> None:
        outcome = self.outbox.take()
        if started is not None and outcome is not None:
            recording.end(started, outcome)
        elif self.witness.read()[2] is not Phase.IDLE:
            self._recover_slot(job, seconds)

    def wait_for_horse(self) -> Any:
        """As RQ, with a look once a second at what signals came.

        After SIGSTOP and SIGCONT the kernel may give RQ's alarm to RQ's pubsub thread. Python then keeps it for the
        main thread, which sleeps in wait4 and would beat no more.
        """
        _wait_for_exit(self.horse_pid)
        return super().wait_for_horse()

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        _close_what_cannot_be_inherited()
        super().fork_work_horse(job, queue)

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        _die_with(self.pid)
        _forget_inherited_connections()
        shared.this.outbox = self.outbox if shared.this.started else None
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
        job_id, attempt, _ = self.witness.read()
        try:
            lost = TenantJob.objects.holding().select_related("tenant_queue").filter(pk=job_id, attempt=attempt).first()
            if lost is not None:
                recovery.end_lost_run(lost, recovery.story(lost), state=_decided(job, seconds))
        except Error:
            logger.exception("the slot of RQ job %s could not be given back; the sweep will do it", job.id)
            connections.close_all()


class TenantSimpleWorker(Sweeping, SimpleWorker):
    """RQ's worker without a fork; a thread beats the lease of the running job."""

    def work(self, *args: Any, **kwargs: Any) -> bool:
        stop = threading.Event()
        thread = threading.Thread(target=_beat_until, args=(stop,), name="tenant_slots beats", daemon=True)
        shared.this.beats = True
        thread.start()
        try:
            return super().work(*args, **kwargs)
        finally:
            stop.set()
            thread.join()
            shared.this.beats = False


def _beat_until(stop: threading.Event) -> None:
    """Without a work-horse, the only way to end a run whose lease is lost is to end this process."""
    lease = Lease(shared.this.witness, lambda: os.kill(os.getpid(), signal.SIGKILL))
    while not stop.wait(app_settings.BEAT_INTERVAL):
        lease.beat()
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


def _wait_for_exit(pid: int) -> None:
    if not pid or not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    try:
        exited = select.poll()
        exited.register(descriptor, select.POLLIN)
        while not exited.poll(1000):
            pass
    finally:
        os.close(descriptor)


def _name_driver_once(connection: Redis) -> None:
    """redis-py 8 reads its version from its package's metadata for each connection: milliseconds, in every horse."""
    options = connection.connection_pool.connection_kwargs
    if find_spec("redis.driver_info") and options.keys().isdisjoint({"driver_info", "lib_name", "lib_version"}):
        options["driver_info"] = import_string("redis.driver_info.DriverInfo")()


_inherited: list[Any] = []


def _close_what_cannot_be_inherited() -> None:
    """Only PostgreSQL's client can be left alone in a child; SQLite keeps locks and maps by process."""
    for connection in connections.all(initialized_only=True):
        if connection.vendor != "postgresql" or connection.alias != app_settings.DATABASE:
            connection.close()


def _forget_inherited_connections() -> None:
    """A horse must not use, and above all not close, its worker's session: that would end it for the worker too.

    The objects are kept, so that nothing is closed when they are collected either.
    """
    for connection in connections.all(initialized_only=True):
        _inherited.append(connection)
        del connections[connection.alias]


def _die_with(parent: int | None) -> None:
    """Have the kernel kill this horse when its worker dies, so that no job runs unseen (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died between the fork and the line above
