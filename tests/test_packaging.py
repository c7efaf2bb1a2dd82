"""What the package says of itself."""

from __future__ import annotations

import ast
import configparser
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import tenant_slots

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(tenant_slots.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

BROUGHT_ALONG = {
    "pytest_plugin.py": "pytest",
    "contrib/opentelemetry.py": "opentelemetry",
    "contrib/prometheus.py": "prometheus_client",
    "contrib/schemas.py": "django_tenants",
    "contrib/sentry.py": "sentry_sdk",
    "db/leftovers.py": "psycopg",
    "db/sessions.py": "psycopg",
    "django_tasks/api.py": "django_tasks",
}
"""What only those use who have it."""


def declared() -> set[str]:
    return {requirement.partition(">")[0].strip().lower() for requirement in PROJECT["dependencies"]}


def imports() -> Iterator[tuple[str, str]]:
    """Files of the package, and the top-level packages that these import."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                yield str(path.relative_to(PACKAGE)), name.partition(".")[0]


def undeclared(found: Iterator[tuple[str, str]]) -> set[tuple[str, str]]:
    distributions = packages_distributions()
    return {
        (file, name)
        for file, name in found
        if name not in {*sys.stdlib_module_names, "tenant_slots", BROUGHT_ALONG.get(file)}
        and not {each.lower() for each in distributions.get(name, [])} & declared()
    }


def test_every_package_that_is_imported_is_declared() -> None:
    assert undeclared(imports()) == set()
    assert undeclared(iter([("models.py", "croniter")])), "what only a dependency brings along is not declared"


def test_every_dependency_has_a_lowest_version() -> None:
    assert [requirement for requirement in PROJECT["dependencies"] if ">=" not in requirement] == []


def lowest(*extras: str) -> dict[str, Version]:
    """What the project itself and these extras ask for at least."""
    extra_lists = [PROJECT["optional-dependencies"][extra] for extra in extras]
    requirements = [Requirement(text) for texts in (PROJECT["dependencies"], *extra_lists) for text in texts]
    return {
        one.name: Version(bound.version) for one in requirements for bound in one.specifier if bound.operator == ">="
    }


def pinned_as_lowest() -> dict[str, Version]:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    pins = [line.split("==") for line in tox["lowest"]["deps"].split()]
    return {name: Version(version) for name, version in pins if name != "psycopg-binary"}  # it comes with psycopg


def test_the_lowest_versions_that_users_may_have_are_tested() -> None:
    of_users = lowest("postgres", "tasks", "prometheus", "opentelemetry", "sentry", "tenants")
    of_tests = {name: version for name, version in lowest("test").items() if name in pinned_as_lowest()}
    assert pinned_as_lowest() == {**of_tests, **of_users}


def test_what_only_those_use_who_have_it_has_an_extra() -> None:
    """Which says with what versions of it this one works."""
    ours = ("demo", "test", "browser", "docs")
    extras = {name: texts for name, texts in PROJECT["optional-dependencies"].items() if name not in ours}
    named = {canonicalize_name(Requirement(text).name) for texts in extras.values() for text in texts}
    there = {name: set(map(canonicalize_name, names)) for name, names in packages_distributions().items()}
    without = {name for name in BROUGHT_ALONG.values() if name in there and not there[name] & named}
    assert without == {"pytest"}, "which is there where its plugin is looked for"


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", PROJECT["urls"])
def test_links_of_the_project_are_to_its_repository(name: str) -> None:
    assert PROJECT["urls"][name].startswith(PROJECT["urls"]["Homepage"])
