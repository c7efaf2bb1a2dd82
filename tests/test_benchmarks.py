"""Each benchmark can be started. What it finds is not for tests: it takes long, and depends on the machine."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import all as together
from benchmarks.harness import Benchmark, main
from tests.processes import ROOT

NAMES = sorted(
    path.stem for path in Path(benchmarks.__path__[0]).glob("*.py") if "BENCHMARK = Benchmark(" in path.read_text()
)


def benchmark(name: str) -> Benchmark:
    found: Benchmark = importlib.import_module(f"benchmarks.{name}").BENCHMARK
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_answers_what_it_asks_and_which_sizes_it_has(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        main(benchmark(name))
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert benchmark(name).question.split()[0] in shown
    assert all(f"--{size.replace('_', '-')}" in shown for size in benchmark(name).sizes)
    assert benchmark(name).name == name


def test_all_of_them_are_imported_before_django_is_set_up() -> None:
    """Their command line is read first."""
    command = [sys.executable, "-m", "benchmarks.all", "--help"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "Runs every benchmark" in answer.stdout


def test_none_is_left_out_where_all_are_run() -> None:
    assert {module.BENCHMARK.name for module in together.MODULES} == set(NAMES)
