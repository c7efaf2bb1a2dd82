"""What a job may have changed in a process that goes on to run another one, and putting that back."""

from __future__ import annotations

import _thread
import _tracemalloc
import asyncio
import decimal
import faulthandler
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
from _signal import getsignal, sigpending  # type: ignore[import-not-found]  # see `_restore_signals`
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.utils import timezone, translation

from tenant_slots import logs
from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import threads_of_pools
from tenant_slots.models import TenantJob
from tenant_slots.running.coroutines import has_left_loop
from tenant_slots.workers import floating_point, left_processes
from tenant_slots.workers.environment import Environment
from tenant_slots.workers.rights import rights
from tenant_slots.workers.sessions import end_thread_of_coroutines

logger = logging.getLogger("tenant_slots")

SENDING_IN_BACKGROUND = ("opentelemetry", "sentry_sdk", "tenant_slots.parting")
"""Whose threads are no job's. A work-horse for each job would be the price of telling these packages of jobs."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _traces_memory() -> int:
    """Frames that are noted of each allocation; 0: none is noted. PYTHONTRACEMALLOC has them noted before anybody has
    loaded `tracemalloc`.
    """
    return _tracemalloc.is_tracing() and _tracemalloc.get_traceback_limit()


def _trace_memory(frames: int) -> None:
    _tracemalloc.stop()
    if frames:
        _tracemalloc.start(frames)


OF_INTERPRETER: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (threading.gettrace, threading.settrace),
    (threading.getprofile, threading.setprofile),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (threading.stack_size, threading.stack_size),
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    (sys.get_coroutine_origin_tracking_depth, sys.set_coroutine_origin_tracking_depth),
    (sys.get_asyncgen_hooks, lambda hooks: sys.set_asyncgen_hooks(*hooks)),
    (floating_point.environment, floating_point.set_environment),
    (gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds)),
    (gc.isenabled, lambda collects: gc.enable() if collects else gc.disable()),
    (gc.get_debug, gc.set_debug),
    (lambda: list(gc.callbacks), lambda callbacks: gc.callbacks.__setitem__(slice(None), callbacks)),
    (lambda: list(gc.garbage), lambda kept: gc.garbage.__setitem__(slice(None), kept)),
    (_traces_memory, _trace_memory),
    (socket.getdefaulttimeout, socket.setdefaulttimeout),
)
"""What tells and what sets how Python runs code: whom it calls meanwhile, how deep it goes, what it does by the way,
and for how long it waits.
"""

UNCOUNTED = (threading._MainThread, threading._DummyThread)  # type: ignore[attr-defined]
"""Threads that Python has not started, so that `_thread` does not count them. It also counts those that a job has
started without `threading`, which does not know them."""

SECONDS_TO_BEGIN = 0.01
"""In which a thread that was just made comes to run."""

LOOKS = 10
"""How often it is looked for meanwhile."""


class Baseline:
    """A process as it was before its first job: whatever a job changes of this the next one does not see."""

    def __init__(self) -> None:
        self._threads, self._uncounted = _threads(), _uncounted()
        self._has_processes = left_processes.are_left()
        self._rights = rights()
        self._signals = {number: getsignal(number) for number in _settable_signals()}
        self._signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self._policy = asyncio.get_event_loop_policy()
        self._loop = _event_loop_of(self._policy)
        self._wakes = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakes)
        self._streams = _streams()
        self._path, self._directory = _path(), _directory()
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._environment = Environment()
        self._locale = locale.setlocale(locale.LC_ALL)
        self._decimal_context = decimal.getcontext().copy()
        self._interpreter = [now() for now, _ in OF_INTERPRETER]
        self._tools = _tools()
        self._highest_file = (_lowest_free_file() + os.sysconf("SC_OPEN_MAX")) // 2

    def is_restorable(self, job: TenantJob | None = None) -> bool:
        """Not where a job has left what cannot be ended, a thread, loop or process that goes on, or memory, of which
        the system gets little back.

        Nor where jobs have left half of all files open that there may be, or given up what a process seldom gets back:
        see `rights`.

        Args:
            job: the one that has run, if that was one of ours, for the log.
        """
        self._wait_for_new_threads()
        if _threads() > self._threads:
            end_thread_of_coroutines()
        limit = app_settings.HORSE_MAX_RSS
        is_small = (limit is None or resident_bytes() <= limit) and self._has_files_left()
        has_its_place = rights() == self._rights and self._finds_its_way_back() and threading.get_ident is get_ident
        is_alone = not has_left_loop() and not self._has_another_thread(job) and not self._has_another_process(job)
        return is_small and has_its_place and is_alone

    def _wait_for_new_threads(self) -> None:
        """Python counts one of `_thread` when it first runs, and the system when it is made.

        One of a library that is no thread of Python's is waited for once, if it stays.
        """
        looks, uncounted = 0, _uncounted()
        while uncounted > self._uncounted and looks < LOOKS:
            time.sleep(SECONDS_TO_BEGIN / LOOKS)
            looks, uncounted = looks + 1, _uncounted()
        self._uncounted = uncounted

    def _has_another_thread(self, job: TenantJob | None) -> bool:
        """Says so: where every job leaves one, as a library may, each pays for a work-horse of its own."""
        if _threads() <= self._threads:
            return False
        names = ", ".join(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
        text = "a job left a thread running, so another work-horse takes the next job; it has %s"
        logger.info(text, names, extra=logs.about(job))
        return True

    def _has_another_process(self, job: TenantJob | None) -> bool:
        """Says so, for the same reason. Where there were some before the first job, nobody can tell."""
        if self._has_processes or not left_processes.are_left():
            return False
        text = "a job left a process that runs, or that it has not waited for, so another work-horse takes the next job"
        logger.info(text, extra=logs.about(job))
        return True

    def _has_files_left(self) -> bool:
        try:
            return _lowest_free_file() <= self._highest_file
        except OSError:
            return False

    def _finds_its_way_back(self) -> bool:
        return self._directory is not None or _path() == self._path

    def let_go(self) -> None:
        """Of what a job has left with Python to be called, so that it can be collected."""
        self._restore_interpreter()
        self._restore_event_loop()
        self._restore_signals()
        self._environment.restore()
        sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]

    def restore(self) -> None:
        """All but the sessions of the database."""
        self.let_go()
        if self._directory is not None:
            os.fchdir(self._directory)
        os.umask(self._umask)
        self._restore_conventions()
        random.seed()
        translation.deactivate()
        timezone.deactivate()

    def _restore_interpreter(self) -> None:
        """Before all else: a job's own functions may be called for each line of ours."""
        faulthandler.cancel_dump_traceback_later()  # which may be to end the process
        for (now, put_back), before in zip(OF_INTERPRETER, self._interpreter, strict=True):
            if now() != before:
                put_back(before)
        for number in _tools() - self._tools:
            _take_away_tool(number)

    def _restore_event_loop(self) -> None:
        """One that a job has made and not closed would go on with its coroutines in the job that runs a loop next.

        Before signals: a loop gives back those that it handles.
        """
        loop = _event_loop_of(asyncio.get_event_loop_policy())
        if loop is not None and loop is not self._loop and not loop.is_running():
            with suppress(Exception):
                loop.close()
        if asyncio.get_event_loop_policy() is not self._policy:
            asyncio.set_event_loop_policy(self._policy)
        if hasattr(self._policy, "_local"):
            self._policy._local = type(self._policy._local)()  # who asks for a loop gets one, as in a new process
        if self._loop is not None:
            asyncio.set_event_loop(self._loop)

    def _restore_signals(self) -> None:
        """Timers first: what they send ends a process that has no handler. What a job has blocked is forgotten.

        Asked without the enums that `signal` makes of each answer: that takes 0.1 ms after each job.
        """
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number in sigpending():
            if self._signals.get(number) is not None:
                signal.signal(number, signal.SIG_IGN)
        for number, handler in self._signals.items():
            if handler is not None and getsignal(number) != handler:  # None: not set from Python
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakes)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._signal_mask)

    def _restore_conventions(self) -> None:
        """How this process reads and writes numbers and times. Contexts that are copied share one of `decimal`."""
        decimal.setcontext(self._decimal_context.copy())
        if locale.setlocale(locale.LC_ALL) != self._locale:
            locale.setlocale(locale.LC_ALL, self._locale)
        time.tzset()  # as the environment says again


def _streams() -> tuple[Any, ...]:
    return sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__


def _tools() -> set[int]:
    """Those that watch how Python runs code, by their numbers, of which there are six (Python 3.12 and later)."""
    monitoring: Any = getattr(sys, "monitoring", None)
    return {number for number in range(6) if monitoring.get_tool(number)} if monitoring else set()


def _take_away_tool(number: int) -> None:
    """Its callbacks too: those for single pieces of code are called without it (Python 3.12 and 3.13)."""
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    for event in (1 << bit for bit in range(monitoring.events.RERAISE.bit_length() + 8)):
        with suppress(ValueError):  # there is none of that number
            monitoring.register_callback(number, event, None)
    monitoring.set_events(number, 0)
    monitoring.free_tool_id(number)


def _event_loop_of(policy: asyncio.AbstractEventLoopPolicy) -> asyncio.AbstractEventLoop | None:
    """That of this thread, if there is one. To ask for it would make one (Python 3.11 to 3.13)."""
    loop: asyncio.AbstractEventLoop | None = getattr(getattr(policy, "_local", None), "_loop", None)
    return loop


def _directory() -> int | None:
    """None where this user may not look into it, as after ``sudo -u`` in somebody else's home."""
    with suppress(PermissionError):
        return os.open(".", os.O_RDONLY)
    return None


def _path() -> str:
    """Empty for a directory that was deleted."""
    with suppress(OSError):
        return os.getcwd()
    return ""


def _lowest_free_file() -> int:
    """The descriptor that is given out next, and so about how many are in use."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def _threads() -> int:
    """How many run what a job may have started."""
    known = threading.enumerate()
    unknown = _thread._count() - sum(not isinstance(thread, UNCOUNTED) for thread in known)
    return sum(not _sends(thread) for thread in known) + unknown - threads_of_pools()


def _uncounted() -> int:
    """How many threads the system knows, and Python does not, its main one included; 0 where it does not say."""
    with suppress(OSError):
        return len(os.listdir("/proc/self/task")) - _thread._count()
    return 0


def _sends(thread: threading.Thread) -> bool:
    """Whether it is one that such a library makes when it first has something to send, and once in each process."""
    target = getattr(thread, "_target", None)
    module = getattr(target, "__module__", None) or ""
    return any(f"{module}.".startswith(f"{name}.") for name in SENDING_IN_BACKGROUND)


def resident_bytes() -> int:
    """How much memory this process takes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _settable_signals() -> set[int]:
    return {int(number) for number in signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}
