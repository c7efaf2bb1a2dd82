"""Heartbeats: how a worker keeps the lease of its running job, and notices that it has lost it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from django.db import Error, connections
from rq.timeouts import BaseTimeoutException

from tenant_slots import slots
from tenant_slots.alarm import time_limit
from tenant_slots.conf import app_settings
from tenant_slots.running.witness import Phase, Witness

logger = logging.getLogger("tenant_slots")


class BeatTimeout(BaseTimeoutException):
    """The database did not answer a heartbeat in time."""


class Lease:
    """Renews the lease of the job that a witness names; ends the run when the lease is known to be lost."""

    def __init__(self, witness: Witness, end_run: Callable[[], object]) -> None:
        self._witness = witness
        self._end_run = end_run
        self.renewed()

    def renewed(self) -> None:
        self._last_contact = time.monotonic()

    def beat(self) -> bool:
        """False when the database could not be reached, which is not a lost lease: see ``ON_LOST_DATABASE``."""
        job_id, token, phase = self._witness.read()
        if phase is not Phase.HOLDING:
            self.renewed()
            return True
        try:
            with time_limit(app_settings.LEASE_TTL / 4, BeatTimeout):
                kept = slots.beat(job_id, token)
        except (Error, BeatTimeout) as error:
            self._failed(error)
            return False
        self.renewed()
        if not kept and self._witness.read() == (job_id, token, Phase.HOLDING):
            logger.error("the lease of job %s is lost, its run is ended here", job_id)
            self._end_run()
        return True

    def is_canceled(self) -> bool:
        """Whether somebody has asked for the end of the run."""
        job_id, token, phase = self._witness.read()
        try:
            with time_limit(app_settings.LEASE_TTL / 4, BeatTimeout):
                return phase is Phase.HOLDING and slots.is_cancel_requested(job_id, token)
        except (Error, BeatTimeout) as error:
            self._failed(error)
            return False

    def _failed(self, error: Exception) -> None:
        connections.close_all()
        out_of_reach = time.monotonic() - self._last_contact
        logger.warning("a heartbeat failed, the database has been out of reach for %.0f s: %s", out_of_reach, error)
        if app_settings.ON_LOST_DATABASE == "stop" and out_of_reach > app_settings.LEASE_TTL:
            logger.error("the run is ended, as ON_LOST_DATABASE says")
            self._end_run()
