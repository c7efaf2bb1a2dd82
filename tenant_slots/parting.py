"""What a process that runs jobs does for libraries when a run's end is recorded, or once there are no more jobs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from threading import Thread

logger = logging.getLogger("tenant_slots")

SECONDS_TO_GRANT = 2.0
"""For which a process waits at most until its wishes are granted, however many they are."""

Wish = Callable[[], object]

_wishes: dict[int, dict[Wish, bool]] = {}
"""By process: a child that a job has forked is none of those that are asked. True: before the next job."""

_threads: dict[Wish, Thread] = {}
"""Which have granted them, or still do: no second one waits for what the first one cannot have."""


@contextmanager
def granting_wishes() -> Iterator[None]:
    """Around all the jobs of a process: what `before_parting` was given is done after the last one.

    Inside of another such block it does nothing.
    """
    process = os.getpid()
    if process in _wishes:
        yield
        return
    _wishes[process] = {}
    try:
        yield
    finally:
        if os.getpid() == process:
            _grant(_wishes.pop(process))


def before_parting(wish: Wish, *, soon: bool = False) -> None:
    """Have it called once when this process has run its last job; it may take `SECONDS_TO_GRANT`.

    Nobody does where no process ends: a web server that runs jobs in immediate mode lives on.

    Args:
        soon: before the next job begins, which may kill the process.
    """
    wishes = _wishes.get(os.getpid())
    if wishes is not None:
        wishes[wish] = wishes.get(wish, False) or soon


def has_wishes(*, parts: bool) -> bool:
    """Whether there is something to do before this process runs another job; or, where it parts, before that."""
    wishes = _wishes.get(os.getpid(), {})
    return bool(wishes) if parts else any(wishes.values())


def grant_soon() -> None:
    """What is to be done before the next job begins."""
    wishes = _wishes.get(os.getpid(), {})
    soon = [wish for wish, is_soon in wishes.items() if is_soon]
    for wish in soon:
        del wishes[wish]
        if _is_being_granted(wish):
            wishes[wish] = False  # what is new since that began is for the parting
    _grant(soon)


def _grant(wishes: Iterable[Wish]) -> None:
    """In threads: a library may wait for its server for longer than it was told to, and nobody waits for that."""
    try:
        threads = [_granting(wish) for wish in wishes]
    except RuntimeError as error:  # the system has no room for another thread
        logger.warning("what a process of jobs was to do last is left undone: %s", error)
        return
    deadline = time.monotonic() + SECONDS_TO_GRANT
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _granting(wish: Wish) -> Thread:
    if not _is_being_granted(wish):
        _threads[wish] = Thread(target=_call, args=(copy_context(), wish), daemon=True)
        _threads[wish].start()
    return _threads[wish]


def _is_being_granted(wish: Wish) -> bool:
    return wish in _threads and _threads[wish].is_alive()


def _call(context: Context, wish: Wish) -> None:
    try:
        context.run(wish)
    except Exception:
        logger.exception("what a process of jobs was to do last has failed")
