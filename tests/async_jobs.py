"""Coroutines as jobs, and an async view that enqueues."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar

from django.http import HttpRequest, JsonResponse
from django.urls import path
from rq import Retry

from tenant_slots import report_progress, tenant_job
from tenant_slots.models import TenantJob

who: ContextVar[str] = ContextVar("who", default="nobody")


@tenant_job("reports", tenant="tenant")
async def count_running(tenant: str) -> int:
    """How many jobs hold a slot, as the job itself sees it after a while."""
    await asyncio.sleep(0.01)
    return await TenantJob.objects.running().acount()


@tenant_job("reports", tenant="tenant", retry=Retry(max=1))
async def fail_async(tenant: str) -> None:
    await asyncio.sleep(0)
    raise ValueError("no such feed")


@tenant_job("reports", tenant="tenant")
async def ask_to_run_again(tenant: str) -> Retry:
    return Retry(max=1)


@tenant_job("reports", tenant="tenant")
async def cancel_itself(tenant: str) -> None:
    raise asyncio.CancelledError


@tenant_job("reports", tenant="tenant")
async def say_who(tenant: str) -> str:
    return who.get()


@tenant_job("reports", tenant="tenant")
def give_coroutine(tenant: str) -> object:
    """A plain function that returns a coroutine, as one that another decorator has wrapped may."""
    return count_running.tenant_task.function(tenant)


@tenant_job("reports", tenant="tenant")
def run_coroutine(tenant: str) -> int:
    """A plain function that has a loop of its own."""
    return asyncio.run(TenantJob.objects.running().acount())


async def _sleep_awaiting() -> None:
    await asyncio.sleep(60)


async def _sleep_blocking() -> None:
    time.sleep(60)


async def _sleep_blocking_in_a_task() -> None:
    forgotten = asyncio.create_task(_sleep_blocking())
    await asyncio.Event().wait()
    await forgotten


async def _sleep_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(time.sleep, 60)
    await asyncio.Event().wait()


SLEEPS = {
    "awaiting": _sleep_awaiting,
    "blocking": _sleep_blocking,
    "task": _sleep_blocking_in_a_task,
    "callback": _sleep_in_a_callback,
}


@tenant_job("reports", tenant="tenant", timeout=1)
async def sleep_too_long(tenant: str, how: str, trace: str) -> None:
    try:
        await SLEEPS[how]()
    finally:
        with open(trace, "a") as file:
            file.write("cleaned up")


@tenant_job("reports", tenant="tenant")
async def report_from_a_task(tenant: str) -> None:
    async def step(done: int) -> None:
        report_progress(done, 2, last=done)

    await step(1)
    await asyncio.create_task(step(2))


async def _note_when_canceled(trace: str) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        with open(trace, "a") as file:
            file.write(f"{await TenantJob.objects.running().acount()} in its slot")
        raise


@tenant_job("reports", tenant="tenant")
async def leave_a_task_behind(tenant: str, trace: str) -> str:
    task = asyncio.create_task(_note_when_canceled(trace))
    await asyncio.sleep(0)
    return task.get_name()


async def view(request: HttpRequest) -> JsonResponse:
    job = await count_running.aenqueue("acme")
    many = await count_running.aenqueue_many([(("acme",), {}), (("umbrella",), {})])
    canceled = await many[0].acancel()
    await many[0].arefresh_from_db()
    before = many[0].state
    await many[0].aretry()
    return JsonResponse({"job": job.pk, "many": [one.pk for one in many], "canceled": canceled, "was": before})


urlpatterns = [path("enqueue", view)]
