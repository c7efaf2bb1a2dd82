"""A run and its outbox: what a work-horse leaves is whole or nothing, and is the outcome of its own run."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import django_rq
import pytest
from django.db import DatabaseError, OperationalError, connections, transaction

from tenant_slots import memory_file, owners, slots, tenant_job
from tenant_slots.db.sessions import renew
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import recording
from tenant_slots.running import run as runs
from tenant_slots.running.outbox import Outbox
from tenant_slots.running.run import Run, WatchedRun
from tenant_slots.witness import Witness
from tenant_slots.workers import TenantSimpleWorker
from tests import jobs
from tests.factories import admit, end_run, fresh, in_thread, owner, running_job, tenant_queue, waiting_job
from tests.history import History

OUTCOME = {"state": "finished", "result": {"rows": [1, 2, 3]}}


def test_the_outcome_of_a_run_is_taken_by_its_token() -> None:
    outbox = Outbox()
    assert outbox.take(7) is None
    outbox.put(7, OUTCOME)
    assert outbox.take(7) == OUTCOME
    assert outbox.take(8) is None, "another run's outcome is none of ours"


def test_a_shorter_outcome_than_the_one_before_is_read_alone() -> None:
    outbox = Outbox()
    outbox.put(7, {"state": "failed", "error": "x" * 100_000})
    outbox.put(8, OUTCOME)
    assert outbox.take(8) == OUTCOME


@pytest.mark.parametrize("kept", [0, 3, 15, 16, 20, 40])
def test_an_outcome_that_was_cut_off_is_nothing(kept: int) -> None:
    outbox = Outbox()
    outbox.put(7, OUTCOME)
    with outbox._file.opened() as file:
        os.ftruncate(file, kept)
    assert outbox.take(7) is None


def test_an_outcome_under_an_older_header_is_nothing() -> None:
    """A horse that is killed after it has written the content and before the header."""
    outbox = Outbox()
    outbox.put(7, OUTCOME)
    with outbox._file.opened() as file:
        os.pwrite(file, b'{"state": "failed!!"', outbox.header.size)
    assert outbox.take(7) is None


def test_it_takes_no_room_on_a_disk_and_is_closed_with_its_worker() -> None:
    outbox = Outbox()
    with outbox._file.opened() as descriptor:
        pass
    assert os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:")
    del outbox
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("in_memory", [True, pytest.param(False, id="control")])
def test_a_full_disk_keeps_no_outcome_from_the_worker(in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of temporary files. What is written there is refused with the same error as to this device."""
    monkeypatch.setattr(memory_file, "disk_file", lambda label: os.open("/dev/full", os.O_RDWR))
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    outbox = Outbox()
    with nullcontext() if in_memory else pytest.raises(OSError, match="No space left on device"):
        outbox.put(7, OUTCOME)
    assert outbox.take(7) == (OUTCOME if in_memory else None)


@pytest.mark.django_db(transaction=True)
def test_a_child_that_a_job_has_forked_ends_nobodys_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fell through to the end of the function: in the child of a work-horse, and of a worker without one."""
    job = running_job(tenant_queue(), owner())
    run, outbox = Run("worker"), Outbox()
    watched = WatchedRun(owner(), Witness(), outbox, horse=1)
    run.job = watched.job = job
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        watched.end({"state": State.FINISHED, "result": "the child's"})
        run.end({"state": State.FINISHED, "result": "the child's"})
    assert (outbox.take(job.token), fresh(job).state) == (None, State.RUNNING)
    end_run(job, state=State.FINISHED, result="its own")
    assert TenantJob.objects.get().result == "its own"


@pytest.mark.django_db(transaction=True)
def test_a_start_that_raises_leaves_no_run_behind_that_would_count_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    admit(row)

    def start(*_: Any) -> bool:
        raise DatabaseError("no")

    monkeypatch.setattr(slots, "start", start)
    before = set(owners.runs_here)
    with pytest.raises(DatabaseError):
        Run("worker").begin(job.uuid, 1)
    assert owners.runs_here == before


@pytest.mark.django_db(transaction=True)
def test_an_outage_is_told_when_the_job_cannot_even_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    admit(row)
    original, failures, told = runs.together, [OperationalError("gone")], list[str]()

    def together(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args)

    monkeypatch.setattr(runs, "together", together)
    assert Run("worker", on_outage=lambda: told.append("outage")).begin(job.uuid, 1)
    assert told == ["outage"]


@tenant_job("imports", tenant="tenant")
def leave_a_transaction_open(tenant: str) -> None:
    transaction.atomic().__enter__()
    TenantQueue.objects.create(tenant="half a transaction", queue="imports")


def states_seen_by_others() -> list[str]:
    return in_thread(lambda: list(TenantJob.objects.order_by("pk").values_list("state", flat=True)))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_mended", [True, False])
def test_a_job_that_leaves_a_transaction_open_does_not_swallow_all_later_work(
    is_mended: bool, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a worker without work-horses. The control: left as it is, nobody else sees what is written from then on."""
    if not is_mended:
        monkeypatch.setattr(recording, "leave_leftovers", lambda job, before: None)
    leave_a_transaction_open.enqueue("acme")
    jobs.record.enqueue("acme", "second", history.path)
    queue = django_rq.get_queue("imports")
    TenantSimpleWorker([queue], connection=queue.connection).work(burst=True)
    finished = [State.FINISHED] * 2
    assert (states_seen_by_others() == finished) is is_mended
    assert in_thread(TenantQueue.objects.filter(tenant="half a transaction").count) == 0
    if not is_mended:
        renew(connections["default"])
