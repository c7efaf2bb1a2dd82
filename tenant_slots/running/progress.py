"""How far a job is, as it tells itself: written at most once a second, and once more with its end."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from django.db import Error, connections

from tenant_slots import logs
from tenant_slots.exceptions import InvalidProgress
from tenant_slots.models import TenantJob
from tenant_slots.models.shapes import HIGHEST_AMOUNT
from tenant_slots.tasks.arguments import json_problem
from tenant_slots.validation import is_number, shown

logger = logging.getLogger("tenant_slots")

Number = int | float
Stat = int | float | str | bool | None

SECONDS_BEFORE_FIRST_WRITE = 0.2
"""A job that ends sooner needs no connection for its progress: all of it is recorded with its end."""

SECONDS_BETWEEN_WRITES = 1.0
"""People do not see more, and a loop may report every row."""

SECONDS_FOR_A_LAST_WRITE = 2.0
"""How long the end of a job waits for a write that is on its way: what it writes comes with the end too."""

STATS_BYTES = 8192
"""Most bytes of all stats as JSON: the list of jobs reads them of every job on the page."""


def report_progress(done: Number, total: Number | None = None, **stats: Stat) -> None:
    """Tell how far the running job is. Returns at once: the newest values are written once a second, and at the end.

    Outside a job, as in a direct call of its function, it does nothing.

    Args:
        done: how much is done, 0 or above, in whatever unit.
        total: how much there is to do; None when nobody knows.
        stats: numbers, texts, booleans or None by name. A name that is given again has its new value, others stay.

    Raises:
        InvalidProgress: a value has the wrong type or is out of range, or all stats together take too many bytes.
    """
    _require_amount("done", done)
    if total is not None:
        _require_amount("total", total)
    for name, value in stats.items():
        _require_stat(name, value)
    reporter = _current.get()
    if reporter is not None:
        reporter.report(done, total, stats)


class Reporter:
    """What one run of a job has reported; a thread of its own writes it.

    The job's own connection may be inside a transaction: the write would not be seen before its end, and lock the
    job's row against the heartbeats until then.
    """

    def __init__(self, job: TenantJob) -> None:
        self._run = {"pk": job.pk, "token": job.token}
        self._job = job
        self._process = os.getpid()
        self._values: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._is_newer = False
        self._has_ended = threading.Event()
        self._thread: threading.Thread | None = None

    def report(self, done: Number, total: Number | None, stats: Mapping[str, Stat]) -> None:
        if os.getpid() != self._process:
            return  # a child of the job's process; its siblings would overwrite each other's numbers
        with self._changed:
            merged = {**self._values.get("stats", {}), **stats}
            if stats:
                _require_small(merged)
            self._values = {"progress": {"done": done, "total": total}, "stats": merged}
            self._is_newer = True
            if self._thread is None:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._write_until_end, name="tenant_slots progress", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no thread left
            text = "the progress of job %s is recorded with its end only: %s"
            logger.warning(text, self._job.uuid, error, extra=logs.about(self._job))

    def end(self) -> dict[str, Any]:
        """Stop writing; the last values, to be recorded with the job's end. Empty when it never reported."""
        if self._thread is not None and self._thread.ident is not None:
            self._has_ended.set()
            with self._changed:
                self._changed.notify()
            self._thread.join(SECONDS_FOR_A_LAST_WRITE)
        return self._values

    def _write_until_end(self) -> None:
        self._has_ended.wait(SECONDS_BEFORE_FIRST_WRITE)
        try:
            while not self._has_ended.is_set():
                with self._changed:
                    self._changed.wait_for(lambda: self._is_newer or self._has_ended.is_set())
                    values, self._is_newer = self._values, False
                if not self._has_ended.is_set():
                    self._write(values)
                    self._has_ended.wait(SECONDS_BETWEEN_WRITES)
        finally:
            connections.close_all()

    def _write(self, values: dict[str, Any]) -> None:
        """Only while this run of the job goes on. What the database refuses is tried again with the next values."""
        try:
            TenantJob.objects.running().filter(**self._run).update(**values)
        except Error as error:
            text = "the progress of job %s could not be written, the job goes on: %s"
            logger.warning(text, self._job.uuid, error, extra=logs.about(self._job))
            connections.close_all()
            self._is_newer = True


_current: ContextVar[Reporter | None] = ContextVar("tenant_slots_reporter", default=None)


@contextmanager
def reporting(job: TenantJob) -> Iterator[Reporter]:
    """What reports in this block, and in the coroutines that it awaits, is about this job."""
    reporter = Reporter(job)
    token = _current.set(reporter)
    try:
        yield reporter
    finally:
        with suppress(ValueError):  # the block may be a generator's, which ends in another context than it began in
            _current.reset(token)


def is_reporting() -> bool:
    return _current.get() is not None


def _require_amount(name: str, value: object) -> None:
    if not is_number(value):
        raise InvalidProgress(name=name, value=shown(value), problem="it must be an int or a float")
    if not is_number(value, 0, HIGHEST_AMOUNT):
        raise InvalidProgress(name=name, value=shown(value), problem=f"it must be from 0 to {HIGHEST_AMOUNT}")


def _require_stat(name: str, value: object) -> None:
    problem = json_problem(name) or json_problem(value)
    if value is not None and not isinstance(value, (int, float, str)):
        problem = "give a number, a text, a boolean or None"
    elif is_number(value) and not problem and not is_number(value, -HIGHEST_AMOUNT, HIGHEST_AMOUNT):
        problem = f"it must be from {-HIGHEST_AMOUNT} to {HIGHEST_AMOUNT}"
    if problem:
        raise InvalidProgress(name=name, value=shown(value), problem=problem)


def _require_small(stats: Mapping[str, Stat]) -> None:
    size = len(json.dumps(stats))
    if size > STATS_BYTES:
        problem = f"they take {size} bytes, at most {STATS_BYTES} are kept"
        raise InvalidProgress(name="stats", value=f"{len(stats)} entries", problem=problem)
