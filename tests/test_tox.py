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
    return {name for names in re.findall(r"\btox -e ([\w,-]+)", text) for name in names.split(",")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_environment_that_is_named_is_there(page: Path) -> None:
    assert named(page.read_text()) <= environments()


def test_control_what_is_named_is_found() -> None:
    assert named("`tox -e lint,no-such` and `tox -e py311`") - environments() == {"no-such", "py311"}
    assert {"faults", "package"} <= set().union(*(named(page.read_text()) for page in PAGES))
