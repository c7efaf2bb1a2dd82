"""How soon are all workers of a large idle fleet at work, when one tenant enqueues as many jobs as it may run?"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from benchmarks.harness import Benchmark, Size, main
from benchmarks.phase import phase
from benchmarks.report import Bar, Result

TENANT = "whale"
QUEUE = "bench"

SECONDS_TO_TAKE_ALL = 60.0


class Fleet:
    """Threads that speak to RQ as its stock worker does: they show themselves, wait at the list, and start the job.

    What they do is little, as all of them share one processor: none forks, and no job's function is called.
    """

    def __init__(self, workers: int) -> None:
        self.taken: list[float] = []
        """When a job came from RQ's list, in seconds of the monotonic clock."""
        self.started: list[float] = []
        """When it was marked as running, and the window was offered to others."""
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(f"idle{n}",)) for n in range(workers)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _work(self, name: str) -> None:
        from django.db import connections
        from rq.worker import SimpleWorker, WorkerStatus

        queue = _queue()
        worker: Any = SimpleWorker([queue], name=name, connection=queue.connection)
        worker.register_birth()
        worker.set_state(WorkerStatus.IDLE)
        try:
            while not self._is_over.is_set():
                self._take(worker, queue)
        finally:
            worker.register_death()
            connections.close_all()

    def _take(self, worker: Any, queue: Any) -> None:
        from rq.worker import WorkerStatus

        found = queue.connection.blpop([queue.key], timeout=1)
        if found is None:
            return
        self.taken.append(time.monotonic())
        worker.set_state(WorkerStatus.BUSY)
        _begin(worker.name, found[1].decode())
        self.started.append(time.monotonic())


def measure(options: Namespace) -> Result:
    at_once = [_seconds(options, one_by_one=False) for _ in range(options.rounds)]
    one_by_one = [_seconds(options, one_by_one=True) for _ in range(options.rounds)]
    what = f"{options.workers} jobs taken by as many idle workers, longest"
    return Result(
        [Bar(f"{what}, enqueue_many", round(max(taken for taken, _ in at_once), 3), "<=", 0.5, "s")],
        {
            "taken / marked as running, enqueue_many, s": _text(at_once),
            "taken / marked as running, enqueued one by one, s": _text(one_by_one),
        },
    )


def _seconds(options: Namespace, one_by_one: bool) -> tuple[float, float]:
    """From the first enqueue until the last job was taken, and until it was marked as running."""
    from benchmarks import jobs

    calls: list[Any] = [((TENANT, f"job{n}"), {}) for n in range(options.workers)]
    with phase(options.side) as current, _fleet(options.workers) as fleet:
        current.side.set_limits({TENANT: options.workers})
        began = time.monotonic()
        if one_by_one:
            for args, _ in calls:
                jobs.nothing.enqueue(*args)
        else:
            jobs.nothing.enqueue_many(calls)
        current.wait_until(lambda: len(fleet.started) == options.workers, SECONDS_TO_TAKE_ALL)
        return max(fleet.taken) - began, max(fleet.started) - began


@contextmanager
def _fleet(workers: int) -> Iterator[Fleet]:
    """Until all are idle."""
    fleet = Fleet(workers)
    fleet.start()
    try:
        _wait_until_idle(workers)
        yield fleet
    finally:
        fleet.end()


def _wait_until_idle(workers: int) -> None:
    deadline = time.monotonic() + SECONDS_TO_TAKE_ALL
    while _queue().connection.info("clients")["blocked_clients"] < workers:
        if time.monotonic() > deadline:
            raise SystemExit("The idle workers did not come to wait at the list.")
        time.sleep(0.01)


def _begin(worker: str, rq_id: str) -> None:
    """What the runner does before it calls the job's function."""
    from tenant_slots import dispatch
    from tenant_slots.running.run import Run

    named: tuple[UUID, int] | None = dispatch.named_by(rq_id)
    assert named is not None, "nobody else enqueues here"
    if not Run(worker).begin(*named):
        raise SystemExit(f"The job {rq_id} was pushed, and is not to be run.")


def _queue() -> Any:
    import django_rq

    return django_rq.get_queue(QUEUE)


def _text(seconds: list[tuple[float, float]]) -> str:
    return ", ".join(f"{taken:.3f} / {started:.3f}" for taken, started in seconds)


BENCHMARK = Benchmark(
    name="idle_fleet",
    question="How soon are all workers of a large idle fleet at work?",
    sizes={
        "workers": Size(50, "idle workers, the tenant's limit, and its jobs", smoke=10),
        "rounds": Size(5, "rounds, each with a new fleet", smoke=1),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
