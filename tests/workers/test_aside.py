"""What comes of something done aside, where others have its file open too."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import django_rq
import psycopg
import pytest
from django.db import connection

from tenant_slots import parting
from tenant_slots.db.clock import in_seconds
from tenant_slots.models import SweepClaim
from tenant_slots.repair import claims
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.workers import TenantWorker, aside
from tenant_slots.workers.aside import Answer, Aside
from tests.factories import dead_process, fresh, running_job, tenant_queue
from tests.processes import test_database_url as database_url
from tests.processes import wait_until

unpickled: list[str] = []


class Left:
    """By a job, whose work-horse has the file open."""

    def __reduce__(self) -> Any:
        return do_something, ("by the worker",)


def do_something(what: str) -> None:
    unpickled.append(what)


def answered(left: bytes | None, at: int = 0) -> Answer | None:
    one = Aside(30)
    assert one.start(lambda: "the first")
    assert one.answer(30)
    assert one.start(lambda: "the second")
    assert one._child is not None
    wait_until(one._child.has_ended)
    if left is not None:
        assert one._file is not None
        os.pwrite(one._file, left, at)
    return one.answer()


@pytest.mark.parametrize("at", [0, 32])
def test_what_a_job_has_left_in_the_file_is_not_unpickled(at: int) -> None:
    answer = answered(pickle.dumps(Left()), at)
    assert answer is not None
    assert (answer.is_whole, answer.value, unpickled) == (False, None, [])


def test_control_else_it_is_the_answer() -> None:
    answer = answered(None)
    assert answer is not None
    assert (answer.is_whole, answer.value) == (True, "the second")


def test_control_what_is_left_there_would_do_something() -> None:
    pickle.loads(pickle.dumps(Left()))
    assert unpickled == ["by the worker"]
    unpickled.clear()


def test_what_it_has_to_send_is_sent_before_its_process_ends(tmp_path: Path) -> None:
    """Such as the error of an ``on_busy`` that a sweep has asked: to a server that is not next door that takes longer
    than the rest of the sweep.
    """
    one, sent = Aside(30), tmp_path / "sent"

    def says_something() -> str:
        parting.before_parting(sent.touch, soon=True)
        return "the answer"

    assert one.start(says_something)
    assert one.answer(30) == Answer(is_whole=True, value="the answer")
    assert sent.exists()


def test_who_is_killed_while_it_sends_has_answered(tmp_path: Path) -> None:
    one, sends = Aside(30), tmp_path / "sends"

    def hangs() -> None:
        sends.touch()
        signal.pause()

    def says_something() -> str:
        parting.before_parting(hangs)
        return "the answer"

    assert one.start(says_something)
    wait_until(sends.exists)
    assert one._child is not None
    one._child.end()
    assert one.answer() == Answer(is_whole=True, value="the answer")


def test_control_who_fails_has_not() -> None:
    one = Aside(30)
    assert one.start(lambda: 1 / 0)
    assert one.answer(30) == Answer(is_whole=False)


@pytest.mark.django_db(transaction=True)
def test_a_worker_without_a_job_goes_on_while_its_sweep_does_and_waits_for_its_end_before_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep stands still for a tenth of a lease, which may be a minute, where somebody has not been heard of."""
    worker, door = TenantWorker([django_rq.get_queue("imports")]), tmp_path / "door"
    contact = worker.sweeper.contact

    def sweep() -> None:
        wait_until(door.exists, timeout=5)

    monkeypatch.setattr(aside, "SECONDS_FOR_SWEEP", 0.1)
    monkeypatch.setattr(worker.sweeper, "sweep_if_due", sweep)
    worker.sweep()
    assert worker._sweeping.is_under_way(30)
    assert worker.sweeper.contact is contact
    door.touch()
    worker.look_for_lost()
    assert worker.sweeper.contact is not contact, "it knows what the sweep has seen"


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_ends_waits_for_its_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed with the worker: jobs that were to be asked what they do while their tenant is busy never were."""
    worker, door = TenantWorker([django_rq.get_queue("imports")]), tmp_path / "door"
    contact = worker.sweeper.contact
    monkeypatch.setattr(aside, "SECONDS_FOR_SWEEP", 0)
    monkeypatch.setattr(worker.sweeper, "sweep_if_due", lambda: wait_until(door.exists, timeout=5))
    monkeypatch.setattr(worker.heartbeats, "stop", door.touch)
    worker.sweep()
    assert worker._sweeping.is_under_way(30)
    worker._part()
    assert worker.sweeper.contact is not contact, "it knows what the sweep has seen"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("is_passed_over", [True, pytest.param(False, id="control: each claim waits for its row")])
def test_a_worker_remembers_that_a_sweep_has_not_come_to_its_claim(
    is_passed_over: bool, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """Each sweep has a process of its own: somebody who holds the row would stop all of them."""
    settings.TENANT_SLOTS = {"LEASE_TTL": 4, "SWEEP_INTERVAL": 1}
    monkeypatch.setattr(aside, "SECONDS_FOR_SWEEP", 30)
    if not is_passed_over:
        monkeypatch.setattr(claims, "claim_unless_held", claims.claim)
    Sweeper("before").sweep()
    SweepClaim.objects.update(until=in_seconds(-1))
    job = running_job(tenant_queue(), dead_process())
    worker = TenantWorker([django_rq.get_queue("imports")])
    with psycopg.connect(database_url()) as session:
        session.execute("SELECT 1 FROM tenant_slots_sweepclaim FOR UPDATE")
        worker.sweep()
        assert fresh(job).attempt == 1, "control: the first one waits for it"
        monkeypatch.setattr(worker.sweeper, "_due", 0)
        worker.sweep()
    assert (fresh(job).attempt == 2) is is_passed_over
