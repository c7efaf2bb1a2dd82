"""Other queues of the project are on Redis servers that accept connections and answer nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.factories import fresh
from tests.faults import jobs
from tests.faults.conftest import FaultWorkers
from tests.faults.observer import Observer
from tests.faults.test_worker_process import ELSEWHERE
from tests.processes import wait_until

ONE_BY_ONE = "tests.faults.workers.OneByOneWorker"


@pytest.fixture
def workers(workers: FaultWorkers) -> Iterator[FaultWorkers]:
    """The project of these has four other servers, all frozen."""
    with ExitStack() as open_sockets:
        servers = [open_sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        urls = [f"redis://127.0.0.1:{server.getsockname()[1]}/0" for server in servers]
        workers.variables |= {
            "DJANGO_SETTINGS_MODULE": "tests.faults.frozen_queues",
            "TEST_OTHER_SERVERS": " ".join(urls),
        }
        yield workers


def far_job_of_a_killed_worker(workers: FaultWorkers, observer: Observer, door: Path, sweeper: str | None) -> None:
    workers.start(1, worker_class=ELSEWHERE)
    jobs.hold.enqueue("acme", "far", observer.path, str(door))
    observer.process_of("far")
    workers.start(1, worker_class=sweeper)
    workers.kill(0)


def test_i2_they_keep_no_sweep_from_a_job_whose_worker_was_killed_on_another_host(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    """Each sweep was cut off while it waited for the first ones, and its process has never had contact for a lease."""
    far_job_of_a_killed_worker(workers, observer, door, None)
    observer.process_of("far", run=2)
    door.touch()
    observer.wait_for_all()


def test_the_control_a_sweep_that_waits_for_one_after_the_other_comes_to_nothing(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    far_job_of_a_killed_worker(workers, observer, door, ONE_BY_ONE)
    wait_until(lambda: observer.watched, timeout=30, message="the slot of the killed worker was given back")
    assert [breach[:2] for breach in observer.watched] == ["I2"]
    workers.start()
    observer.process_of("far", run=2)
    observer.watched.clear()
    door.touch()
    observer.wait_for_all()


def test_i2_they_keep_no_sweep_from_a_job_whose_worker_was_killed_on_this_host(
    workers: FaultWorkers, observer: Observer, door: Path
) -> None:
    workers.start()
    job = jobs.hold.enqueue("acme", "here", observer.path, str(door))
    observer.process_of("here")
    workers.start()
    workers.kill(0)
    observer.process_of("here", run=2)
    door.touch()
    observer.wait_for_all()
    assert fresh(job).interruptions == 1
