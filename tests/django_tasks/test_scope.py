"""A job does not run in the scope of its call, wherever it runs: what it enqueues is as under a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import django_rq
import pytest
from django.test import override_settings
from rq import Queue

from tenant_slots import tenant_job, tenant_scope
from tenant_slots.models import TenantJob
from tenant_slots.scope import tenant_in_scope
from tenant_slots.testing import run_jobs
from tests.django_tasks import tasks
from tests.django_tasks.api import TaskResultStatus

pytestmark = pytest.mark.django_db(transaction=True)

seen: list[str | None] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()


def look_again(job: TenantJob, result: object) -> None:
    seen.append(tenant_in_scope())


@tenant_job("imports", tenant="tenant", on_success=look_again)
def look(tenant: str) -> None:
    seen.append(tenant_in_scope())


@tenant_job("imports", tenant="tenant", on_success=look_again)
async def look_slowly(tenant: str) -> None:
    seen.append(tenant_in_scope())


def in_a_test() -> None:
    look.enqueue("acme")
    look_slowly.enqueue("acme")
    run_jobs()


def at_once() -> None:
    with override_settings(TENANT_SLOTS={"IMMEDIATE": True}):
        look.enqueue("acme")
        look_slowly.enqueue("acme")


def where_rq_is_asked() -> None:
    queue = Queue("imports", connection=django_rq.get_connection("imports"), is_async=False)
    queue.enqueue(look, "acme")
    queue.enqueue(look_slowly, "acme")


@pytest.mark.parametrize("run", [in_a_test, at_once, where_rq_is_asked])
def test_neither_a_job_nor_its_callback_is_in_the_scope_of_whoever_runs_it(run: Callable[[], None]) -> None:
    with tenant_scope("shop"):
        run()
        assert tenant_in_scope() == "shop"
    assert seen == [None] * 4


def test_a_job_of_nobody_is_in_none_either() -> None:
    queue = Queue("imports", connection=django_rq.get_connection("imports"), is_async=False)
    with tenant_scope("shop"):
        queue.enqueue(look, "")
    assert seen == [None]


def test_a_task_that_enqueues_another_one_says_whose_that_is() -> None:
    with tenant_scope("acme"):
        results = tasks.ping_of_nobody.enqueue("acme"), tasks.ping_of.enqueue("acme", "shop")
        run_jobs()
    for result in results:
        result.refresh()
    assert [result.status for result in results] == [TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL]
    assert results[0].errors[0].exception_class.__name__ == "TaskWithoutTenant"
    assert TenantJob.objects.filter(tenant_queue__tenant="shop", task="tests.django_tasks.tasks.ping").exists()


def test_a_call_of_the_function_is_no_job_and_stays_in_its_scope() -> None:
    with tenant_scope("shop"):
        look("acme")
    assert seen == ["shop"]
