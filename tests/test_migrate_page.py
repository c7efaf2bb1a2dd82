"""The how-to about migrating works as it is written, but for what needs Celery."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import django_rq
import pytest

from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.tasks.registry import registered
from tests.factories import work
from tests.processes import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = (ROOT / "docs/how-to/migrate.md").read_text()
BLOCKS = [dedent(block) for block in re.findall(r"^ *```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)]

QUOTAS = """
from types import SimpleNamespace as Row

class Quota:
    objects = Row(all=lambda: [Row(shop="acme", max_job=5), Row(shop="beta", max_job=2)])
"""


def block(*texts: str) -> str:
    (found,) = (block for block in BLOCKS if all(text in block for text in texts))
    return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes a module of the project, and imports it."""
    for package in ("feeds", "shop"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "shop" / "models.py").write_text(QUOTAS)
    monkeypatch.syspath_prepend(tmp_path)

    def module(name: str, code: str) -> Any:
        (tmp_path / f"{name.replace('.', '/')}.py").write_text(code)
        return import_module(name)

    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] in ("feeds", "shop")]:
        del sys.modules[name]
    for path in [path for path in registered if path.partition(".")[0] in ("feeds", "shop")]:
        del registered[path]


def test_the_first_step_from_django_rq_leaves_callers_their_rq_job(project: Any) -> None:
    jobs = project("feeds.jobs", block("# feeds/jobs.py", "@django_rq.job"))
    rq_job = jobs.import_feed.delay("acme", "a.csv")
    work()
    rq_job.refresh()
    assert rq_job.return_value() == "acme: a.csv"
    assert TenantJob.objects.get().rq_job_id == rq_job.id


def test_what_has_become_of_a_task_of_celery_runs(project: Any) -> None:
    jobs = project("feeds.jobs", block("# feeds/jobs.py", "retry_for=ConnectionError"))
    job = jobs.import_feed.delay("acme", "a.csv")
    work()
    job.refresh_from_db()
    assert job.result == "acme: a.csv"
    assert job.options["timeout"] == 600


def test_limits_are_taken_along_and_twice_is_as_good(project: Any) -> None:
    move_quotas = project("shop.move_quotas", block("def move_quotas")).move_quotas
    move_quotas("imports")
    move_quotas("imports")
    rows = TenantQueue.objects.order_by("tenant").values_list("tenant", "queue", "max_job", "current_job")
    assert list(rows) == [("acme", "imports", 5, 0), ("beta", "imports", 2, 0)]


def test_what_waits_in_redis_under_the_wrapper_enqueues_the_new_job(project: Any) -> None:
    jobs = project("shop.jobs", block("# shop/jobs.py"))
    quotas = project("shop.quotas", block("# shop/quotas.py", "function.enqueue"))
    django_rq.get_queue("imports").enqueue(quotas.run_within_quota, "acme", jobs.import_feed, "a.csv")
    work()
    work()
    job = TenantJob.objects.get()
    assert (job.state, job.result, job.task) == (State.FINISHED, "acme: a.csv", "shop.jobs.import_feed")
