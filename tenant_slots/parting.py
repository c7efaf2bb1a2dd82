"""What a process that runs jobs does last, once there are no more for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("tenant_slots")

_wishes: dict[int, dict[Callable[[], object], None]] = {}
"""By process: a child that a job has forked is none of those that are asked."""


@contextmanager
def granting_wishes() -> Iterator[None]:
    """Around all the jobs of a process: what `before_parting` was given is done after the last one."""
    wishes = _wishes[os.getpid()] = {}
    try:
        yield
    finally:
        is_own = _wishes.pop(os.getpid(), None) is not None
    for wish in wishes if is_own else ():
        try:
            wish()
        except Exception:
            logger.exception("what a process of jobs was to do last has failed")


def before_parting(wish: Callable[[], object]) -> bool:
    """Have it called once when this process has run its last job; it may take two seconds.

    False where nobody would call it, as in a work-horse that runs one job only.
    """
    if os.getpid() not in _wishes:
        return False
    _wishes[os.getpid()][wish] = None
    return True
