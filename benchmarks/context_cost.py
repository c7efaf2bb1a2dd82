"""What does a job cost more when its context is kept, when it is traced, or while metrics are scraped?"""

from __future__ import annotations

from argparse import Namespace
from statistics import median

from benchmarks import contexts, meters
from benchmarks.harness import Benchmark, Size, main
from benchmarks.history import SECOND, ends
from benchmarks.phase import phase
from benchmarks.report import Bar, Result
from benchmarks.sides import TenantSlots

MOST = {"context": 1.05, "metrics": 1.05, "opentelemetry": 1.15, "sentry": 1.15}
"""Times what a job costs without."""


def measure(options: Namespace) -> Result:
    """By rounds in turn, so that whatever else the machine does meets all of them."""
    cpu: dict[str, list[float]] = {name: [] for name in contexts.SETTINGS}
    rates: dict[str, list[float]] = {name: [] for name in contexts.SETTINGS}
    for _ in range(options.rounds):
        for name in contexts.SETTINGS:
            milliseconds, rate = _cost(name, options)
            cpu[name].append(milliseconds)
            rates[name].append(rate)
    bars = []
    for name, most in MOST.items():
        more = _more(cpu, name, "")
        less = median(own / without for own, without in zip(rates[name], rates[""], strict=True))
        bars.append(Bar(f"CPU time per job with {name} / without, median of rounds", round(more, 3), "<=", most, "x"))
        bars.append(Bar(f"jobs/s with {name} / without, median of rounds", round(less, 3), ">=", 2 - most, "x"))
    alone, ours = (_more(cpu, contexts.SENTRY_ALONE, ""), _more(cpu, "sentry", contexts.SENTRY_ALONE))
    shares = {
        "CPU time with Sentry, without its contexts / without": round(alone, 3),
        "with its contexts / without them": round(ours, 3),
    }
    return Result(bars, shares | {f"ms of CPU, {name or 'without'}": _numbers(values) for name, values in cpu.items()})


def _more(cpu: dict[str, list[float]], name: str, than: str) -> float:
    return median(own / other for own, other in zip(cpu[name], cpu[than], strict=True))


def _cost(name: str, options: Namespace) -> tuple[float, float]:
    """Milliseconds of CPU per job of a worker that is warm, and its jobs/s."""
    from django.test.utils import override_settings

    side = TenantSlots(f"tenant_slots.workers.{options.side.kind}")
    side.environment["BENCHMARK_CONTEXT"] = name
    contexts.switch_on(name)
    with phase(side) as current, contexts.scraped(name):
        current.close_gate(workers=1)
        calls = [(f"tenant{n % options.tenants}", f"job{n}") for n in range(options.jobs)]
        with override_settings(TENANT_SLOTS=contexts.SETTINGS[name]), contexts.request(name):
            current.enqueue_many("query", calls)
        current.start_workers(1)
        current.wait_until(lambda: current.gate_is_reached(workers=1))
        before = meters.cpu_seconds(current.first_worker)
        current.end_holding()
        current.wait_for_ends(options.jobs)
        runs = current.runs()
        rate = len(runs) * SECOND / (ends(runs)[-1] - runs[0].start)
        return 1000 * (meters.cpu_seconds(current.first_worker) - before) / options.jobs, rate


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


BENCHMARK = Benchmark(
    name="context_cost",
    question="What does a job cost more with a context, with traces and with metrics? The job is one SQL query.",
    sizes={
        "jobs": Size(1000, "jobs of each part", smoke=40),
        "tenants": Size(10, "tenants"),
        "rounds": Size(5, "rounds of all parts in turn", smoke=1),
    },
    measure=measure,
)

if __name__ == "__main__":
    main(BENCHMARK)
