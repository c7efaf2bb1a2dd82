"""What a job leaves to Python's collector, which would otherwise end it in the midst of the next job.

A generator that nobody has gone through ends its blocks when it is collected: it sets the session back to the schema of
its own tenant, or closes a cursor that is none any more, in whatever transaction is open by then. The error of a failed
job holds all that its frames had, and often is a name in one of them.
"""

from __future__ import annotations

import contextvars
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rq.timeouts import BaseTimeoutException

from tenant_slots import alarm

SECONDS_TO_END = 5
"""For what is let go of or collected: a generator may wait in its last block, and an event loop as it is closed."""

SECONDS_EACH = 0.1
"""For each one after that."""

LONG = 0.001
"""Seconds of processor time: the collector has looked at ten thousands of objects that stay."""


class LeftoversTimeout(BaseTimeoutException):
    """What a job has left, or what it has printed, does not come to its end."""


@contextmanager
def in_time() -> Iterator[None]:
    """Raises LeftoversTimeout in the block when that takes too long.

    Time and again: it ends the one that is collected just then, and Python goes on with the next one.
    """
    try:
        with alarm.time_limit(SECONDS_TO_END, LeftoversTimeout, again=SECONDS_EACH):
            yield
    finally:
        alarm.stop()  # where it rang just as the block was left, it would ring again


@contextmanager
def left_in_time() -> Iterator[None]:
    """As `in_time`, and goes on after the block."""
    with suppress(LeftoversTimeout), in_time():
        yield


def collect() -> None:
    """End what nobody holds any more, in a context of its own. The caller's alarm goes on."""
    with alarm.kept(), left_in_time():
        _collect()


def collect_between_jobs() -> None:
    """The same for what the job that has just ended has left, before its sessions are put back.

    What stays is put aside when there is much of it, such as the modules that the first job has loaded, or a cache: to
    look at it after each job would take longer than most jobs. It is not done each time, because what is put aside is
    not collected any more, once nobody holds it.
    """
    with left_in_time():
        if _seconds_to_collect() > LONG and _seconds_to_collect() > LONG:  # the second time there is nothing to end
            gc.freeze()


def _seconds_to_collect() -> float:
    """Of processor time."""
    began = time.thread_time()
    _collect()
    return time.thread_time() - began


def _collect() -> None:
    contextvars.copy_context().run(gc.collect)
