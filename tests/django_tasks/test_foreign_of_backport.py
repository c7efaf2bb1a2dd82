"""``@task`` over ``@tenant_job`` with a backend of the backport, also where Django has Tasks of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import django
import pytest
from django.test import override_settings

from tenant_slots.checks import check_foreign_tasks
from tests import async_jobs, jobs
from tests.processes import ROOT

pytestmark = pytest.mark.skipif(not find_spec("django_tasks"), reason="the backport is not installed")

HAS_OWN = django.VERSION >= (6, 0)

PACKAGES = ["django_tasks", pytest.param("django.tasks", marks=pytest.mark.skipif(not HAS_OWN, reason="Django 6.0"))]
"""Of whose ``@task`` the Tasks are: each makes those of the backend's class."""

AWAITS = sys.version_info >= (3, 12)
"""Whether Tasks see that a decorated ``async def`` function is one."""

BACKENDS = "tests.django_tasks.backport"
OURS = "tenant_slots.tasks_backend.TenantSlotsBackend"
MODULE = "tests.django_tasks.of_backport"
SYNC, ASYNC = f"{MODULE}.add", f"{MODULE}.count_running"


@pytest.fixture(params=PACKAGES)
def module(request: pytest.FixtureRequest, backend: str) -> Iterator[ModuleType]:
    """With Tasks of the backend that the test names."""
    found = ModuleType(MODULE)
    task = import_module(request.param).task
    with override_settings(TASKS={"default": {"BACKEND": f"{BACKENDS}.{backend}", "QUEUES": []}}):
        vars(found).update(add=task(jobs.add), count_running=task(async_jobs.count_running))
        sys.modules[MODULE] = found
        yield found
        del sys.modules[MODULE]


def named() -> set[Any]:
    return {warning.obj for warning in check_foreign_tasks()} & {SYNC, ASYNC}


@pytest.mark.parametrize("backend", ["Foreign"])
def test_a_check_names_tasks_that_it_runs_without_a_slot(module: ModuleType) -> None:
    assert named() == {SYNC, ASYNC}


@pytest.mark.parametrize("backend", ["OfRQ"])
def test_where_rq_calls_the_function_a_check_names_the_asynchronous_one_alone(module: ModuleType) -> None:
    assert named() == ({ASYNC} if AWAITS else set())


@pytest.mark.parametrize("backend", ["Immediate", "Dummy"])
def test_no_check_speaks_of_a_task_that_runs_here_or_never(module: ModuleType) -> None:
    assert named() == set()


START = """
import sys, django
from importlib import import_module
from django.conf import settings
settings.TASKS = {tasks!r}
django.setup()
from tenant_slots.checks import check_foreign_tasks
from tests import jobs
"""
"""As a process of a project that has these backends."""


def output_of(script: str, **tasks: str) -> str:
    started = START.format(tasks={alias: {"BACKEND": path, "QUEUES": []} for alias, path in tasks.items()})
    ran = subprocess.run([sys.executable, "-c", started + script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    ("backend", "text"),
    [("Foreign", "17, a call of tests.jobs.add, will run without a slot\n"), ("OfRQ", "")],
)
def test_a_call_is_logged_when_it_is_enqueued_whichever_backend_is_named_first(
    package: str, backend: str, text: str
) -> None:
    enqueued = f"import_module({package!r}).task(backend='other')(jobs.add).enqueue(1, 2)"
    assert output_of(enqueued, default=OURS, other=f"{BACKENDS}.{backend}") == text


@pytest.mark.skipif(not HAS_OWN, reason="before Django 6.0 all Tasks are the backport's")
def test_a_project_that_uses_it_not_need_not_have_it_imported() -> None:
    look = "check_foreign_tasks(); print([name for name in sys.modules if name.startswith('django_tasks')])"
    assert output_of(look, default=OURS) == "[]\n"
    assert output_of(look, default=OURS, other=f"{BACKENDS}.Foreign") != "[]\n", "the control"
