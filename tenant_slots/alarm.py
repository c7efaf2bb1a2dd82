"""RQ's alarm, the SIGALRM that ends a job's function: to ask whether it is set, disarm it, or set one of ours.

A signal reaches only the main thread of a process, and Windows has none; there all of this does nothing.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from rq.timeouts import BaseDeathPenalty, UnixSignalDeathPenalty

AT_ONCE = 0.001
"""Seconds; none at all would set no alarm."""


def rq_handler() -> Any:
    """The handler that RQ has set for its timeout; None where it has set none that could be handled here."""
    if not _can_ring():
        return None
    handler = signal.getsignal(signal.SIGALRM)
    return handler if isinstance(getattr(handler, "__self__", None), BaseDeathPenalty) else None


def disarm() -> None:
    """RQ's alarm is for the function; once that has ended it would interrupt the recording of the end."""
    if rq_handler() is not None:
        signal.alarm(0)


def stop() -> None:
    """Whoever has set one."""
    if _can_ring():
        signal.alarm(0)


@contextmanager
def kept() -> Iterator[None]:
    """Whatever the block does with it, the alarm of its caller rings when it would have, or else after the block."""
    if not _can_ring():
        yield
        return
    handler, began = signal.getsignal(signal.SIGALRM), time.monotonic()
    seconds, again = signal.getitimer(signal.ITIMER_REAL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        yield
    finally:
        signal.alarm(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:  # one that is none of Python's
            signal.signal(signal.SIGALRM, handler)
        if seconds:
            left = seconds - (time.monotonic() - began)
            signal.setitimer(signal.ITIMER_REAL, max(left, AT_ONCE), again)


def time_limit(
    seconds: float, error: type[BaseException], before: Callable[[], object] = lambda: None, again: float = 0
) -> AbstractContextManager[object]:
    """Raises `error` after `seconds`, at least 1, where a signal can do so.

    Args:
        before: called in the midst of whatever takes so long, before it is left.
        again: seconds after which it is raised once more, and so on, where it may be lost; 0 for once.
    """
    if not _can_ring():
        return nullcontext()
    return _Limit(max(1, seconds), error, before, again)


class _Limit(UnixSignalDeathPenalty):
    def __init__(self, seconds: float, error: type[BaseException], before: Callable[[], object], again: float) -> None:
        super().__init__(seconds, error)  # type: ignore[no-untyped-call]
        self._before, self._again = before, again

    def setup_death_penalty(self) -> None:
        """RQ's takes whole seconds: a third of those that a sweep has where leases are short.

        A job may have blocked the signal; one that has come meanwhile is forgotten.
        """
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, self.handle_death_penalty)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, self._timeout, self._again)

    def handle_death_penalty(self, signum: int, frame: object) -> None:
        self._before()
        super().handle_death_penalty(signum, frame)  # type: ignore[no-untyped-call]

    def cancel_death_penalty(self) -> None:
        """Where it rings just as the block is left, that is done. RQ sees to it for errors of its own alone."""
        with suppress(self._exception):
            super().cancel_death_penalty()  # type: ignore[no-untyped-call]


def _can_ring() -> bool:
    return hasattr(signal, "SIGALRM") and threading.current_thread() is threading.main_thread()
