"""The figures of the page "compare" are those that the benchmarks measured, each by the one that it names."""

from __future__ import annotations

import re

import pytest

from tests.processes import ROOT

PAGE = (ROOT / "docs/explanation/compare.md").read_text()
RESULTS = (ROOT / "docs/benchmarks.md").read_text().partition("<!-- results -->")[2].partition("<!-- end of")[0]

_, TABLE = PAGE.split("## What was measured\n")
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")][1:]

MEASURED = 2
"""The column of the results."""

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def figures_in(text: str) -> list[str]:
    return [found.rstrip(",").replace(",", "") for found in NUMBER.findall(text)]


def measured_by(benchmark: str) -> set[float]:
    """What the page gives as measured now: not a bar, nor what a row says of another day.

    In all units: a result in milliseconds is one in seconds, and one in bytes one in kilobytes.
    """
    named = [line for line in RESULTS.splitlines() if f"`{benchmark}`" in line]
    cells = [line.split(" | ")[MEASURED] for line in named if line.startswith("|")]
    notes = [line for line in named if line.startswith("-")]
    found = {float(figure) for text in (*cells, *notes) for figure in figures_in(text)}
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
    assert unmeasured(["one enqueue", "0.4 ms", "1.7 ms", "`enqueue_cost`"]) == ["1.7"]
    assert unmeasured(["one enqueue", "0.4 ms", "1.2 ms", "`killed_job`"]) == ["0.4", "1.2"]


def test_control_neither_a_bar_nor_what_was_measured_earlier_is_a_result() -> None:
    assert unmeasured(["a bar", "", "25", "`per_job`"]) == ["25"]
    assert unmeasured(["before", "", "18.1 to 22.7", "`per_job`"]) == ["18.1", "22.7"]
    assert unmeasured(["now", "", "16.3 to 20.9", "`per_job`"]) == []
