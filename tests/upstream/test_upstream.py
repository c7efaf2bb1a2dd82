"""Django's own tests for Task backends, and the backport's, against ours.

They are in no wheel: ``TASKS_TESTS`` names the directory of them. That is ``tests/tasks`` of Django's source
distribution, which tox fetches, or ``tests`` of the backport's repository. No distribution of the backport has its
tests, but Django's were made from them: on Django 5.2 tox runs these with the backport's names. In a copy of them the
names of the backends are changed, and the base class of the test cases, as theirs may use no database. What fails then
has to be what is named here, with its reason.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import django
import pytest

from tests.processes import ROOT

WAITS = "ours runs no call before the transaction around it has committed"
KEEPS = "ours keeps results, and tells of them"
DEFERS = "ours can run a call later"
IN_MEMORY = "the test changes what the Dummy backend has in its memory; ours is asked for the row"

DEVIATIONS = {
    "ImmediateBackendTestCase::test_cannot_get_result": KEEPS,
    "ImmediateBackendTestCase::test_cannot_refresh_result": KEEPS,
    "ImmediateBackendTestCase::test_get_result_from_different_request": KEEPS,
    "ImmediateBackendTestCase::test_cannot_pass_run_after": DEFERS,
    "ImmediateBackendTransactionTestCase::test_doesnt_wait_until_transaction_commit_by_default": WAITS,
    "DummyBackendTestCase::test_refresh_result": IN_MEMORY,
    "DummyBackendTestCase::test_refresh_result_async": IN_MEMORY,
}

NAMES = (
    (r'"(django[._]tasks)\.backends\.dummy\.DummyBackend"', '"tests.upstream.backends.Stored"'),
    (r'"(django[._]tasks)\.backends\.immediate\.ImmediateBackend"', '"tests.upstream.backends.AtOnce"'),
    (
        r"from django[._]tasks\.backends\.dummy import DummyBackend",
        "from tests.upstream.backends import Stored as DummyBackend",
    ),
    (
        r"from django[._]tasks\.backends\.immediate import ImmediateBackend",
        "from tests.upstream.backends import AtOnce as ImmediateBackend",
    ),
    (r"\b(SimpleTestCase|TransactionTestCase)\):", r"DatabaseTestCase):"),
    (r"\A", "from tests.upstream.backends import DatabaseTestCase\n"),
    (r"    available_apps = \[\]\n", ""),
    (r"from tests import tasks", "from tasks import tasks"),
    (r"\btests\.tasks\b", "tasks.tasks"),
)
"""In a test's module, by regular expression."""

OF_BACKPORT = (
    (r"\bdjango\.tasks\b", "django_tasks"),
    (r"\b(InvalidTask|InvalidTaskBackend)\b", r"\1Error"),
    (r'\."(,?)\n', r'"\1\n'),
    (r"async Tasks", "async"),
)
"""Names of Django's as the backport has them, and messages as far as it has the same."""

MODULES = ("test_tasks", "test_dummy_backend", "test_immediate_backend")
"""Where ours can take the place of a backend of Django's. The other modules test backends of their own, and helpers."""

SETTINGS = """
from tests.settings import *
ROOT_URLCONF = {urls!r}
DATABASES["default"]["TEST"] = {{"NAME": DATABASES["default"]["NAME"] + "_test_of_upstream"}}
"""
"""A database of their own: that of the tests which run already would be taken from them."""

GIVEN = os.environ.get("TASKS_TESTS", "")

pytestmark = pytest.mark.skipif(not GIVEN, reason="TASKS_TESTS names no directory of Django's or the backport's tests")


def adapted(source: Path, package: Path) -> None:
    """A copy of their tests as a package ``tasks``, with our names."""
    package.mkdir()
    (package / "__init__.py").touch()
    of_version = () if django.VERSION >= (6, 0) else OF_BACKPORT
    for path in source.rglob("*.py"):
        if path.name.startswith("test_"):
            (package / path.name).write_text(_with(*of_version, *NAMES, text=path.read_text()))
        elif path.name in ("tasks.py", "urls.py", "views.py"):
            own = (r"from (tests|\.) import", "from tasks import")
            (package / path.name).write_text(_with(*of_version, own, text=path.read_text()))


def _with(*names: tuple[str, str], text: str) -> str:
    for pattern, ours in names:
        text = re.sub(pattern, ours, text)
    return text


def deviating(package: Path) -> set[str]:
    """Of what is named, what these tests have: not each version has all."""
    texts = [path.read_text() for path in package.glob("test_*.py")]
    return {name for name in DEVIATIONS if any(all(f" {part}(" in text for part in name.split("::")) for text in texts)}


def test_their_tests_pass_but_for_what_is_named(tmp_path: Path) -> None:
    adapted(Path(GIVEN), tmp_path / "tasks")
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.conftest']\n")
    urls = "tasks.urls" if (tmp_path / "tasks" / "urls.py").exists() else "tests.urls"
    (tmp_path / "their_settings.py").write_text(SETTINGS.format(urls=urls))
    ran = subprocess.run(_command(tmp_path), cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True)
    failed = set(re.findall(r"^(?:FAILED|ERROR|SUBFAILED.*) \S+?\.py::(\w+::\w+)", ran.stdout, re.MULTILINE))
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed, ran.stdout + ran.stderr
    assert int(passed[1]) + len(failed) >= _tests_in(tmp_path / "tasks"), ran.stdout
    assert failed == deviating(tmp_path / "tasks"), ran.stdout
    print(f"{passed[0]}, and not: {', '.join(sorted(failed))}")  # noqa: T201


def _tests_in(package: Path) -> int:
    texts = [(package / f"{name}.py").read_text() for name in MODULES]
    counts = [len(re.findall(r"^    (?:async )?def test_", text, re.MULTILINE)) for text in texts]
    assert min(counts) > 10, "a module has gone"
    return sum(counts)


def _command(directory: Path) -> list[str]:
    modules = [f"tasks/{name}.py" for name in MODULES]
    options = ["-q", "-rfE", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(directory)]
    return [sys.executable, "-m", "pytest", *options, *modules]


def _environment(directory: Path) -> dict[str, str]:
    """Their tests may ask our database from inside of a coroutine, which Django refuses otherwise."""
    own = {"DJANGO_SETTINGS_MODULE": "their_settings", "DJANGO_ALLOW_ASYNC_UNSAFE": "1"}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
