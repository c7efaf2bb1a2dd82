"""Async code whose task is canceled while it enqueues or holds a slot: done or not, never half, and no slot is lost.

A thread does the work, and nobody stops it there. It is held at each of its steps while the task is canceled.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Event
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections

from tenant_slots import dispatch, fair_order, hold_slot, slots, tenants, transitions
from tenant_slots.enqueueing import bulk
from tenant_slots.models import ENDED, State, TenantJob
from tenant_slots.running.keeper import Keeper
from tests import jobs
from tests.factories import counters_match, fresh, in_rq, in_thread, tenant_queue, work
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

WHEN = pytest.mark.parametrize("when", ["before", "after"])


class Step:
    """A call in which the thread that makes it is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: Any, name: str, when: str) -> None:
        self._reached, self._go_on = Event(), Event()
        self._call, self._when = getattr(of, name), when
        step = self
        monkeypatch.setattr(of, name, lambda *args, **kwargs: step._held(*args, **kwargs))

    def _held(self, *args: Any, **kwargs: Any) -> Any:
        if self._when == "before":
            self._hold()
        answer = self._call(*args, **kwargs)
        if self._when == "after":
            self._hold()
        return answer

    def _hold(self) -> None:
        if not self._reached.is_set():
            self._reached.set()
            assert self._go_on.wait(20)

    def cancel(self, function: Callable[[], Awaitable[object]]) -> None:
        """Have a task canceled that awaits the function, while the thread is held."""
        asyncio.run(self._cancel(function))

    async def _cancel(self, function: Callable[[], Awaitable[object]]) -> None:
        task = asyncio.ensure_future(function())
        assert await asyncio.to_thread(self._reached.wait, 20)
        task.cancel()
        await asyncio.sleep(0)  # it is told
        self._go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await sync_to_async(connections.close_all)()  # of asgiref's thread, once that is through


@WHEN
@pytest.mark.parametrize(
    ("module", "name"),
    [
        (tenants, "tenant_queues_for"),
        (bulk, "insert"),
        (transitions, "offer_many"),
        (fair_order, "offer"),
        (slots, "admit"),
        (dispatch, "push"),
    ],
)
def test_an_enqueue_whose_caller_is_canceled_is_done_to_its_end(
    module: Any, name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Step(monkeypatch, module, name, when).cancel(partial(jobs.record.aenqueue, "acme", "name", ""))
    assert (TenantJob.objects.get().state, in_rq()) == (State.QUEUED, 1)
    assert counters_match()


def test_an_enqueue_whose_caller_is_canceled_before_a_thread_has_it_stores_nothing() -> None:
    async def cancel_at_once() -> None:
        task = asyncio.ensure_future(jobs.record.aenqueue("acme", "name", ""))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_at_once())
    assert not TenantJob.objects.exists()


@WHEN
def test_control_an_enqueue_of_several_awaits_is_left_half_done(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored in one step and offered in another, the job waits for the sweep."""
    row = tenant_queue()

    async def enqueue() -> None:
        await sync_to_async(bulk.insert)([TenantJob(tenant_queue=row, task="tests.jobs.add", args=[1, 2])])
        await sync_to_async(transitions.offer)(row.pk, "imports")

    Step(monkeypatch, bulk, "insert", when).cancel(enqueue)
    assert (TenantJob.objects.get().state, in_rq()) == (State.WAITING, 0)


@WHEN
@pytest.mark.parametrize("name", ["answer", "_insert", "_begin", "end"])
def test_a_slot_whose_caller_is_canceled_meanwhile_is_given_back(
    name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue()
    entered: list[bool] = []

    def hold() -> None:
        with hold_slot("acme", "imports", timeout=5):
            entered.append(True)

    Step(monkeypatch, Keeper, name, when).cancel(sync_to_async(hold))
    assert entered == [True], "nobody stops a thread: the block runs, in its slot"
    assert (TenantJob.objects.get().state, fresh(row).current_job) == (State.FINISHED, 0)


def all_have_ended() -> bool:
    return not TenantJob.objects.exclude(state__in=ENDED).exists()


def test_a_coroutine_that_is_canceled_inside_the_block_gives_its_slot_back() -> None:
    row = tenant_queue()

    async def hold(inside: asyncio.Event) -> None:
        with hold_slot("acme", "imports"):
            inside.set()
            await asyncio.Event().wait()

    async def cancel_inside() -> None:
        task = asyncio.ensure_future(hold(inside := asyncio.Event()))
        await asyncio.wait_for(inside.wait(), 60)
        assert await asyncio.to_thread(in_thread, row.jobs.running().count) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_inside())
    job = TenantJob.objects.get()
    assert (job.state, job.error_class) == (State.FAILED, "asyncio.exceptions.CancelledError")
    assert fresh(row).current_job == 0


def test_a_slot_that_is_entered_in_one_await_and_left_in_another_is_given_back() -> None:
    row = tenant_queue()

    async def hold() -> None:
        holder = hold_slot("acme", "imports")
        await sync_to_async(holder.__enter__)()
        await sync_to_async(holder.__exit__)(None, None, None)

    asyncio.run(hold())
    assert (TenantJob.objects.get().state, fresh(row).current_job) == (State.FINISHED, 0)


def test_a_slot_that_was_entered_for_a_canceled_await_goes_with_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()

    async def hold() -> None:
        await sync_to_async(hold_slot("acme", "imports").__enter__)()

    Step(monkeypatch, Keeper, "answer", "after").cancel(hold)
    gc.collect()
    wait_until(all_have_ended)
    assert fresh(row).current_job == 0


def test_async_with_is_refused_before_anything_is_stored() -> None:
    async def enter() -> None:
        async with hold_slot("acme", "imports"):  # type: ignore[attr-defined]
            pass

    async def wait() -> None:
        await hold_slot("acme", "imports")  # type: ignore[misc]

    for function in (enter, wait):
        with pytest.raises(TypeError):
            asyncio.run(function())
    assert not TenantJob.objects.exists()


def test_what_was_enqueued_for_a_canceled_caller_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(monkeypatch, bulk, "insert", "before")
    step.cancel(partial(jobs.add.aenqueue_many, [((1, 2), {"tenant": "acme"}), ((3, 4), {"tenant": "acme"})]))
    work("reports")
    assert list(TenantJob.objects.order_by("pk").values_list("state", "result")) == [
        (State.FINISHED, 3),
        (State.FINISHED, 7),
    ]
