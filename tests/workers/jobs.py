"""Jobs that say which process runs them, and what RQ keeps of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from rq import get_current_job

from tenant_slots import tenant_job
from tenant_slots.models import TenantQueue
from tenant_slots.running.supervised import RiddenRun
from tests.jobs import note

MEGABYTE = 1024 * 1024

hoard: list[object] = []


@tenant_job("imports", tenant="tenant")
def process(tenant: str) -> int:
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def grow(tenant: str, megabytes: int) -> int:
    hoard.append(bytearray(os.urandom(MEGABYTE)) * megabytes)
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def open_files(tenant: str, number: int) -> int:
    hoard.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(number))
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def backend(tenant: str) -> list[int]:
    """This process, and that of PostgreSQL that serves it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return [os.getpid(), *cursor.fetchone()]


@tenant_job("imports", tenant="tenant", timeout=1)
def too_slow(tenant: str) -> None:
    time.sleep(60)


@tenant_job("imports", tenant="tenant")
def say(tenant: str, text: str) -> None:
    sys.stdout.write(f"{text}\n")


@tenant_job("imports", tenant="tenant")
def leave_process(tenant: str, command: list[str]) -> int:
    """The one that it has started itself, or that this tells of."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    hoard.append(process)
    if command[0] != "sh":
        return process.pid
    assert process.stdout
    left_behind = int(process.stdout.readline())
    process.wait()
    return left_behind


@tenant_job("imports", tenant="tenant")
def share_memory(tenant: str) -> int:
    """Python starts a process then that clears such memory away, and stays."""
    memory = SharedMemory(create=True, size=1)
    memory.close()
    memory.unlink()
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def die_once(tenant: str, path: str) -> int:
    if not Path(path).exists():
        Path(path).touch()
        os.abort()
    return os.getpid()


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("not to be kept")


RESULTS: dict[str, Any] = {
    "plain": lambda: {"rows": [1, 2, 3]},
    "nothing": lambda: None,
    "falsy": lambda: 0,
    "large": lambda: "x" * (3 * MEGABYTE),
    "of a class": lambda: {1, 2},
    "unpicklable": Unpicklable,
}


@tenant_job("imports", tenant="tenant")
def give(tenant: str, kind: str) -> Any:
    return RESULTS[kind]()


@tenant_job("imports", tenant="tenant", result_ttl=0)
def give_and_forget(tenant: str) -> str:
    return "read by nobody"


@tenant_job("imports", tenant="tenant")
def save_meta(tenant: str) -> None:
    rq_job = get_current_job()
    assert rq_job is not None
    rq_job.meta["rows"] = 7
    rq_job.save_meta()  # type: ignore[no-untyped-call]


@tenant_job("imports", tenant="tenant")
def fail(tenant: str, message: str) -> None:
    raise ValueError(message)


@tenant_job("imports", tenant="tenant")
def import_receivers(tenant: str, name: str, history: str) -> None:
    """As a job's own imports may bring some that nobody else knows."""
    from tests.workers import late_receivers  # noqa: F401

    note(history, "run", tenant, name)


@tenant_job("imports", tenant="tenant")
def run(tenant: str, name: str, history: str, how: str = "") -> None:
    """`how` is read by receivers."""
    note(history, "run", tenant, name)
    if how == "fails":
        raise ValueError
    if how == "leaves its tenant queue locked":
        block = transaction.atomic()
        block.__enter__()
        hoard.append(block)
        TenantQueue.objects.select_for_update().get(tenant=tenant).save()
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits itself":
        sys.exit(3)


@tenant_job("imports", tenant="tenant")
async def process_of_coroutine(tenant: str) -> int:
    await TenantQueue.objects.acount()
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def print_where_nobody_reads(tenant: str, blocks_alarms: bool) -> int:
    """What is more than a pipe takes."""
    reads, writes = os.pipe()
    sys.stdout = os.fdopen(writes, "w", buffering=MEGABYTE)
    sys.stdout.write("x" * (MEGABYTE - 1))
    hoard.append(reads)
    if blocks_alarms:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def select_another_database(tenant: str) -> int:
    rq_job = get_current_job()
    assert rq_job is not None
    rq_job.connection.execute_command("SELECT", 7)
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def standard_files(tenant: str) -> list[str]:
    return [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]


@tenant_job("imports", tenant="tenant")
def break_what_begins(tenant: str) -> int:
    """As one that forgets modules, or leaves a mock in the place of what a work-horse needs."""
    RiddenRun.begin = _fail  # type: ignore[method-assign]
    return os.getpid()


def _fail(*_: Any) -> bool:
    raise RuntimeError("broken by a job")
