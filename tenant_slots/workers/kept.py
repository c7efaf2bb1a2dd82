"""Ends of runs that the database has not taken yet. A worker keeps them until it does, and goes on with other jobs."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from django.db import Error, connections

from tenant_slots import charges, logs, owners, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.memory_file import disk_file
from tenant_slots.models import State, TenantJob
from tenant_slots.refusals import is_outage
from tenant_slots.repair import lost_runs
from tenant_slots.running import recording
from tenant_slots.running.recording import Outcome
from tenant_slots.workers.heartbeats import Token

logger = logging.getLogger("tenant_slots")

BYTES_IN_MEMORY = 8 * 1024 * 1024
"""Of what jobs left, as JSON: results, errors and progress. More of it goes to a file."""

PATIENCE_SECONDS = 0.2
"""How long one tenant queue that is locked may hold up the ends of others."""


@dataclass(frozen=True)
class Ending:
    """How a run ended that may still hold its slot."""

    run: Token
    outcome: Outcome | None
    """None: its process died and left none."""
    state: State | None = None
    """Without an outcome: what was decided, if it is not for the crash policy to say."""
    was_interrupted: bool = False
    """Without an outcome: the worker was told to end, and took the process along."""
    seconds: float | None = None
    """What its tenant is charged, as in `Freed`; None: what its row tells."""


class KeptEndings:
    """The endings of one worker, oldest first. How many there are only the length of an outage bounds.

    Their runs are this process', which a sweep of its own would take for lost otherwise: TenantSimpleWorker has others
    by then. The row that somebody held when an end was to be recorded may be free when it sweeps.
    """

    def __init__(self) -> None:
        self._endings: dict[Token, Ending] = {}
        self._on_disk: dict[Token, tuple[int, int]] = {}
        self._file: int | None = None
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._endings)

    def runs(self) -> list[Token]:
        return list(self._endings)

    def add(self, ending: Ending) -> None:
        """Keep it; what the job left goes to disk when memory holds enough of it."""
        left = {name: value for name, value in (ending.outcome or {}).items() if name in recording.LEFT}
        size = len(json.dumps(left))
        if ending.outcome is not None and self._bytes + size > BYTES_IN_MEMORY:
            bare = {name: value for name, value in ending.outcome.items() if name not in left}
            self._write(ending.run, left)
            ending = replace(ending, outcome=bare)
        else:
            self._bytes += size
        self._endings[ending.run] = ending
        owners.runs_here.add(ending.run[1])

    def whole(self) -> Iterator[Ending]:
        """Each is read from disk as it is asked for: all together may be more than there is memory for."""
        return map(self._with_left, list(self._endings.values()))

    def remove(self, runs: Iterable[Token]) -> None:
        for run in runs:
            self._endings.pop(run, None)
            self._on_disk.pop(run, None)
            owners.runs_here.discard(run[1])
        if not self._endings:
            self._bytes = 0
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _write(self, run: Token, left: dict[str, Any]) -> None:
        """A disk that takes no more costs what the job left, never that it ended."""
        content = json.dumps(left).encode()
        try:
            if self._file is None:
                self._file = disk_file("tenant_slots_kept")
            place = os.fstat(self._file).st_size
            written = os.pwrite(self._file, content, place)
            if written != len(content):
                os.ftruncate(self._file, place)  # there may be room for what is smaller
                raise OSError(errno.ENOSPC, f"{written} of {len(content)} bytes could be written")
            self._on_disk[run] = (place, len(content))
        except OSError as error:
            text = "what job %s left cannot be kept until the database is back: %s"
            logger.error(text, run[0], error, extra=logs.about_run(run[0]))

    def _with_left(self, ending: Ending) -> Ending:
        if ending.run not in self._on_disk or self._file is None or ending.outcome is None:
            return ending
        place, length = self._on_disk[ending.run]
        return replace(ending, outcome=ending.outcome | json.loads(os.pread(self._file, length, place)))


def settle(endings: Iterable[Ending]) -> Iterator[Token]:
    """Record those that the database takes now; gives the runs that are through. Stops when it is out of reach."""
    with waiting_at_most(PATIENCE_SECONDS):
        for ending in endings:
            try:
                _settle(ending)
            except Error as error:
                text = "the end of job %s is kept, it could not be recorded: %s"
                logger.warning(text, ending.run[0], error, extra=logs.about_run(ending.run[0]))
                if is_outage(error):
                    connections[app_settings.DATABASE].close()
                    return
            else:
                yield ending.run


def _settle(ending: Ending) -> None:
    pk, token = ending.run
    # Running: a job that waits again, and has been admitted again, still has the token of the run that has ended.
    own = TenantJob.objects.running().filter(pk=pk, token=token).select_related("tenant_queue")
    job: TenantJob | None = own.first()
    if job is None:
        return
    if ending.outcome is None:
        end = lost_runs.end_interrupted_run if ending.was_interrupted else lost_runs.end_lost_run
        end(job, lost_runs.story(job), state=ending.state, seconds=ending.seconds)
    else:
        seconds = charges.unmeasured(job) if ending.seconds is None else ending.seconds
        released = recording.release(job, ending.outcome)
        transitions.follow(job, released, ending.outcome.get("error", ""), seconds)
