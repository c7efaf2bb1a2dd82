"""The environments of tox that README, manual and CI name are there."""

from __future__ import annotations

import configparser
import re
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / ".ci" / "run", *sorted((ROOT / "docs").rglob("*.md"))]


def environments() -> set[str]:
    """Those with a section, and those of tox's own list, in which braces hold alternatives."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    sections = [name.removeprefix("testenv:") for name in tox.sections() if name.startswith("testenv:")]
    return set().union(*map(expanded, [*sections, *tox["tox"]["envlist"].split()]))


def expanded(name: str) -> set[str]:
    parts = [part.split(",") for part in re.split(r"[{}]", name)]
    return {"".join(each) for each in product(*parts)}


def named(text: str) -> set[str]:
    return {name for names in re.findall(r"\btox (?:--\S+ (?:\d+ )?)*-e ([\w,-]+)", text) for name in names.split(",")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_environment_that_is_named_is_there(page: Path) -> None:
    assert named(page.read_text()) <= environments()


def test_control_what_is_named_is_found() -> None:
    assert named("`tox -e lint,no-such` and `tox -e py311`") - environments() == {"no-such", "py311"}
    assert named("tox --parallel 2 --no-spinner -e lint,no-such") - environments() == {"no-such"}
    assert {"docs", "faults", "package"} <= set().union(*(named(page.read_text()) for page in PAGES))


CI = (ROOT / ".ci" / "run").read_text()

OPTIONAL = {"3.14"}
"""Versions of Python that CI may do without."""


def versions() -> set[str]:
    return {f"3.{found[1]}" for name in environments() if (found := re.match(r"py3(\d+)-", name))}


def test_ci_looks_for_each_interpreter_that_tox_wants() -> None:
    (digits,) = re.findall(r"versions/3\.1\[(\d+)\]", CI)
    looked_for = {f"3.1{digit}" for digit in digits}
    assert versions() - looked_for == {"3.11"}, "which CI itself runs on"
    assert set(re.findall(r"python(3\.\d+)", CI)) == versions()


def test_ci_leaves_out_none_but_the_optional_ones() -> None:
    """What is left out by its name cannot be missing."""
    (required,) = re.findall(r"^for interpreter in (.*); do$", CI, re.MULTILINE)
    assert {name.removeprefix("python") for name in required.split()} == versions() - OPTIONAL
    (left_out,) = re.findall(r"TOX_SKIP_ENV='(.*)'", CI)
    skipped = {name for name in environments() if re.fullmatch(left_out, name)}
    assert skipped == {"py314-django61-postgres"}
