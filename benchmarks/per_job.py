"""What does one job cost: commands of Redis, commits, WAL, processor time, sessions?"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django.utils.module_loading import import_string

from benchmarks import meters
from benchmarks.checkouts import benchmarks_with, result_in
from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import ends
from benchmarks.meters import WAL
from benchmarks.phase import Phase, phase
from benchmarks.report import Bar, Result
from benchmarks.sides import PlainDjangoRQ, Side, TenantSlots

CLASSES = (
    "rq.SimpleWorker",
    "rq.Worker",
    "tenant_slots.workers.TenantSimpleWorker",
    "tenant_slots.workers.TenantWorker",
    "tenant_slots.workers.TenantPreforkWorker",
)
"""Measured unless the command line names others. Classes of RQ run the undecorated function."""

WITH_BARS = "TenantPreforkWorker"

ONE_TENANT, MANY_TENANTS = "handed on", "admitted before"

SETTLED_SECONDS = 0.5


@dataclass(frozen=True)
class Cost:
    """Per job, sessions aside."""

    redis_commands: float
    cpu_milliseconds: float
    wal: WAL
    jobs: int
    sessions: int

    @property
    def commits(self) -> float:
        return self.wal.commits / self.jobs

    @property
    def wal_bytes(self) -> float:
        return self.wal.bytes / self.jobs

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {size / self.jobs:,.0f}" for kind, size in list(self.wal.bytes_by_kind.items())[:4])
        return (
            f"{self.redis_commands:.1f} Redis commands, {self.commits:.2f} writing commits, "
            f"{self.wal_bytes:,.0f} bytes of WAL ({kinds}), {self.cpu_milliseconds:.2f} ms CPU, "
            f"{self.sessions} lasting sessions"
        )


def measure(options: Namespace) -> Result:
    facts: dict[str, object] = {}
    bars: list[Bar] = []
    there = _figures_of_other(options) if options.other else {}
    for worker_class in _existing(options.worker_classes or CLASSES):
        for variant, side, tenants in _variants(worker_class, options):
            cost = _cost(side, options.jobs, tenants)
            facts[f"{side.label}{variant and f', {variant}'}"] = cost
            if worker_class.endswith(WITH_BARS):
                bars += _bars(cost, variant)
    return Result([*bars, *_compared(bars, there)], facts)


def _figures_of_other(options: Namespace) -> dict[str, float]:
    """By what they are figures of. Asked for first: each process wants a Redis that is empty."""
    sizes = {"jobs": options.jobs, "tenants": options.tenants}
    with benchmarks_with(Path(options.other)) as other:
        result = result_in(other, BENCHMARK.name, sizes, f"tenant_slots.workers.{WITH_BARS}")
    return {bar["what"]: bar["figure"] for bar in result["bars"]}


def _compared(bars: Iterable[Bar], there: Mapping[str, float]) -> list[Bar]:
    """Nothing may cost more than in the other checkout, where that has the class."""
    return [
        Bar(f"{bar.what}: this checkout / the other", round(bar.figure / there[bar.what], 2), "<=", 1, "x")
        for bar in bars
        if there.get(bar.what)
    ]


def _existing(classes: Iterable[str]) -> Iterable[str]:
    for name in classes:
        with suppress(ImportError):
            import_string(name)
            yield name


def _variants(worker_class: str, options: Namespace) -> Iterable[tuple[str, Side, int]]:
    """How jobs come to RQ: one by one while they are processed, or all before. Plain RQ has the latter only."""
    if not worker_class.startswith("tenant_slots."):
        yield "", PlainDjangoRQ(worker_class), 1
        return
    yield ONE_TENANT, TenantSlots(worker_class), 1
    yield MANY_TENANTS, TenantSlots(worker_class), options.tenants


def _cost(side: Side, jobs: int, tenants: int) -> Cost:
    """From the moment when a first job has warmed the worker up until it is idle again.

    The checkpoint is before the jobs are stored: their pages are new then, and no later change adds a full page.
    """
    with phase(side) as current:
        meters.prepare_wal()
        current.close_gate(workers=1)
        if tenants > 1:
            current.side.set_limits({f"tenant{number}": jobs for number in range(tenants)})
        current.enqueue_many("nothing", [(f"tenant{n % tenants}", f"job{n}") for n in range(jobs)])
        current.start_workers(1)
        current.wait_until(lambda: current.gate_is_reached(workers=1))
        commands, position = meters.redis_commands(), meters.wal_position()
        cpu = meters.cpu_seconds(current.first_worker)
        current.end_holding()
        most_sessions = _wait_for_all(current, jobs)
        return Cost(
            redis_commands=(meters.redis_commands() - commands) / jobs,
            cpu_milliseconds=1000 * (meters.cpu_seconds(current.first_worker) - cpu) / jobs,
            wal=meters.wal_between(position, meters.wal_position()),
            jobs=jobs,
            sessions=most_sessions,
        )


def _wait_for_all(current: Phase, jobs: int) -> int:
    """Until the worker has nothing left to do; returns the highest number of lasting sessions seen meanwhile."""
    most = 0

    def all_have_ended() -> bool:
        nonlocal most
        most = max(most, meters.lasting_sessions())
        return len(ends(current.runs())) == jobs

    current.wait_until(all_have_ended, timeout=600, pause=0.05)
    current.wait_until(_is_settled)
    return most


def _is_settled() -> bool:
    """Whether nothing happens in Redis and in the database: bookkeeping follows the end of the last job."""
    before = meters.redis_commands(), meters.wal_position()
    time.sleep(SETTLED_SECONDS)
    return before == (meters.redis_commands(), meters.wal_position())


def _bars(cost: Cost, variant: str) -> list[Bar]:
    where = f"{WITH_BARS}, {variant}"
    return [
        Bar(f"Redis commands per job, {where}", round(cost.redis_commands, 1), "<=", 25),
        Bar(f"writing commits per job, {where}", round(cost.commits, 1), "<=", 2),
        Bar(f"WAL per job, {where}", round(cost.wal_bytes), "<=", 1200, "bytes"),
        Bar(f"CPU time per job, {where}", round(cost.cpu_milliseconds, 2), "<=", 3, "ms"),
        Bar(f"lasting sessions of a worker, its work-horse included, {where}", cost.sessions, "<=", 2),
    ]


BENCHMARK = Benchmark(
    name="per_job",
    question="What does one job that does nothing cost in Redis, in the database and in processor time?",
    sizes={
        "jobs": Size(1000, "jobs of each part", smoke=60),
        "tenants": Size(100, "tenants of the part in which all jobs are admitted before", smoke=10),
    },
    measure=measure,
    paths={"other": "another checkout whose costs are not to be exceeded"},
)

if __name__ == "__main__":
    main(BENCHMARK)
