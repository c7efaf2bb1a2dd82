"""RQ's scheduler beside a worker: begun again once its process has ended, and ended without a long wait."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress
from typing import Any

from tenant_slots.conf import app_settings
from tenant_slots.workers.telling import TellingWorker

logger = logging.getLogger("tenant_slots")

SECONDS_TO_END = 10
"""For which a worker that ends waits for the scheduler, before it kills it. A service manager waits longer."""


class SchedulingWorker(TellingWorker):
    """The part of a worker that sees to RQ's scheduler, where one is to run beside it (``--with-scheduler``)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keeps_scheduler = False
        self._next_look_at_scheduler = 0.0
        self._has_parted = False
        """Whether this worker ends."""

    def _start_scheduler(self, burst: bool = False, *args: Any, **kwargs: Any) -> None:
        super()._start_scheduler(burst, *args, **kwargs)
        self._keeps_scheduler = not burst
        self._next_look_at_scheduler = time.monotonic() + app_settings.SWEEP_INTERVAL

    def see_to_scheduler(self) -> None:
        """Its process ends where Redis takes no writes for a moment, and RQ looks for that every ten minutes (2.12).

        So it does where the process of another worker, which is gone, had the lock when this one began. Meanwhile no
        plain RQ job that is put off, or scheduled, would come back.
        """
        is_due = time.monotonic() >= self._next_look_at_scheduler
        if self._keeps_scheduler and is_due and not self._stop_requested:
            self._next_look_at_scheduler = time.monotonic() + app_settings.SWEEP_INTERVAL
            self._unless_redis_is_away(self._start_scheduler_again)

    def _start_scheduler_again(self) -> None:
        scheduler: Any = self.scheduler  # whose types know of no process
        if scheduler is None or (scheduler._process is not None and scheduler._process.is_alive()):
            return
        scheduler._connection = self.impatient  # RQ's own would wait for minutes; its process makes another one
        try:
            scheduler.acquire_locks(auto_start=True)
        except OSError as error:
            logger.warning("there is no room for a process of RQ's scheduler: %s", error)

    def stop_scheduler(self) -> None:
        """RQ waits until it has ended, in a handler of signals too: where Redis does not answer that takes minutes, and
        the end of a job would wait as long. So it is asked to end, and waited for when this worker ends, but not long.
        """
        scheduler: Any = self.scheduler
        process = scheduler and scheduler._process
        if not (process and process.is_alive()):  # its number may be another one's by now
            return
        with suppress(OSError):
            os.kill(process.pid, signal.SIGTERM)
        if self._has_parted:
            process.join(SECONDS_TO_END)
            if process.is_alive():
                process.kill()
                process.join()
