"""Running an ``async def`` job to its end, inside its slot and inside RQ's timeout, and leaving loops that go on.

`asyncio.Runner` and not asgiref's `async_to_sync`: that one runs the coroutine in a thread, where RQ's alarm cannot
reach it. It would go on after the timeout, without a slot.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from asgiref.sync import SyncToAsync, async_to_sync, sync_to_async
from django.db import close_old_connections
from rq.timeouts import BaseTimeoutException

from tenant_slots.alarm import rq_handler
from tenant_slots.models import TenantJob
from tenant_slots.scope import outside_of_scopes
from tenant_slots.tasks import context
from tenant_slots.tasks.tenant_busy import possible

_is_called_here: ContextVar[bool] = ContextVar("tenant_slots_is_called_here", default=False)


_has_left_loop = False
"""Whether code that this process has run has left a loop that goes on, see `in_same_loop`."""


@contextmanager
def in_same_loop() -> Iterator[None]:
    """A loop that goes on in a greenlet after the block, as Playwright's until somebody stops it, is the block's alone.

    Python takes this thread for one in which a loop runs, and Django refuses each query there.
    """
    global _has_left_loop
    before = asyncio._get_running_loop()
    try:
        yield
    finally:
        if asyncio._get_running_loop() is not before:
            _has_left_loop = True
            asyncio._set_running_loop(before)


def has_left_loop() -> bool:
    """Whether there may be one that goes on as soon as somebody turns to its greenlet, or that is collected."""
    return _has_left_loop


@contextmanager
def called_here() -> Iterator[None]:
    """In the block coroutines make their ORM calls in this thread: they see what its transaction has not committed.

    And where asgiref runs this thread's code for a coroutine, of an asynchronous caller, a loop of our own would have
    the ORM calls wait for this thread, which waits for the loop. No worker's alarm is to reach them.
    """
    token = _is_called_here.set(True)
    try:
        yield
    finally:
        _is_called_here.reset(token)


def completed_in_context(
    job: TenantJob, function: Callable[[], Any], require: Callable[[TenantJob, Any], None] = lambda job, result: None
) -> Any:
    """What a function returns that is called in a job's context, or the coroutine that it returns, once it has ended.

    What `require` raises of that is raised in the context too, where errors are told of; so is what an impossible
    `TenantBusy` is about.

    RQ too would run a coroutine that a job returns (2.12, ``Job._execute``), but after the job has given its slot back.
    """
    forget_thread_of_parent()
    with outside_of_scopes(), context.entered(job), possible():
        with in_same_loop():  # at its end a context may ask the database
            result = function()
            if isinstance(result, Coroutine):
                result = _run(_in_context(job, result))
        require(job, result)
        return result


def forget_thread_of_parent() -> None:
    """asgiref's (3.8 to 3.13), where a worker used it before it forked: it would be waited for, and is not here.

    Whatever is called: a plain function may run a coroutine by itself. Children of our workers forget it as they are
    forked, before receivers are told of a start; a work-horse of RQ's worker does so here.
    """
    if not all(thread.is_alive() for thread in SyncToAsync.single_thread_executor._threads):
        SyncToAsync.single_thread_executor = ThreadPoolExecutor(max_workers=1)


def _in_context(job: TenantJob, coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
    """asgiref's thread makes the ORM calls of coroutines, and has database connections of its own."""
    of_thread = context.of_thread(job)
    return coroutine if of_thread is None else _within(of_thread, coroutine)


async def _within(of_thread: AbstractContextManager[Any], coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        await sync_to_async(of_thread.__enter__)()
    except BaseException:
        coroutine.close()
        raise
    try:
        result = await coroutine
    except BaseException as error:
        await sync_to_async(of_thread.__exit__)(type(error), error, error.__traceback__)
        raise
    await sync_to_async(of_thread.__exit__)(None, None, None)
    return result


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    if _is_called_here.get():
        return async_to_sync(_awaited)(coroutine)
    try:
        return _run_under_alarm(coroutine)
    finally:
        # asgiref's thread for the ORM calls of coroutines lives on in a worker that does not fork.
        asyncio.run(sync_to_async(close_old_connections)())


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine


def _run_under_alarm(coroutine: Coroutine[Any, Any, Any]) -> Any:
    alarm = _Alarm()
    try:
        with asyncio.Runner() as runner, alarm.armed():
            return runner.run(_known_to(alarm, coroutine))
    except asyncio.CancelledError:
        if alarm.error is not None:
            raise alarm.error from None
        raise


async def _known_to(alarm: _Alarm, coroutine: Coroutine[Any, Any, Any]) -> Any:
    alarm.task = asyncio.current_task()
    return await coroutine


class _Alarm:
    """RQ's alarm, which raises wherever the main thread is.

    In the job's own coroutine, and between two steps of the loop, that ends the job. But in a callback of the loop, or
    in a task that nobody awaits, the error would be lost with the alarm. There it cancels the coroutine too.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.error: BaseTimeoutException | None = None

    @contextmanager
    def armed(self) -> Iterator[None]:
        handler = rq_handler()
        if handler is None:
            yield
            return

        def ring(signum: int, frame: Any) -> None:
            if self.task is not None and asyncio.current_task(self.task.get_loop()) is not self.task:
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)
            try:
                handler(signum, frame)
            except BaseTimeoutException as error:
                self.error = error
                raise

        signal.signal(signal.SIGALRM, ring)
        try:
            yield
        finally:
            signal.signal(signal.SIGALRM, handler)
