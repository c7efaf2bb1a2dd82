"""How many slots each tenant uses, and how many of its jobs wait."""

from __future__ import annotations

import json
import shutil
import time
from argparse import ArgumentTypeError
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from tenant_slots import stats
from tenant_slots.db.migrated import naming_missing_tables
from tenant_slots.exceptions import TenantSlotsError
from tenant_slots.management.commands._output import Output, cannot_be_asked
from tenant_slots.management.commands._table import table

HEAD = ("TENANT", "QUEUE", "IN USE", "RUNNING", "QUEUED", "WAITING", "SCHEDULED", "OLDEST WAIT", "SHARE", "PAUSED")

CLEAR_SCREEN = "\x1b[H\x1b[2J"


class Command(BaseCommand):
    help = "Shows each tenant's slots and jobs on each queue, busiest first."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", help="only this queue")
        parser.add_argument("--tenant", help="only this tenant")
        parser.add_argument("--json", action="store_true", help="print JSON; with --watch one document a line")
        parser.add_argument("--watch", action="store_true", help="repeat until Ctrl-C")
        parser.add_argument(
            "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="pause of --watch (default: 2)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._out = Output(self.stdout)
        try:
            with naming_missing_tables():
                self._show(**options)
            while options["watch"] and self._out.has_reader:
                time.sleep(options["interval"])
                self._show(**options)
        except KeyboardInterrupt:
            if not options["watch"]:
                raise
        except TenantSlotsError as error:
            raise CommandError(str(error)) from error
        except Error as error:
            raise CommandError(cannot_be_asked(error)) from error

    def _show(self, *, tenant: str | None, queue: str | None, json: bool, watch: bool, **_: Any) -> None:
        rows = stats.usage(tenant=tenant, queue=queue)
        if json:
            self._out.write(as_json(rows, indent=None if watch else 2))
        elif self.stdout.isatty():
            width, height = shutil.get_terminal_size()
            lines = as_table(rows, width)
            self._out.write(CLEAR_SCREEN + "\n".join(_fitted(lines, height)) if watch else "\n".join(lines))
        else:
            self._out.write("\n".join(as_table(rows)))
        self._out.end()


def as_json(rows: list[stats.QueueUsage], indent: int | None = None) -> str:
    return json.dumps({"tenant_queues": [asdict(row) for row in rows]}, indent=indent)


def as_table(rows: list[stats.QueueUsage], width: int | None = None) -> list[str]:
    return table(HEAD, [_cells(row) for row in rows], width) if rows else ["No tenant queue."]


def _cells(row: stats.QueueUsage) -> tuple[str, ...]:
    return (
        row.tenant or "(no tenant)",
        row.queue,
        f"{row.running} / {row.max_job}",
        str(row.running),
        str(row.queued),
        str(row.waiting),
        str(row.scheduled),
        duration(row.oldest_wait),
        str(row.share),
        _held_up(row),
    )


def _held_up(row: stats.QueueUsage) -> str:
    """Why no job starts, whatever is free."""
    if row.paused:
        return "paused"
    if row.rests_for is None:
        return ""
    return f"rests {duration(row.rests_for)}: {row.rest_reason}".removesuffix(": ")


def duration(seconds: float | None) -> str:
    """Two units are enough to see how long: ``12 s``, ``3 m 20 s``, ``5 h 4 m``, ``2 d 1 h``."""
    if seconds is None:
        return ""
    whole = int(seconds)
    for unit, size, smaller, smaller_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller}"
    return f"{whole} s"


def _fitted(lines: list[str], height: int) -> list[str]:
    """What fits on one screen, as --watch would scroll the busiest out of sight."""
    room = max(2, height - 2)
    return lines if len(lines) <= room else [*lines[:room], f"… and {len(lines) - room} more"]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return seconds
