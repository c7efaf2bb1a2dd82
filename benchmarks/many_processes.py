"""The same work in many processes at once, which begin together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LATEST = 120
"""Seconds in which all processes have begun, and, after the work, have ended."""


def at_once(processes: int, work: Callable[..., T], *arguments: Any, seconds: float) -> list[T]:
    """What each process gives for its number and the arguments.

    Args:
        seconds: how long the work takes.
    """
    from django.db import connections

    connections.close_all()  # a forked process must not use this one's
    context = multiprocessing.get_context("fork")
    given, begin = context.Queue(), context.Barrier(processes)
    started = [
        context.Process(target=_give, args=(given, begin, work, number, *arguments), daemon=True)
        for number in range(processes)
    ]
    for process in started:
        process.start()
    found: list[T] = [given.get(timeout=seconds + LATEST) for _ in started]
    for process in started:
        process.join()
    return found


def _give(given: Any, begin: Any, work: Callable[..., T], number: int, *arguments: Any) -> None:
    from django.db import connection

    connection.ensure_connection()
    begin.wait(LATEST)
    given.put(work(number, *arguments))
