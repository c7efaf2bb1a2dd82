"""A chain whose middle job crashes, whose worker dies before it tells of an end, or whose Redis forgets it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import django_rq
import pytest

from tenant_slots.models import JobDependency, State, TenantJob
from tests.factories import fresh
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.processes import wait_until

KINDS = pytest.mark.parametrize("kind", ["Worker", "PreforkWorker"])


def chain(observer: Observer, door: Path) -> list[TenantJob]:
    """The middle one waits at the door; the last one is another tenant's."""
    first = jobs.quick.enqueue("acme", "first", observer.path)
    middle = jobs.hold.using(after=[first]).enqueue("acme", "middle", observer.path, str(door))
    last = jobs.quick.using(after=[middle]).enqueue("beta", "last", observer.path)
    return [first, middle, last]


@KINDS
def test_i3_i4_a_crash_of_the_middle_job_lets_it_run_again_and_the_last_one_wait_for_that(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    workers.start(2, worker_class=f"tenant_slots.workers.Tenant{kind}")
    three = chain(observer, door)
    os.kill(observer.process_of("middle"), signal.SIGKILL)
    observer.process_of("middle", run=2)
    assert fresh(three[-1]).state == State.SCHEDULED
    door.touch()
    observer.wait_for_all()
    assert observer.started() == ["first", "middle", "middle", "last"]
    assert [fresh(job).state for job in three] == [State.FINISHED] * 3
    assert three[1].crashes == 1


@KINDS
def test_i3_a_middle_job_that_crashes_too_often_cancels_the_last_one(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    workers.start(2, worker_class=f"tenant_slots.workers.Tenant{kind}")
    three = chain(observer, door)
    run = 0
    while not fresh(three[1]).has_ended:
        run += 1
        os.kill(observer.process_of("middle", run=run), signal.SIGKILL)
        wait_until(lambda: fresh(three[1]).state != State.RUNNING or three[1].attempt > run)  # noqa: B023
    observer.wait_for_all()
    assert [fresh(job).state for job in three] == [State.FINISHED, State.FAILED, State.CANCELED]
    assert three[2].error == "canceled: a job of another tenant, which it was to run after, has failed"
    assert "last" not in observer.started()


@KINDS
@pytest.mark.parametrize("moment", ["before", "after"])
def test_i3_a_worker_that_dies_before_or_after_it_tells_of_an_end_loses_no_chain(
    workers: FaultWorkers, observer: Observer, door: Path, tmp_path: Path, kind: str, moment: str
) -> None:
    """After: what it has promoted is not offered to anybody."""
    armed = tmp_path / "armed"
    plan = f"tenant_slots.chains:tell {moment} SIGKILL"
    (unlucky,) = workers.start(1, worker_class=workers.with_sabotage(plan, armed, f"Sabotaged{kind}"))
    door.touch()
    armed.touch()
    three = chain(observer, door)
    unlucky.wait(20)
    assert not armed.exists(), "nobody was killed"
    assert fresh(three[0]).state == State.FINISHED
    assert fresh(three[1]).state == (State.SCHEDULED if moment == "before" else State.WAITING)
    workers.start(1)
    observer.wait_for_all()
    assert observer.started() == ["first", "middle", "last"]
    assert not JobDependency.objects.filter(is_open=True).exists()


@KINDS
def test_i3_flushall_in_the_middle_of_a_chain_loses_nothing_of_it(
    workers: FaultWorkers, observer: Observer, door: Path, kind: str
) -> None:
    workers.start(1, worker_class=f"tenant_slots.workers.Tenant{kind}")
    three = chain(observer, door)
    observer.process_of("middle")
    django_rq.get_connection("imports").flushall()
    door.touch()
    observer.wait_for_all()
    assert observer.started() == ["first", "middle", "last"]
    assert [fresh(job).state for job in three] == [State.FINISHED] * 3
