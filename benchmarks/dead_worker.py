"""How soon is a slot used again when its worker is killed, is on another host, or is only stopped?"""

from __future__ import annotations

import os
import signal
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result
from benchmarks.sides import Side, TenantSlots


def measure(options: Namespace) -> Result:
    elsewhere = TenantSlots("benchmarks.other_host.OtherHostWorker")
    here = [_seconds_until_next_start(options.side, options.side) for _ in range(options.rounds)]
    far = [_seconds_until_next_start(elsewhere, options.side) for _ in range(options.rounds)]
    stopped = _stopped_and_continued(elsewhere, options.side)
    return Result(
        [
            Bar("next start after kill -9 of a worker, another on its host, longest", max(here), "<=", 10, "s"),
            Bar("the same, the other worker on another host, longest", max(far), "<=", 30, "s"),
            Bar("runs of the job while its worker was stopped for two leases", stopped["runs"], "==", 1),
            Bar("ends written by the stale run after it was continued", stopped["stale ends"], "==", 0),
            Bar("slots that are free after all, of 1", stopped["free"], "==", 1),
        ],
        {"on its host, s": _listed(here), "on another host, s": _listed(far)},
    )


def _seconds_until_next_start(first: Side, second: Side) -> float:
    with _held_by(first, second) as current:
        killed = time.time_ns()
        current.kill_first_worker()
        current.wait_until(lambda: len(current.runs()) > 1)
        return (current.runs()[1].start - killed) / SECOND


def _stopped_and_continued(first: Side, second: Side) -> dict[str, float]:
    """SIGSTOP of the whole worker for two leases; the other worker runs the job meanwhile."""
    from tenant_slots.conf import app_settings
    from tenant_slots.models import TenantJob, TenantQueue

    with _held_by(first, second) as current:
        processes = (current.first_worker, current.runs()[0].pid)
        _signal(processes, signal.SIGSTOP)
        goes_on_at = time.monotonic() + 2 * app_settings.LEASE_TTL
        current.wait_until(lambda: time.monotonic() > goes_on_at)
        runs = len(current.runs()) - 1
        _signal(processes, signal.SIGCONT)
        current.wait_until(lambda: _is_gone(processes[1]))
        current.end_holding()
        current.wait_until(lambda: not TenantJob.objects.exclude(state="finished").exists())
        stale_ends = sum(run.pid == processes[1] and run.end is not None for run in current.runs())
        return {"runs": runs, "stale ends": stale_ends, "free": 1 - TenantQueue.objects.get().current_job}


@contextmanager
def _held_by(first: Side, second: Side) -> Iterator[Phase]:
    """A worker of the first side holds the tenant's only slot, one of the second is idle."""
    with phase(first) as current:
        current.enqueue_many("hold", [("whale", "job", current.open_file)])
        current.start_workers(1)
        current.wait_until(lambda: len(current.runs()) == 1)
        current.side = second
        current.start_workers(1)
        yield current


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        os.kill(process, number)


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def _listed(seconds: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in seconds)


BENCHMARK = Benchmark(
    name="dead_worker",
    question="How soon is a slot used again when a worker is killed, or stopped and continued?",
    sizes={"rounds": Size(3, "kills of each kind", smoke=1)},
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
