"""How a job has Python run code, in a work-horse that goes on to run another tenant's job."""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tenant_slots import tenant_job
from tests.processes import Workers
from tests.workers.test_baseline import PREFORK, results_under

pytestmark = pytest.mark.django_db(transaction=True)

seen: list[str] = []


def look(frame: FrameType, event: str, arg: object) -> Any:
    if "secret" in frame.f_locals:
        seen.append(event)
    return look


def redirect_output() -> None:
    with open(os.devnull, "rb") as file:
        os.dup2(file.fileno(), 1)


def watch_calls() -> None:
    """As cProfile does it, and coverage (Python 3.12 and later)."""
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - unknown to Python 3.11
    number = monitoring.PROFILER_ID
    monitoring.use_tool_id(number, "left")
    monitoring.register_callback(number, monitoring.events.PY_START, lambda code, offset: seen.append("a call"))
    monitoring.set_events(number, monitoring.events.PY_START)


LEFT: dict[str, Callable[[], object]] = {
    **({"a tool that watches calls": watch_calls} if hasattr(sys, "monitoring") else {}),
    "a tracer": lambda: sys.settrace(look),
    "a profiler": lambda: sys.setprofile(look),
    "a tracer of threads": lambda: threading.settrace(look),
    "little room for calls": lambda: sys.setrecursionlimit(150),
    "large stacks of threads": lambda: threading.stack_size(64 * 1024 * 1024),
    "no collection of garbage": gc.disable,
    "rare turns of threads": lambda: sys.setswitchinterval(1),
    "a watch for hangs": lambda: faulthandler.dump_traceback_later(0.5, exit=True),
    "another standard output": redirect_output,
    "notes of each collection": lambda: gc.set_debug(gc.DEBUG_SAVEALL),
    "what was collected": lambda: gc.garbage.append("a secret"),
    "a hook of the collector": lambda: gc.callbacks.append(lambda phase, info: seen.append("a collection")),
    "a trace of memory": tracemalloc.start,
    "little time for answers": lambda: socket.setdefaulttimeout(0.5),
}


@tenant_job("imports", tenant="tenant")
def leave(tenant: str, what: str) -> None:
    LEFT[what]()


def deep(levels: int) -> int:
    return levels and deep(levels - 1)


@tenant_job("imports", tenant="tenant")
def meet(tenant: str, secret: str, seconds: float = 0.0) -> list[Any]:
    seen.clear()
    deep(300)
    time.sleep(seconds)
    thread = threading.Thread(target=deep, args=[1])
    thread.start()
    thread.join()
    found = sorted({*seen, *filter(None, [threading.gettrace() and "a tracer of threads"])})
    collects = [gc.isenabled(), gc.get_debug(), tracemalloc.is_tracing(), len(gc.callbacks), gc.garbage]
    waits = [sys.getswitchinterval(), socket.getdefaulttimeout()]
    return [found, collects, waits, threading.stack_size(), os.readlink("/proc/self/fd/1")]


@pytest.mark.parametrize("what", LEFT)
def test_another_tenants_job_does_not_meet_what_a_job_has_left(workers: Workers, what: str) -> None:
    seconds = 1.0 if what == "a watch for hangs" else 0.0
    jobs = [meet.enqueue("acme", "mine"), leave.enqueue("whale", what), meet.enqueue("acme", "mine", seconds)]
    before, _, after = results_under(workers, PREFORK, jobs)
    assert before[0] == []
    assert after == before
