"""The worker without work-horses: for tests, and for platforms that cannot fork."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from django.db import connections
from rq.job import Job
from rq.queue import Queue
from rq.worker import SimpleWorker

from tenant_slots.conf import app_settings
from tenant_slots.workers.base import SweepingWorker
from tenant_slots.workers.lease import Lease


class TenantSimpleWorker(SweepingWorker, SimpleWorker):
    """RQ's worker without a fork; a thread renews the lease of the running job."""

    def work(self, *args: Any, **kwargs: Any) -> bool:
        stop = threading.Event()
        thread = threading.Thread(target=self._beat_until, args=(stop,), name="tenant_slots heartbeats", daemon=True)
        thread.start()
        try:
            return super().work(*args, **kwargs)
        finally:
            stop.set()
            thread.join()

    def execute_job(self, job: Job, queue: Queue) -> None:
        self.witness.idle()
        self.new_run().hand_to(job)
        super().execute_job(job, queue)

    def _beat_until(self, stop: threading.Event) -> None:
        """Without a work-horse, the only way to end a run whose lease is lost is to end this process."""
        lease = Lease(self.witness, lambda: os.kill(os.getpid(), signal.SIGKILL))
        while not stop.wait(app_settings.BEAT_INTERVAL):
            lease.beat()
        connections.close_all()
