"""Heartbeats: how a worker keeps the leases of its runs, and notices that it has lost one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from django.db import Error, connections

from tenant_slots import logs, slots
from tenant_slots.conf import app_settings
from tenant_slots.db import sessions
from tenant_slots.db.transactions import is_locked_out
from tenant_slots.refusals import is_outage
from tenant_slots.workers.watchdog import Watchdog

logger = logging.getLogger("tenant_slots")

ANSWER_SHARE = 1 / 4
"""Of a lease, how long the database may take for an answer."""

Token = tuple[int, int]
"""Primary key of a job and the token of its run."""


class Heartbeats(threading.Thread):
    """Renews the leases of a worker's runs, from before a job's function is called until its end is recorded.

    It has a thread and a connection of its own: nothing that the worker or its jobs do can hold up a heartbeat.

    Args:
        runs: those whose end is not recorded yet, each with the work-horse that executes it; 0 for none.
        end_run: what to do with a run whose lease is known to be lost, or that somebody has asked to stop.
        on_outage: told each time that the database did not answer.
        look: called each time, for what else is to be watched by a clock.
        executes: whether a run goes on; the lease of one of which only the end is kept is nothing to lose.
    """

    def __init__(
        self,
        runs: Callable[[], Mapping[Token, int]],
        end_run: Callable[[Token], object],
        on_outage: Callable[[], object],
        look: Callable[[], object] = lambda: None,
        executes: Callable[[Token], bool] = lambda run: True,
    ) -> None:
        super().__init__(name="tenant_slots heartbeats", daemon=True)
        self._runs, self._end_run, self._on_outage, self._look = runs, end_run, on_outage, look
        self._executes = executes
        self._is_over = threading.Event()
        self._wanted = threading.Event()
        self._spares_none = threading.Event()
        self._seen: Collection[Token] = ()
        """At the last look."""
        self._last_contact = time.monotonic()
        self._watchdog = Watchdog()

    def start(self) -> None:
        self._watchdog.start()
        super().start()

    def look_now(self) -> None:
        """Send the heartbeats at once, of new runs too, and look whether a run is to be stopped."""
        self._spares_none.set()
        self._wanted.set()

    def let_go(self) -> None:
        """A run that lasted has ended: its session is not needed any more, unless there is another such run."""
        self._wanted.set()

    def stop(self) -> None:
        self._is_over.set()
        self._wanted.set()
        if self.ident is not None:
            self.join()
        self._watchdog.stop()

    def run(self) -> None:
        with sessions.private_connection(app_settings.LEASE_TTL * ANSWER_SHARE, is_silent=True):
            pause: float = app_settings.BEAT_INTERVAL
            while not self._is_over.is_set():
                self._wanted.wait(pause)
                self._wanted.clear()
                pause = self._look_around()

    def _look_around(self) -> float:
        """Returns the seconds until the next time. No error ends this thread: nobody else would keep the leases."""
        try:
            self._look()
            runs = self._runs()
            lasting = self._lasting(runs)
            pause = self.beat(lasting)
            return pause if len(lasting) == len(runs) else app_settings.LEASE_TTL * slots.AGAIN_SHARE
        except BaseException:
            with suppress(BaseException):  # a handler of the project's logs may be what fails
                connections.close_all()
                self._on_outage()
                logger.exception("a round of heartbeats failed")
            return app_settings.BEAT_INTERVAL

    def _lasting(self, runs: Mapping[Token, int]) -> Mapping[Token, int]:
        """Those that were there at the last look: one that is over in a moment needs neither heartbeat nor session."""
        spares_none, seen = self._spares_none.is_set(), self._seen
        self._spares_none.clear()
        self._seen = runs.keys()
        return runs if spares_none else {run: horse for run, horse in runs.items() if run in seen}

    def beat(self, runs: Mapping[Token, int]) -> float:
        """One heartbeat for each of these; returns the seconds until the next one."""
        if not runs:
            connections.close_all()  # between jobs that take long; in the short ones it is never opened
            self._last_contact = time.monotonic()
        pause: float = app_settings.BEAT_INTERVAL
        for run, horse in runs.items():
            try:
                sessions.close_if_ended(connections[app_settings.DATABASE])  # by a limit for idle ones: no outage
                with self._watchdog.cutting_after(app_settings.LEASE_TTL * ANSWER_SHARE):
                    pause = min(pause, self._beat_one(run, horse))
            except Exception as error:  # the database's driver may raise any
                self._failed(run, error)
                return app_settings.LEASE_TTL * slots.FAILED_SHARE
            self._last_contact = time.monotonic()
        return pause

    def _beat_one(self, run: Token, horse: int) -> float:
        """Returns the seconds until the next one: soon where it was not written, although the database answers."""
        pause: float = app_settings.BEAT_INTERVAL
        try:
            kept = slots.beat(*run, horse)
        except Error as error:
            if is_outage(error):
                raise
            kept, pause = slots.is_running(*run), self._kept_out(run, error)
        if not kept and self._is_lost(run):
            logger.error("the lease of job %s is lost, its run is ended here", run[0], extra=logs.about_run(run[0]))
            self._end_run(run)
        elif kept and slots.is_cancel_requested(*run):
            self._end_run(run)
        return pause

    def _is_lost(self, run: Token) -> bool:
        """Not one that has ended meanwhile, or is about to: a process that can hand its outcome to nobody records it
        itself, and then calls what follows.
        """
        return run in self._runs() and self._executes(run) and not slots.has_ended_by_itself(*run)

    @staticmethod
    def _kept_out(run: Token, error: Error) -> float:
        """Somebody holds the job's row; or a trigger of the project refuses it, which is no outage of the others."""
        if is_locked_out(error):
            return app_settings.LEASE_TTL * slots.AGAIN_SHARE
        text = "a heartbeat of job %s cannot be written, and is tried again: %s"
        logger.warning(text, run[0], error, extra=logs.about_run(run[0]))
        return app_settings.LEASE_TTL * slots.FAILED_SHARE

    def _failed(self, run: Token, error: Exception) -> None:
        connections.close_all()
        self._on_outage()
        out_of_reach = time.monotonic() - self._last_contact
        text = "a heartbeat failed, the database has been out of reach for %.0f s: %s"
        logger.warning(text, out_of_reach, error, extra=logs.about_run(run[0]))
        if app_settings.ON_LOST_DATABASE == "stop" and out_of_reach > app_settings.LEASE_TTL:
            logger.error("the run is ended, as ON_LOST_DATABASE says", extra=logs.about_run(run[0]))
            self._end_run(run)
