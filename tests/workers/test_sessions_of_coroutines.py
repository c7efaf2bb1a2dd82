"""What a coroutine leaves in the session that makes its ORM calls the next tenant's coroutine does not see."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from tenant_slots import tenant_job
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.processes import Workers
from tests.workers.leftovers import sql

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="is about sessions of PostgreSQL"),
]

CLASSES = pytest.mark.parametrize("name", ["TenantSimpleWorker", "TenantPreforkWorker"])


@tenant_job("imports", tenant="tenant")
async def say_who(tenant: str) -> None:
    """As projects do that have row level security."""
    await sync_to_async(sql)(f"SELECT set_config('app.tenant', '{tenant}', false)")


@tenant_job("imports", tenant="tenant")
async def ask_who(tenant: str) -> Any:
    return await sync_to_async(sql)("SELECT current_setting('app.tenant', true)")


@tenant_job("imports", tenant="tenant")
async def leave_open(tenant: str) -> None:
    await sync_to_async(transaction.atomic().__enter__)()


@tenant_job("imports", tenant="tenant")
async def write(tenant: str) -> None:
    await TenantQueue.objects.acreate(tenant="written", queue="reports")


def run_in_order(workers: Workers, name: str, *tasks: Any) -> list[TenantJob]:
    made = [task.enqueue(f"tenant{number}") for number, task in enumerate(tasks)]
    assert workers.run("--burst", worker_class=f"tenant_slots.workers.{name}").returncode == 0
    return [TenantJob.objects.get(pk=job.pk) for job in made]


@CLASSES
def test_a_setting_is_not_the_next_tenants(workers: Workers, name: str) -> None:
    """With a session that is kept, as most projects in production have it."""
    workers.variables["TEST_CONN_MAX_AGE"] = "60"
    _, second = run_in_order(workers, name, say_who, ask_who)
    assert (second.state, second.result or None) == (State.FINISHED, None)


@CLASSES
def test_what_the_next_tenant_writes_is_committed(workers: Workers, name: str) -> None:
    ended = run_in_order(workers, name, leave_open, write, ask_who)
    assert [job.state for job in ended] == [State.FINISHED] * 3, [job.error[-80:] for job in ended]
    assert TenantQueue.objects.filter(tenant="written").exists()
