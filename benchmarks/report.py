"""Figures, bars and the ways to print them."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Literal


@dataclass(frozen=True)
class Bar:
    """A figure and what it must reach."""

    what: str
    figure: float
    comparison: Literal["<=", ">=", "=="]
    bar: float
    unit: str = ""

    @property
    def passed(self) -> bool:
        if self.comparison == "<=":
            return self.figure <= self.bar
        if self.comparison == ">=":
            return self.figure >= self.bar
        return self.figure == self.bar

    @property
    def verdict(self) -> str:
        return "ok" if self.passed else "MISSED"

    def cells(self) -> tuple[str, str, str]:
        return self.what, _number(self.figure, self.unit), f"{self.comparison} {_number(self.bar, self.unit)}"


@dataclass
class Result:
    """What one benchmark found; `facts` are figures without a bar, such as plain django-rq's."""

    bars: list[Bar]
    facts: dict[str, object] = field(default_factory=dict)
    benchmark: str = ""
    sizes: Mapping[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(bar.passed for bar in self.bars)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank)."""
    if not values:
        raise SystemExit("There is nothing to take a percentile of: no job was measured.")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


def environment() -> dict[str, str]:
    """Where it was measured. `fsync` matters: without it commits are cheaper than in production."""
    import django_rq
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        )
        postgres, fsync, synchronous_commit = cursor.fetchone()
    redis = django_rq.get_connection("bench").info("server")
    return {
        "CPUs": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load average": f"{os.getloadavg()[0]:.1f} before the run",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in ("Django", "django-rq", "rq", "redis", "psycopg")},
        "PostgreSQL": f"{postgres} (fsync {fsync}, synchronous_commit {synchronous_commit})",
        "Redis or Valkey": str(redis.get("valkey_version") or redis["redis_version"]),
    }


def as_text(results: Sequence[Result], environment: Mapping[str, str]) -> str:
    lines: list[str] = []
    for result in results:
        sizes = ", ".join(f"{name}={value:g}" for name, value in result.sizes.items())
        lines += ["", f"{result.benchmark} ({sizes})"]
        lines += [f"  {bar.verdict:<7}{what}: {figure}  (bar: {target})" for bar, what, figure, target in _rows(result)]
        lines += [f"         {name}: {value}" for name, value in result.facts.items()]
    lines += ["", *(f"{name}: {value}" for name, value in environment.items())]
    return "\n".join(lines)


def as_markdown(results: Sequence[Result], environment: Mapping[str, str]) -> str:
    lines = ["| benchmark | what | measured | bar | |", "|---|---|---|---|---|"]
    for result in results:
        for bar, what, figure, target in _rows(result):
            lines.append(f"| `{result.benchmark}` | {what} | {figure} | {target} | {bar.verdict} |")
    lines += ["", "; ".join(f"{name} {value}" for name, value in environment.items()) + ".", ""]
    lines += [f"- `{result.benchmark}`: {name}: {value}" for result in results for name, value in result.facts.items()]
    return "\n".join(lines)


def as_json(results: Sequence[Result], environment: Mapping[str, str]) -> str:
    found = [{**asdict(result), "passed": result.passed} for result in results]
    return json.dumps({"environment": environment, "results": found}, indent=2)


def _rows(result: Result) -> list[tuple[Bar, str, str, str]]:
    return [(bar, *bar.cells()) for bar in result.bars]


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()
