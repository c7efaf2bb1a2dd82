"""How worker time is divided among tenants that have something to run all of the time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.history import SECOND, Run
from benchmarks.phase import Phase, phase

LIMIT = 50

SPARE = 1.5
"""How many times its part of the worker time a tenant gets in jobs, so that its backlog lasts."""


@dataclass(frozen=True)
class Load:
    """What one tenant has to do."""

    job_seconds: float
    share: int = 1


def worker_time(options: Namespace, loads: Mapping[str, Load]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds for which workers were busy with each tenant's jobs, and those in which their functions ran.

    From the first start on, while all have a backlog. No worker idles, so what is not in a function is what goes before
    and after it, such as the fork. That is taken to be the same for every job, and so counted by their number.
    """
    with phase(options.side) as current:
        _set_up(loads)
        counts = {name: _enough(options, loads, name) for name in loads}
        current.close_gate(options.workers)
        for name, load in loads.items():
            current.enqueue_many("sleep", [(name, f"{name}-{n}", load.job_seconds) for n in range(counts[name])])
        current.open_gate(options.workers)
        current.wait_until(lambda: bool(current.runs()))
        until = current.runs()[0].start + options.seconds * SECOND
        current.wait_until(lambda: current.runs()[-1].start >= until, options.seconds + 60, pause=0.25)
        _require_backlogs(current, counts, until)
        runs = [run for run in current.runs() if run.start < until]
    in_functions = {name: sum(_seconds_before(until, run) for run in runs if run.tenant == name) for name in loads}
    beside = max(0.0, options.workers * options.seconds - sum(in_functions.values())) / len(runs)
    busy = {name: in_functions[name] + beside * sum(run.tenant == name for run in runs) for name in loads}
    return busy, in_functions


def percent(seconds: Mapping[str, float]) -> dict[str, float]:
    """The part of each tenant."""
    return {name: 100 * value / sum(seconds.values()) for name, value in seconds.items()}


def text(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {part:.1f} %" for name, part in percent(seconds).items())


def _set_up(loads: Mapping[str, Load]) -> None:
    from tenant_slots.models import TenantQueue

    for name, load in loads.items():
        TenantQueue.objects.create(tenant=name, queue="bench", max_job=LIMIT, share=load.share)


def _enough(options: Namespace, loads: Mapping[str, Load], name: str) -> int:
    part = loads[name].share / sum(load.share for load in loads.values())
    return int(LIMIT + SPARE * part * options.workers * options.seconds / loads[name].job_seconds)


def _require_backlogs(current: Phase, counts: Mapping[str, int], until: float) -> None:
    for name, count in counts.items():
        if sum(run.tenant == name and run.start < until for run in current.runs()) >= count:
            raise SystemExit(
                f"{name} had nothing left to run while worker time was counted, so its part means nothing."
            )


def _seconds_before(until: float, run: Run) -> float:
    end = until if run.end is None else min(until, run.end)
    return max(0.0, end - run.start) / SECOND
