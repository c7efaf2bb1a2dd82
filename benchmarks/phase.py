"""One phase of a measurement: empty tables and queues, one side, its jobs and its real worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import history
from benchmarks.history import Run
from benchmarks.sides import Arguments, Side

ROOT = Path(__file__).parent.parent

GATE = "gate-"
"""Prefix of the tenants whose jobs make all workers begin at the same moment."""


class Phase:
    def __init__(self, side: Side, directory: Path) -> None:
        self.side = side
        self.enqueued: dict[str, int] = {}
        self.open_file = str(directory / "open")
        self._history = directory / "history"
        self._log = directory / "workers.log"
        self._processes: list[subprocess.Popen[bytes]] = []

    def enqueue_many(self, function: str, calls: Iterable[Arguments]) -> float:
        """Enqueue in one call and return the seconds that it took."""
        calls = list(calls)
        began = time.time_ns()
        self.enqueued.update((str(name), began) for _, name, *_ in calls)
        self.side.enqueue_many(function, calls)
        return (time.time_ns() - began) / history.SECOND

    def start_workers(self, count: int, *queues: str) -> None:
        """Start worker processes, of the queue `bench` unless others are named; return when RQ knows them all."""
        command = [sys.executable, "-W", "ignore", str(ROOT / "manage.py"), "rqworker", *(queues or ["bench"])]
        environment = {
            **os.environ,
            **self.side.environment,
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_HISTORY": str(self._history),
        }
        with self._log.open("ab") as log:
            self._processes += [
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log) for _ in range(count)
            ]
        self.wait_until(lambda: _registered_workers() == len(self._processes))

    def close_gate(self, workers: int) -> None:
        """Enqueue one job per worker before all others; each runs until `open_gate`."""
        names = [f"{GATE}{number}" for number in range(workers)]
        self.enqueue_many("hold", [(name, name, self.open_file) for name in names])

    def open_gate(self, workers: int) -> None:
        """Let the workers loose once each has its first job, so that none has a head start."""
        self.start_workers(workers)
        self.wait_until(lambda: self.gate_is_reached(workers))
        self.end_holding()

    def gate_is_reached(self, workers: int) -> bool:
        """Whether each worker has its job of the gate."""
        return len(history.read(self._history)) == workers

    def end_holding(self) -> None:
        """Let every job of the function `hold` end that was given `open_file`."""
        Path(self.open_file).touch()

    def runs(self) -> list[Run]:
        """What ran so far, without the jobs of the gate."""
        return [run for run in history.read(self._history) if not run.tenant.startswith(GATE)]

    def wait_for_ends(self, count: int, timeout: float = 600.0, of: Callable[[Run], bool] = lambda run: True) -> None:
        """Wait for the ends of `count` runs, looking seldom so as not to disturb them."""
        self.wait_until(lambda: len(history.ends(filter(of, self.runs()))) >= count, timeout, pause=0.25)

    def wait_until(self, condition: Callable[[], bool], timeout: float = 60.0, pause: float = 0.01) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.side.label}: nothing more happened for {timeout:g} s.\n{self._log_tail()}")
            if any(process.poll() is not None for process in self._processes):
                raise SystemExit(f"{self.side.label}: a worker ended by itself.\n{self._log_tail()}")
            time.sleep(pause)

    def waits(self, of: Callable[[Run], bool]) -> list[float]:
        """Seconds from enqueue to start."""
        return [(run.start - self.enqueued[run.name]) / history.SECOND for run in self.runs() if of(run)]

    @property
    def first_worker(self) -> int:
        """Process id of the worker that was started first."""
        return self._processes[0].pid

    def kill_first_worker(self) -> None:
        process = self._processes.pop(0)
        process.kill()
        process.wait()

    def stop_workers(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


@contextmanager
def phase(side: Side) -> Iterator[Phase]:
    """A phase on emptied servers; its workers end with it."""
    _empty_servers()
    with tempfile.TemporaryDirectory(prefix="tenant_slots_bench_") as directory:
        current = Phase(side, Path(directory))
        try:
            yield current
        finally:
            current.end_holding()
            current.stop_workers()


def _empty_servers() -> None:
    import django_rq
    from django.core.management import call_command

    django_rq.get_connection("bench").flushdb()
    call_command("flush", interactive=False, verbosity=0)


def _registered_workers() -> int:
    import django_rq
    from rq import Worker

    return Worker.count(connection=django_rq.get_connection("bench"))
