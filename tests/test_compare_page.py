"""The figures of the page "compare" are those that the benchmarks measured, each by the one that it names."""

from __future__ import annotations

import re

import pytest

from tests.processes import ROOT

PAGE = (ROOT / "docs/explanation/compare.md").read_text()
RESULTS = (ROOT / "docs/benchmarks.md").read_text().partition("<!-- results -->")[2].partition("<!-- end of")[0]

_, TABLE = PAGE.split("## What was measured\n")
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def figures_in(text: str) -> list[str]:
    return [found.rstrip(",").replace(",", "") for found in NUMBER.findall(text)]


def measured_by(benchmark: str) -> set[float]:
    """In all units: a result in milliseconds is one in seconds, and one in bytes one in kilobytes."""
    lines = [line for line in RESULTS.splitlines() if f"`{benchmark}`" in line]
    found = {float(figure) for line in lines for figure in figures_in(line)}
    return found | {figure / 1000 for figure in found}


def unmeasured(row: list[str]) -> list[str]:
    """The figures of a row that none of the results of its benchmark rounds to."""
    *_, plain, ours, benchmark = row
    found = measured_by(benchmark.strip("`"))
    return [
        figure
        for figure in figures_in(f"{plain} {ours}")
        if not any(round(one, len(figure.partition(".")[2])) == float(figure) for one in found)
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_each_figure_is_one_of_the_results(row: list[str]) -> None:
    assert len(row) == 4, "a question, plain django-rq, tenant_slots, and the benchmark"
    assert figures_in(row[2]), "nothing is measured here"
    assert unmeasured(row) == []


def test_control_a_figure_that_nobody_measured_is_found() -> None:
    assert unmeasured(["one enqueue", "0.3 ms", "1.1 ms", "`enqueue_cost`"]) == ["1.1"]
    assert unmeasured(["one enqueue", "0.3 ms", "1.5 ms", "`killed_job`"]) == ["0.3", "1.5"]
