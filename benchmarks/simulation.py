"""Whose job should a free worker start? Compares orders of service in simulated time; needs no servers."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable

from benchmarks import report
from benchmarks.report import Bar, Result, percentile
from benchmarks.simulated import scenarios
from benchmarks.simulated.orders import Fair, Fifo, RoundRobin, Textbook
from benchmarks.simulated.pool import Order, Pool
from benchmarks.simulated.scenarios import NO_LIMIT

WORKERS = 4
FIFO, TURNS, FAIR, TEXTBOOK = "first come first served", "turns", "fair", "by the book"
SORTED = "fair, window in order"

LIMITS = (1, 4, 50, NO_LIMIT)
WINDOWS = (0, 1, 2, 8, 46)


class Pools:
    """Makes a pool for each simulation and remembers it."""

    def __init__(self) -> None:
        self._made: list[Pool] = []

    def __call__(self, name: str, window: float = 0.0) -> Pool:
        self._made.append(Pool(WORKERS, _order(name, window)))
        return self._made[-1]

    def wasted(self) -> float:
        return sum(pool.wasted for pool in self._made)


def whale(pools: Pools) -> Result:
    def p95(name: str, limit: int, window: float = 0.0) -> float:
        return percentile(scenarios.whale(pools(name, window), limit), 95)

    fair = {limit: p95(FAIR, limit) for limit in LIMITS}
    facts: dict[str, object] = {"p95 wait without the whale, s": f"{p95(FAIR, 0):.2f}"}
    for limit in LIMITS:
        plain = "; ".join(f"{name} {p95(name, limit):.2f}" for name in (FIFO, TURNS))
        windows = _by_window(lambda name, window, limit=limit: p95(name, limit, window))  # type: ignore[misc]
        facts[f"p95 wait, whale's limit {limit:,}, s"] = f"{plain}; {windows}"
    return Result(
        [
            Bar("small tenants' p95 wait beside a whale without a limit", fair[NO_LIMIT], "<=", 1.0, "s"),
            Bar("the same, whale's limit 10,000 / 4", fair[NO_LIMIT] / fair[4], "<=", 1.1, "x"),
        ],
        facts,
    )


def crowd(pools: Pools) -> Result:
    def longest(name: str, window: float = 0.0) -> float:
        return scenarios.crowd(pools(name, window), spread=0.5)

    plain = "; ".join(f"{name} {longest(name):.1f}" for name in (FIFO, TURNS))
    return Result(
        [
            Bar("longest wait of a newcomer, jobs of 0.5 to 1.5 s", longest(FAIR), "<=", 1.5, "s"),
            Bar("the same, all jobs of exactly 1 s", scenarios.crowd(pools(FAIR), 0.0), "<=", 1.0, "s"),
        ],
        {
            "longest wait, s": f"{plain}; {_by_window(longest)}",
            "longest wait, all jobs of exactly 1 s, by the book, s": f"{scenarios.crowd(pools(TEXTBOOK), 0.0):.1f}",
        },
    )


def division(pools: Pools) -> Result:
    cases: dict[str, tuple[list[tuple[float, int, int]], float]] = {
        "jobs of 10 s and 0.1 s": ([(10.0, 9, 1), (0.1, 9, 1)], 600.0),
        "jobs of 0.8 s and 0.05 s": ([(0.8, 9, 1), (0.05, 9, 1)], 300.0),
        "shares 3:1:1, jobs of 1 s": ([(1.0, 9, 3), (1.0, 9, 1), (1.0, 9, 1)], 600.0),
        "shares 3:1:1, jobs of 5, 0.5 and 1 s": ([(5.0, 9, 3), (0.5, 9, 1), (1.0, 9, 1)], 600.0),
        "limits 2 and 4, jobs of 10 s and 1 s": ([(10.0, 2, 1), (1.0, 4, 1)], 1200.0),
    }
    bars: list[Bar] = []
    facts: dict[str, object] = {}
    for what, (tenants, seconds) in cases.items():
        parts = {name: scenarios.division(pools(name), tenants, seconds) for name in (FIFO, TURNS, FAIR)}
        index = {name: _index(found, tenants) for name, found in parts.items()}
        bars.append(Bar(f"Jain's index, {what}", index[FAIR], ">=", 0.995))
        facts[f"parts of the worker time, {what}"] = "; ".join(
            f"{name} {_percents(found)} (index {index[name]:.3f})" for name, found in parts.items()
        )
    return Result(bars, facts)


def gaming(pools: Pools) -> Result:
    bars: list[Bar] = []
    facts: dict[str, object] = {}
    for trick in scenarios.TRICKS:
        gains = {name: scenarios.gain(pools(name), trick) for name in (FIFO, TURNS, FAIR)}
        bars.append(Bar(trick.name, gains[FAIR] / (WORKERS * trick.longest), "<=", 1.0, "longest jobs per worker"))
        facts[f"{trick.name}, s"] = "; ".join(f"{name} {gained:,.1f}" for name, gained in gains.items())
    return Result(bars, facts)


def batches(pools: Pools) -> Result:
    def part(name: str, limit: int, window: float = 0.0) -> float:
        return scenarios.batches(pools(name, window), limit)

    bars: list[Bar] = []
    facts: dict[str, object] = {}
    for limit in (1, 2, 3, NO_LIMIT):
        parts = {name: part(name, limit) for name in (FIFO, TURNS, TEXTBOOK, FAIR)}
        windows = {f"{name}, one admitted ahead": part(name, limit, 1) for name in (FAIR, SORTED)}
        ideal = min(limit / WORKERS, 0.5)
        bars.append(Bar(f"what a neighbour with limit {limit:,} has / its fair part", parts[FAIR] / ideal, ">=", 0.85))
        facts[f"what a neighbour with limit {limit:,} has, of {100 * ideal:.0f} %"] = "; ".join(
            f"{name} {100 * found:.1f} %" for name, found in (parts | windows).items()
        )
    return Result(bars, facts)


def newcomer(pools: Pools) -> Result:
    alone = {name: scenarios.after_alone(pools(name)) for name in (TURNS, TEXTBOOK, FAIR)}
    stale = {name: scenarios.stale_mean(pools(name)) for name in (TURNS, TEXTBOOK, FAIR)}
    owed = {name: scenarios.beside_the_owed(pools(name)) for name in (TURNS, TEXTBOOK, FAIR)}
    jobs_ahead = alone[FAIR].ahead / (WORKERS * scenarios.HOUR)
    return Result(
        [
            Bar(
                "after a tenant that was alone: what it gets first",
                jobs_ahead,
                "<=",
                1.0,
                "jobs of the other per worker",
            ),
            Bar("beside a mean that is out of date: its wait", stale[FAIR].wait, "<=", 1.0, "s"),
            Bar("the same: its part of the next ten minutes", stale[FAIR].parts[1], ">=", 0.48),
            Bar("beside a tenant that is owed time: its wait", owed[FAIR].wait, "<=", 1.0, "s"),
        ],
        {
            "after a tenant that was alone": _arrivals(alone),
            "beside a mean that is out of date": _arrivals(stale),
            "beside a tenant that is owed time": _arrivals(owed),
        },
    )


QUESTIONS: dict[str, Callable[[Pools], Result]] = {
    "whale": whale,
    "crowd": crowd,
    "division": division,
    "gaming": gaming,
    "batches": batches,
    "newcomer": newcomer,
}


def results() -> list[Result]:
    pools, found = Pools(), []
    for name, question in QUESTIONS.items():
        result = question(pools)
        result.benchmark, result.sizes = f"simulation, {name}", {"workers": WORKERS}
        found.append(result)
    wasted = Bar("worker time idle while somebody waits below its limit", pools.wasted(), "==", 0, "s")
    return [*found, Result([wasted], benchmark="simulation, all orders", sizes={"workers": WORKERS})]


def main() -> None:
    parser = argparse.ArgumentParser(description=f"{__doc__} Exits 1 when a bar is missed.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="print rows for docs/explanation/fair-order.md")
    options = parser.parse_args()
    found, environment = results(), {"Python": platform.python_version()}
    form = report.as_json if options.json else report.as_markdown if options.markdown else report.as_text
    print(form(found, environment))
    raise SystemExit(0 if all(result.passed for result in found) else 1)


def _order(name: str, window: float) -> Order:
    if name == FIFO:
        return Fifo()
    if name == TURNS:
        return RoundRobin()
    return (Textbook if name == TEXTBOOK else Fair)(WORKERS, window, sorted_window=name == SORTED)


def _by_window(measure: Callable[[str, float], float]) -> str:
    def row(name: str) -> str:
        return ", ".join(f"{window}: {measure(name, window):.2f}" for window in WINDOWS)

    return f"{FAIR}, by window {row(FAIR)}; the same, window in order, {row(SORTED)}"


def _index(parts: list[float], tenants: list[tuple[float, int, int]]) -> float:
    return scenarios.jain([part / share for part, (_, _, share) in zip(parts, tenants, strict=True)])


def _percents(parts: list[float]) -> str:
    return " : ".join(f"{100 * part:.1f}" for part in parts)


def _arrivals(arrivals: dict[str, scenarios.Arrival]) -> str:
    return "; ".join(
        f"{name}: wait {each.wait:.1f} s, {each.ahead:,.0f} worker seconds before the other's next start, "
        f"then {_percents(each.parts)}"
        for name, each in arrivals.items()
    )


if __name__ == "__main__":
    main()
