"""Jobs that end badly, each in one way. All of them write to the observer's history."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction
from rq import Retry

from tenant_slots import tenant_job
from tenant_slots.models import TenantJob
from tenant_slots.workers import inheritance
from tests.faults.observer import events, is_gone, observed, ticks_of
from tests.jobs import note

LONGEST = 60
"""Seconds after which a job that a test has forgotten ends by itself."""


@tenant_job("imports", tenant="tenant")
def quick(tenant: str, name: str, history: str, seconds: float = 0.0) -> None:
    with observed(history, tenant, name):
        time.sleep(seconds)


@tenant_job("imports", tenant="tenant")
def hold(tenant: str, name: str, history: str, path: str) -> None:
    """Runs until a file exists."""
    with observed(history, tenant, name):
        wait_for(path)


@tenant_job("imports", tenant="tenant")
def hold_own_row(tenant: str, name: str, history: str, path: str) -> None:
    """Nobody else can write to the job's row until a file exists."""
    with transaction.atomic():
        TenantJob.objects.select_for_update().get(args__1=name)
        with observed(history, tenant, name):
            wait_for(path)


@tenant_job("imports", tenant="tenant")
def hold_with_session(tenant: str, name: str, history: str, path: str) -> None:
    """As `hold`, after it has asked the database."""
    assert TenantJob.objects.exists()
    hold.tenant_task.function(tenant, name, history, path)  # type: ignore[attr-defined]


@tenant_job("imports", tenant="tenant")
def ask_database(tenant: str, name: str, history: str) -> None:
    with observed(history, tenant, name):
        assert TenantJob.objects.exists()


@tenant_job("imports", tenant="tenant")
def hold_with_children(tenant: str, name: str, history: str, path: str) -> None:
    """The first run starts a program and forks a child; a later one notes how many of them are left."""
    with observed(history, tenant, name):
        children = children_of(history)
        if not children:
            for pid in (subprocess.Popen(["sleep", str(LONGEST)]).pid, _forked_sleeper()):
                note(history, ticks_of("self")[1], f"child-{pid}", tenant, name)
        left = sum(not is_gone(pid) for pid in children)
        note(history, ticks_of("self")[1], f"left-{left}", tenant, name)
        wait_for(path)


@tenant_job("imports", tenant="tenant")
def hold_at_large(tenant: str, name: str, history: str, path: str, how: str) -> None:
    """As `hold`, after the process has made itself harder to end."""
    ESCAPES[how]()
    hold.tenant_task.function(tenant, name, history, path)  # type: ignore[attr-defined]


ESCAPES: dict[str, Any] = {
    "the kernel": lambda: ctypes.CDLL(None).prctl(inheritance.PR_SET_PDEATHSIG, 0),  # as a change of user does
    "its group": lambda: os.setpgid(0, os.getpgid(os.getppid())),
}


@tenant_job("imports", tenant="tenant")
def fork_and_fall_through(tenant: str, name: str, history: str) -> None:
    """Both processes come to the end of the function; the child writes a line of its own before."""
    with observed(history, tenant, name):
        if not os.fork():
            note(history, ticks_of("self")[1], f"child-{os.getpid()}", tenant, name)


OF_CHILD = "of the child"


@tenant_job("imports", tenant="tenant")
def leave_a_child(tenant: str, name: str, history: str, path: str) -> str:
    """As a daemon: nobody's child, in a group of its own. It comes to the end of the function when a file exists."""
    with observed(history, tenant, name):
        pass
    if between := os.fork():
        os.waitpid(between, 0)
        return "of the job"
    os.setsid()
    if os.fork():
        os._exit(0)
    note(history, ticks_of("self")[1], f"child-{os.getpid()}", tenant, name)
    wait_for(path)
    return OF_CHILD


@tenant_job("imports", tenant="tenant")
def hold_with_heirs(tenant: str, name: str, history: str, path: str, ways: list[str]) -> None:
    """As `hold_with_session`, beside children that it has started in these ways."""
    assert TenantJob.objects.exists()
    with observed(history, tenant, name):
        for way in ways:
            note(history, ticks_of("self")[1], f"child-{HEIRS[way]()}", tenant, name)
        wait_for(path)


def children_of(history: str) -> list[int]:
    return [int(event.kind.removeprefix("child-")) for event in events(history) if event.kind.startswith("child-")]


def _forked_sleeper() -> int:
    if not (pid := os.fork()):
        time.sleep(LONGEST)
        os._exit(0)
    return pid


def _sleeping_process() -> int | None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[LONGEST])
    process.start()
    return process.pid


HEIRS: dict[str, Any] = {
    "os.fork": _forked_sleeper,
    "multiprocessing": _sleeping_process,
    "subprocess": lambda: subprocess.Popen(["sleep", str(LONGEST)], close_fds=False).pid,
}


@tenant_job("imports", tenant="tenant")
def write(tenant: str, name: str, history: str, leave: str = "") -> None:
    """Creates a group; may leave the transaction in which it does so open."""
    with observed(history, tenant, name):
        if leave == "atomic":
            transaction.atomic().__enter__()
        elif leave == "autocommit":
            transaction.set_autocommit(False)
        Group.objects.create(name=name)


def wait_for(path: str) -> None:
    deadline = time.monotonic() + LONGEST
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@tenant_job("imports", tenant="tenant")
def die(tenant: str, name: str, history: str, how: str) -> None:
    with observed(history, tenant, name):
        DEATHS[how]()


def _run_out_of_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, used + 2**24))
    hoard = []
    while True:
        hoard.append(bytearray(2**20))


DEATHS: dict[str, Any] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(1)": lambda: os._exit(1),
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "sys.exit": lambda: sys.exit(3),
    "out of memory": _run_out_of_memory,
}


@tenant_job("imports", tenant="tenant")
def keep_the_gil(tenant: str, name: str, history: str, seconds: int) -> None:
    """No other thread of this process runs meanwhile: ctypes.PyDLL does not release the interpreter's lock.

    A later run keeps it for a moment only.
    """
    with observed(history, tenant, name):
        is_first = sum((event.kind, event.name) == ("start", name) for event in events(history)) == 1
        ctypes.PyDLL(None).sleep(seconds if is_first else 0)


@tenant_job("imports", tenant="tenant", timeout=1)
def too_slow(tenant: str, name: str, history: str) -> None:
    with observed(history, tenant, name):
        time.sleep(LONGEST)


@tenant_job("imports", tenant="tenant", timeout=1)
def swallow_the_timeout(tenant: str, name: str, history: str, path: str) -> None:
    with observed(history, tenant, name):
        try:
            time.sleep(LONGEST)
        except Exception:
            wait_for(path)


@tenant_job("imports", tenant="tenant")
def ask_again(tenant: str, name: str, history: str, times: int) -> Retry | None:
    """Returns RQ's Retry until it ran `times` times."""
    with observed(history, tenant, name):
        again = TenantJob.objects.get(args__1=name).failures + 1 < times
        return Retry(max=times) if again else None


class BadText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class BadNotes(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


class BadNotesOutside(Exception):
    """Not to be formatted because of what it was raised from."""


def _raise_in_a_context() -> None:
    try:
        raise BadNotes
    except BadNotes:
        raise BadNotesOutside from None


def _nested(depth: int) -> BaseExceptionGroup[Exception]:
    group = ExceptionGroup("innermost", [ValueError()])
    for _ in range(depth):
        group = ExceptionGroup("around", [group])
    return group


def _raise(error: BaseException) -> None:
    raise error


def _with_itself_as_its_cause() -> Exception:
    error = ValueError("circle")
    error.__cause__ = error
    return error


ERRORS: dict[str, Any] = {
    "BadText": lambda: _raise(BadText()),
    "BadNotes": lambda: _raise(BadNotes()),
    "BadNotesOutside": _raise_in_a_context,
    "SyntaxError": lambda: _raise(SyntaxError("odd", ("file", "line?", object(), 5))),
    "ExceptionGroup": lambda: _raise(_nested(5000)),
    "ValueError": lambda: _raise(_with_itself_as_its_cause()),
    "UnicodeError": lambda: _raise(UnicodeError("\ud800 and \0")),
}


@tenant_job("imports", tenant="tenant")
def raise_oddly(tenant: str, kind: str, history: str) -> None:
    with observed(history, tenant, kind):
        ERRORS[kind]()


@tenant_job("imports", tenant="tenant", retry=Retry(max=3))
def cancel_self_and_raise(tenant: str, name: str, history: str) -> None:
    with observed(history, tenant, name):
        assert TenantJob.objects.get(args__1=name).cancel()
        raise RuntimeError("raised after the cancel")


@tenant_job("imports", tenant="tenant", retry=Retry(max=1, interval=1))
def raise_once(tenant: str, name: str, history: str) -> None:
    with observed(history, tenant, name):
        if not TenantJob.objects.get(args__1=name).failures:
            raise RuntimeError("the first time")


def raise_on_success(*_: Any) -> None:
    raise RuntimeError("the callback is broken")


def not_a_tenants(history: str, name: str, path: str) -> None:
    """A job of plain RQ: the control."""
    with observed(history, "plain", name):
        wait_for(path)
