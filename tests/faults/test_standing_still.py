"""A worker stands still between the start of a run and the call of its function, for longer than a lease."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tenant_slots.models import State
from tests.factories import counters_match, fresh
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.processes import wait_until

HANDED_OUT = "tenant_slots.workers.supervisor:Supervisor._hand_out before"
HANDED_TO_WARM_HORSE = "tenant_slots.workers.supervisor:Supervisor._leave_unbegun before"
HAS_TOLD = "tenant_slots.running.run:Run.tell_started after"


def woken_up_late(workers: FaultWorkers, observer: Observer, armed: Path, door: Path, name: str, moment: str) -> None:
    """A worker that has started a job wakes up while the second run of that one goes on under another worker."""
    (stale,) = workers.start(1, worker_class=workers.with_sabotage(f"{moment} SIGSTOP", armed, name))
    jobs.quick.enqueue("acme", "before", observer.path)
    observer.wait_for_all()
    armed.touch()
    job = jobs.hold.enqueue("acme", "overtaken", observer.path, str(door))
    wait_until(lambda: armed.with_suffix(".done").exists() and fresh(job).state == State.RUNNING)
    workers.start(1)
    observer.process_of("overtaken")
    assert (fresh(job).state, job.attempt) == (State.RUNNING, 2)
    stale.send_signal(signal.SIGCONT)
    jobs.quick.enqueue("other", "after", observer.path)
    wait_until(lambda: observer.ended("after") or len(observer.starts("overtaken")) > 1)


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        pytest.param("WokenPreforkWorker", HANDED_TO_WARM_HORSE, id="its warm work-horse was killed meanwhile"),
        pytest.param("WokenElsewherePreforkWorker", HANDED_TO_WARM_HORSE, id="on another host"),
        pytest.param("WokenElsewhereWorker", HANDED_OUT, id="on another host, before a fork"),
        pytest.param("WokenElsewhereSimpleWorker", HAS_TOLD, id="on another host, without a work-horse"),
    ],
)
def test_i1_i4_a_run_that_was_taken_for_lost_before_its_function_was_called_does_not_call_it(
    workers: FaultWorkers, observer: Observer, tmp_path: Path, door: Path, name: str, moment: str
) -> None:
    woken_up_late(workers, observer, tmp_path / "armed", door, name, moment)
    assert observer.started() == ["before", "overtaken", "after"]
    door.touch()
    observer.wait_for_all()
    assert len(observer.starts("overtaken")) == 1
    assert counters_match()


def test_control_a_worker_that_does_not_ask_calls_it(workers: FaultWorkers, tmp_path: Path, door: Path) -> None:
    observer = Observer(tmp_path / "unwatched")
    woken_up_late(workers, observer, tmp_path / "armed", door, "UnaskingWorker", HANDED_OUT)
    assert len(observer.starts("overtaken")) == 2
