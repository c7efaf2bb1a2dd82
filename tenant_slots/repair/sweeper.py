"""Sweeping: workers do it every ``SWEEP_INTERVAL`` seconds, one at a time; ``manage.py slots_sweep`` does so where all
workers are stock ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from django.db import Error, connections
from redis.exceptions import RedisError

from tenant_slots import owners, signals, slots
from tenant_slots.alarm import time_limit
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.sessions import close_if_ended, leave_statements
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import EVERYWHERE, TenantQueue
from tenant_slots.repair import claims, faults, steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.one_row import waiting_together
from tenant_slots.repair.report import Report
from tenant_slots.repair.steps import Step

logger = logging.getLogger("tenant_slots")

SHARE_OF_LEASE = 0.4
"""For which a sweep may last: less than the half after which the process of a worker's sweep is killed, so that a
callable of the project that does not end is ended by itself.
"""

SECONDS_TO_ANSWER = 1
"""For which the database is waited for when a sweep has taken too long."""


class Sweeper:
    """One process' part in sweeping."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.contact = Contact()
        self._due = 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def sweep_if_due(self) -> Report | None:
        """Sweep unless another process does, or has lately. Never raises: a worker must go on."""
        if not self.is_due:
            return None
        self.put_off()
        return self._briefly(self.sweep)

    def look_for_lost(self) -> Report | None:
        """What Redis has forgotten, whoever else sweeps. Never raises either."""
        return self._briefly(partial(self.run, steps.LOST))

    def _briefly(self, sweep: Callable[[], Report | None]) -> Report | None:
        try:
            close_if_ended(connections[app_settings.DATABASE])  # by a limit for idle ones: no outage
            with time_limit(app_settings.LEASE_TTL * SHARE_OF_LEASE, SweepTimeout, leave_statements):
                return sweep()
        except (Error, SweepTimeout) as error:
            with suppress(Error):
                connections[app_settings.DATABASE].close()
            if not (isinstance(error, SweepTimeout) and self._database_answers()):
                self.contact.broken()
            logger.warning("the sweep was given up, the next one goes on: %s", error)
        except Exception:
            logger.exception("the sweep failed")
        return None

    def _database_answers(self) -> bool:
        """Then it was something else that took the time: a Redis, or a callable of the project."""
        try:
            with time_limit(SECONDS_TO_ANSWER, SweepTimeout, leave_statements):
                slots.beat(0, 0)
        except (Exception, SweepTimeout):
            close_if_ended(connections[app_settings.DATABASE])
            return False
        self.contact.kept()
        return True

    def put_off(self) -> None:
        """The next one is due after a whole interval."""
        self._due = time.monotonic() + app_settings.SWEEP_INTERVAL

    def sweep(self) -> Report | None:
        """The local part, then the rest if no other process has claimed it. None when both were claimed."""
        reports = []
        self.contact.sees(clock.now())
        for name, its_steps in ((f"host {owners.this_host()}", steps.LOCAL_STEPS), (EVERYWHERE, steps.STEPS)):
            began = time.monotonic()
            claimed = self._claim(name)
            self.contact.kept()  # it answered; before any step judges others by how long it has done so
            if claimed:
                reports.append(self.run(its_steps))
                claims.done(name, self.name, time.monotonic() - began)
        self.contact.kept()
        if not reports:
            return None
        report = Report.sum_of(reports)
        claims.count_reclaimed(report.reclaimed)
        return report

    def _claim(self, name: str) -> bool:
        """Not to wait for the row costs statements: a sweep does so once one before it has not come to its claim."""
        if not self.contact.waits_for_claims:
            return claims.claim_unless_held(name, self.name)
        self.contact.waits_for_claims = False
        claimed = claims.claim(name, self.name)
        self.contact.waits_for_claims = True
        return claimed

    def run(self, some_steps: Iterable[Step]) -> Report:
        """These steps now, whoever else sweeps."""
        report = Report()
        with waiting_together():
            for step in some_steps:
                self._do(step, report)
        if report:
            logger.info("sweep: %s", ", ".join(f"{name} {value}" for name, value in asdict(report).items() if value))
            signals.send("swept", sender=TenantQueue, report=report)
        return report

    def _do(self, step: Step, report: Report) -> None:
        try:
            close_if_ended(connections[app_settings.DATABASE])  # while the step before it asked Redis, say
            step(report, self.contact)
        except RedisError as error:
            logger.warning("the sweep cannot ask Redis, the rest of it goes on: %s", error)
        except Exception as error:
            if faults.ends_the_sweep(error):
                raise
            logger.exception("a step of the sweep failed, the rest of it goes on: %s", step.__name__)
            report.failed.append(f"{step.__name__}: {error!r}")


def run_now(sweeper: str) -> Report:
    """One whole sweep, whoever else sweeps; for the command and the doctor."""
    one = Sweeper(sweeper)
    return Report.sum_of([one.run(steps.LOCAL_STEPS), one.run(steps.STEPS)])
