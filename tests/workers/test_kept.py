"""Ends that the database does not take yet: none is lost, and one that cannot be recorded holds up no other."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction

from tenant_slots import owners, slots
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.owners import this_process
from tenant_slots.repair import steps
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.workers import kept
from tenant_slots.workers.heartbeats import Token
from tenant_slots.workers.kept import Ending, KeptEndings
from tests.factories import another_process, counters_match, fresh, in_thread, running_job, tenant_queue

LARGE = "x" * 1000

postgresql_only = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")


@pytest.fixture
def _little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "BYTES_IN_MEMORY", 2500)


def ending(number: int, **left: Any) -> Ending:
    return Ending((number, number), {"state": "finished", **(left or {"result": f"{number} {LARGE}"})})


def filled(number: int) -> tuple[KeptEndings, list[Ending]]:
    endings = [ending(n) for n in range(number)]
    keeper = KeptEndings()
    for one in endings:
        keeper.add(one)
    return keeper, endings


def in_memory(keeper: KeptEndings) -> int:
    return sum("result" in (one.outcome or {}) for one in keeper._endings.values())


@pytest.mark.usefixtures("_little_memory")
def test_what_memory_does_not_hold_comes_back_whole_from_disk() -> None:
    keeper, endings = filled(10)
    keeper.add(Ending((99, 99), None, State.CANCELED))
    assert list(keeper.whole()) == [*endings, Ending((99, 99), None, State.CANCELED)]
    assert in_memory(keeper) == 2, "the others are not in memory"
    assert keeper._file is not None
    assert os.fstat(keeper._file).st_size > 8000
    assert len(keeper) == len(keeper.runs()) == 11


def test_control_with_enough_memory_there_is_no_file() -> None:
    keeper, endings = filled(10)
    assert (list(keeper.whole()), in_memory(keeper), keeper._file) == (endings, 10, None)


@pytest.mark.usefixtures("_little_memory")
def test_what_has_been_recorded_is_kept_no_longer_and_the_file_goes_with_the_last_one() -> None:
    keeper, endings = filled(10)
    file = keeper._file
    assert file is not None
    keeper.remove([(n, n) for n in range(0, 10, 2)])
    assert list(keeper.whole()) == endings[1::2]
    keeper.remove([(n, n) for n in range(10)])
    keeper.remove([(3, 3)])
    assert (len(keeper), list(keeper.whole())) == (0, [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    keeper.add(endings[0])
    assert in_memory(keeper) == 1, "there is room again"


@pytest.mark.usefixtures("_little_memory")
def test_of_what_is_on_disk_one_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, _ = filled(10)
    done: list[str] = []

    def pread(*of_file: int) -> bytes:
        done.append("read")
        return READ(*of_file)

    monkeypatch.setattr(os, "pread", pread)
    monkeypatch.setattr(kept, "_settle", lambda ending: done.append("settled"))
    assert len(list(kept.settle(keeper.whole()))) == 10
    assert done == ["settled"] * 2 + ["read", "settled"] * 8


def no_room(_: int, content: bytes, place: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def half(descriptor: int, content: bytes, place: int) -> int:
    return WRITE(descriptor, content[: len(content) // 2], place)


WRITE, READ = os.pwrite, os.pread


@pytest.mark.usefixtures("_little_memory")
@pytest.mark.parametrize("pwrite", [no_room, half])
def test_a_full_disk_costs_what_a_job_left_and_never_its_end(
    pwrite: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper, endings = filled(4)
    assert keeper._file is not None
    taken = os.fstat(keeper._file).st_size
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        keeper.add(ending(4))
    assert "what job 4 left cannot be kept" in caplog.text
    assert os.fstat(keeper._file).st_size == taken
    keeper.add(ending(5))
    whole = list(keeper.whole())
    assert whole[:4] == endings
    assert whole[4] == Ending((4, 4), {"state": "finished"})
    assert whole[5] == ending(5), "there was room again"


def running(*tenants: str) -> list[TenantJob]:
    return [running_job(tenant_queue(tenant), another_process()) for tenant in tenants]


def settled(rows: Sequence[TenantJob]) -> list[Token]:
    outcome = {"state": State.FINISHED, "result": 7}
    return list(kept.settle(Ending((row.pk, row.token), outcome) for row in rows))


def states() -> list[str]:
    return list(TenantJob.objects.order_by("pk").values_list("state", flat=True))


@pytest.mark.django_db(transaction=True)
def test_what_is_recorded_is_given_back_and_only_once() -> None:
    rows = running("a", "b")
    runs = [(row.pk, row.token) for row in rows]
    assert settled(rows) == runs
    assert states() == [State.FINISHED] * 2
    assert counters_match()
    assert settled(rows) == runs, "somebody else has recorded it: it is through as well"
    assert set(TenantJob.objects.values_list("result", flat=True)) == {7}


@pytest.mark.django_db(transaction=True)
def test_an_end_that_another_run_of_the_job_has_overtaken_changes_nothing() -> None:
    (row,) = running("a")
    late = Ending((row.pk, row.token + 1), {"state": State.FINISHED})
    assert list(kept.settle([late])) == [late.run]
    assert states() == [State.RUNNING]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [OperationalError, InterfaceError, DatabaseError])
def test_the_first_outage_ends_the_tries(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would wait for its own."""
    rows = running("a", "b", "c")
    tried: list[str] = []
    release = slots.release

    def fails_second(job: TenantJob, **values: Any) -> Any:
        tried.append(job.tenant_queue.tenant)
        if len(tried) > 1:
            raise error("no route")
        return release(job, **values)

    monkeypatch.setattr(slots, "release", fails_second)
    assert settled(rows) == [(rows[0].pk, rows[0].token)]
    assert set(tried) == {"a", "b"}
    assert states() == [State.FINISHED, State.RUNNING, State.RUNNING]


@postgresql_only
@pytest.mark.django_db(transaction=True)
def test_a_locked_tenant_queue_holds_up_only_its_own_ends() -> None:
    rows = running("a", "b", "c")
    with transaction.atomic():
        TenantQueue.objects.select_for_update().get(tenant="b")
        through = in_thread(lambda: settled(rows))
    assert through == [(row.pk, row.token) for row in (rows[0], rows[2])]
    assert states() == [State.FINISHED, State.RUNNING, State.FINISHED]
    assert settled([rows[1]]) == [(rows[1].pk, rows[1].token)]
    assert counters_match()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("decided", "state", "crashes", "interruptions"),
    [
        ({}, State.QUEUED, 1, 0),
        ({"was_interrupted": True}, State.QUEUED, 0, 1),
        ({"state": State.FAILED}, State.FAILED, 1, 0),
    ],
)
def test_a_run_that_left_nothing_ends_as_was_decided(
    decided: dict[str, Any], state: State, crashes: int, interruptions: int
) -> None:
    (row,) = running("a")
    assert len(list(kept.settle([Ending((row.pk, row.token), None, **decided)]))) == 1
    row.refresh_from_db()
    assert (row.state, row.crashes, row.interruptions) == (state, crashes, interruptions)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outcome", [None, {"state": "waiting"}, {"state": "finished"}], ids=["none", "waits", "ends"])
def test_an_end_that_was_recorded_already_is_none_of_the_attempt_that_was_admitted_since(outcome: Any) -> None:
    """The answer to the commit was lost. Until it starts, the next attempt has the token of the one before."""
    row = tenant_queue()
    job = running_job(row, another_process())
    ended = Ending((job.pk, job.token), None)
    assert list(kept.settle([ended])) == [ended.run]
    slots.admit(row.pk, "imports", 1)
    assert (fresh(job).state, job.attempt, job.crashes) == (State.QUEUED, 2, 1), "control: the first time it counts"
    again = Ending(ended.run, outcome)
    assert list(kept.settle([again])) == [ended.run]
    assert (fresh(job).state, job.attempt, job.crashes) == (State.QUEUED, 2, 1)
    assert counters_match()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_kept", [True, pytest.param(False, id="control: it has forgotten the run")])
def test_a_sweep_of_the_process_that_keeps_an_end_leaves_it_to_be_recorded(is_kept: bool) -> None:
    """As TenantSimpleWorker sweeps: whoever had the row when the end was to be recorded may have let go of it since."""
    keeper, process = KeptEndings(), this_process("one", beats=True)
    job = running_job(tenant_queue(), process)
    keeper.add(Ending((job.pk, job.token), {"state": State.FINISHED}))
    if not is_kept:
        keeper.remove(keeper.runs())
    Sweeper("one").run([steps.reclaim_local])
    keeper.remove(list(kept.settle(keeper.whole())))
    assert fresh(job).state == (State.FINISHED if is_kept else State.QUEUED)
    assert (job.interruptions + job.crashes, len(keeper)) == (0 if is_kept else 1, 0)
    assert job.token not in owners.runs_here
