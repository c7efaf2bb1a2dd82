from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from tenant_slots.conf import app_settings
from tenant_slots.management.commands._output import Output, cannot_be_asked
from tenant_slots.management.commands._table import printable
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper, run_now


class Command(BaseCommand):
    help = (
        "Repair what crashes left behind. Workers of tenant_slots do it by themselves; stock workers do not. Exit "
        "code 1 when a part of a single sweep failed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--loop", action="store_true", help="go on every SWEEP_INTERVAL seconds, until Ctrl-C or SIGTERM"
        )

    def handle(self, *args: Any, loop: bool, **options: Any) -> None:
        self._out, self._errors = Output(self.stdout), Output(self.stderr)
        name = f"slots_sweep {os.getpid()}"
        if not loop:
            try:
                report = run_now(name)
            except Error as error:
                raise CommandError(cannot_be_asked(error)) from error
            self._print(report)
            self._out.end()
            if report.failed:
                sys.exit(1)
            return
        sweeper, end = Sweeper(name), _End()
        with suppress(KeyboardInterrupt):
            while True:
                if done := sweeper.sweep_if_due():
                    self._print(done)
                if end.is_asked:
                    return
                time.sleep(app_settings.SWEEP_INTERVAL)

    def _print(self, report: Report) -> None:
        done = [f"{name} {value}" for name, value in asdict(report).items() if value and not isinstance(value, list)]
        if done or not report.failed:
            self._out.write(", ".join(done) or "nothing to repair")
            self._out.flush()
        for sentence in [*report.left, *report.failed]:
            self._errors.write(printable(sentence))


class _End:
    """SIGTERM interrupts as Ctrl-C does. It would kill a sweep, with jobs that are being asked, which nobody would ask
    again; and to the first process of a container it would mean nothing.
    """

    def __init__(self) -> None:
        self.is_asked = False
        """Noted, as the interruption may be lost: while the database does not answer, psycopg asks it to cancel the
        statement and waits once more, and the alarm of the sweep, which rings meanwhile, puts its own error in that
        place.
        """
        with suppress(ValueError):  # in a thread of somebody's
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.is_asked = True
        raise KeyboardInterrupt
