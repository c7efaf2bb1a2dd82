"""Imports point down and make no circle, those inside functions included. Controls add one and see it found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lint(directory: Path) -> tuple[int, str]:
    """Exit code and output of import-linter on the package in this directory, by its pyproject.toml."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    linter = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    return linter.returncode, linter.stdout + linter.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", "locale", "static", "templates")
    shutil.copytree(ROOT / "tenant_slots", tmp_path / "tenant_slots", ignore=ignored)
    return tmp_path


def test_dependencies_point_down_and_make_no_circle() -> None:
    code, output = lint(ROOT)
    assert code == 0, output
    assert "2 kept, 0 broken" in output


@pytest.mark.parametrize(
    ("file", "imported"),
    [
        ("models/tenant_job.py", "tenant_slots.enqueueing.cancel"),
        ("slots.py", "tenant_slots.dispatch"),
        ("running/recording.py", "tenant_slots.running.run"),
        ("stats/expressions.py", "tenant_slots.stats.rows"),
    ],
)
def test_control_an_import_that_is_hidden_in_a_function_is_found(copy: Path, file: str, imported: str) -> None:
    with (copy / "tenant_slots" / file).open("a") as source:
        source.write(f"\n\ndef hidden() -> object:\n    import {imported}\n\n    return {imported}\n")
    code, output = lint(copy)
    assert code == 1, output
    assert imported.rpartition(".")[2] in output


def test_a_new_module_must_be_given_its_layer(copy: Path) -> None:
    (copy / "tenant_slots" / "homeless.py").touch()
    code, output = lint(copy)
    assert code == 1, output
    assert "homeless" in output


def test_every_package_says_what_lives_there() -> None:
    undocumented = [
        str(package.parent.relative_to(ROOT))
        for package in (ROOT / "tenant_slots").rglob("__init__.py")
        if package.parent.name not in ("commands", "migrations") and not package.read_text().startswith('"""')
    ]
    assert undocumented == []
