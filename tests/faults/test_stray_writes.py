"""What a job writes to a descriptor that is not its own, as code does that has closed its own before."""

from __future__ import annotations

import json
import os
import socket
import struct

import pytest

from tenant_slots import tenant_job
from tenant_slots.models import State
from tests.factories import counters_match, fresh
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

CLASSES = pytest.mark.parametrize(
    "worker_class", ["tenant_slots.workers.TenantPreforkWorker", "tenant_slots.workers.TenantWorker"]
)

UNKNOWN = json.dumps({"ended": None, "bogus": 1}).encode()

STRAY = {
    "a line of text": b"a line of text\n",
    "two bytes": b"\0\0",
    "no JSON": struct.pack("!I", 3) + b"xyz" + struct.pack("!I", 0),
    "no report": struct.pack("!I", len(UNKNOWN)) + UNKNOWN + struct.pack("!I", 0),
}


@tenant_job("imports", tenant="tenant")
def write_astray(tenant: str, what: str) -> int:
    """To all sockets without a name, as the line to the worker is one."""
    written = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_UNIX and one.getpeername() in ("", b""):
                    written += one.send(STRAY[what])
        except OSError:
            continue
    return written


@tenant_job("imports", tenant="tenant")
def empty_files_in_memory(tenant: str) -> int:
    """Of which the worker looks at one in place: where that is gone, the system ends who looks."""
    emptied = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if "memfd" in os.readlink(f"/proc/self/fd/{name}"):
                os.ftruncate(int(name), 0)
                emptied += 1
        except OSError:
            continue
    return emptied


@CLASSES
@pytest.mark.parametrize("what", STRAY)
def test_i7_i8_what_comes_over_the_line_and_is_no_report(
    workers: FaultWorkers, observer: Observer, what: str, worker_class: str
) -> None:
    """A length was read from it, and so much waited for; or an error ended the worker."""
    (worker,) = workers.start(1, worker_class=worker_class)
    first = write_astray.enqueue("whale", what)
    other = jobs.quick.enqueue("acme", "other", observer.path)
    wait_until(lambda: fresh(other).has_ended or worker.poll() is not None, 20, "the worker stands still")
    assert worker.poll() is None
    assert (fresh(other).state, fresh(first).state, first.crashes) == (State.FINISHED, State.FINISHED, 0)
    assert first.result == len(STRAY[what]), "the control: it has hit the line"
    assert counters_match()


@CLASSES
def test_i8_files_in_memory_that_were_emptied(workers: FaultWorkers, observer: Observer, worker_class: str) -> None:
    (worker,) = workers.start(1, worker_class=worker_class)
    first = empty_files_in_memory.enqueue("whale")
    other = jobs.quick.enqueue("acme", "other", observer.path)
    wait_until(lambda: fresh(other).has_ended or worker.poll() is not None, 20, "the worker stands still")
    assert (worker.poll(), other.state) == (None, State.FINISHED)
    wait_until(lambda: fresh(first).has_ended)
    assert first.result > 0, "the control: it has emptied some"
    assert counters_match()
