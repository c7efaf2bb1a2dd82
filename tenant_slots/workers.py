"""TenantWorker; the only file that overrides RQ (written against RQ 2.12).

The gate is in the job, so any worker class keeps the limits. What only the parent process of a work-horse can do is
here: see at once that a horse died with a slot, and die together with it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import mmap
import os
import signal
import sys
from typing import Any

from django.db import DatabaseError, connections
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.worker import Worker

from tenant_slots import dispatch, recovery, runner

logger = logging.getLogger("tenant_slots")

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that this process gets when its parent dies."""


class TenantWorker(Worker):
    """RQ's forking worker that gives a slot back the moment a work-horse dies with it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._witness = mmap.mmap(-1, 1)

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        self._warm_up()

    def _warm_up(self) -> None:
        """Do once what every horse would do again after its fork: imports, caches, the version of Redis."""
        for queue in self.queues:
            dispatch.queue_named(queue.name).get_redis_server_version()
        try:
            runner.warm_up()
        except DatabaseError:
            logger.exception("the database could not be reached at start; jobs wait until it can")
        gc.freeze()

    def execute_job(self, job: Job, queue: Queue) -> None:
        self._witness[0] = 0
        connections.close_all()  # a horse must not inherit, and end, a session of ours
        super().execute_job(job, queue)
        if self._witness[0]:
            self._recover_slot(job)

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        _die_with(self.pid)
        runner.witness = self._witness
        super().main_work_horse(job, queue)

    def _recover_slot(self, job: Job) -> None:
        stopped = job.get_status(refresh=False) == JobStatus.STOPPED
        try:
            recovery.after_dead_horse(self.name, stopped=stopped)
        except Exception:
            logger.exception("the slot of RQ job %s could not be given back; the sweep will do it", job.id)


def _die_with(parent: int | None) -> None:
    """Have the kernel kill this horse when its worker dies, so that no job runs unseen (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died between the fork and the line above
