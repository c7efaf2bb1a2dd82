"""``hold_slot``: one of a tenant's slots for code that is no job of RQ, such as a web view or a script.

Its row is a reservation: like a job's, in the same backlog, with the same lease and sweep. It is never pushed to RQ:
the process that waits for it looks whether it was admitted, and nobody else could begin it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextlib import (
    AbstractContextManager,
    ContextDecorator,
    _AsyncGeneratorContextManager,
    _GeneratorContextManager,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from asgiref.sync import iscoroutinefunction
from django.db import connections

from tenant_slots import tenants
from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.exceptions import HoldInTransaction, ImproperReservation
from tenant_slots.models import State, TenantJob
from tenant_slots.running import errors, progress
from tenant_slots.running.keeper import Keeper, Reservation
from tenant_slots.running.progress import Reporter
from tenant_slots.running.recording import storable_error
from tenant_slots.tasks.options import Option, key_problem, priority_problem, require_options
from tenant_slots.validation import is_number, name_problem, name_text

F = TypeVar("F", bound=Callable[..., Any])

LONGEST_TIMEOUT = 24 * 3600
"""Seconds to wait for a slot; what waits longer is a job."""

ASYNC_GENERATOR, GENERATOR, COROUTINE = "an async generator", "a generator", "a coroutine"
CONTEXT_MANAGER, AWAITABLE = "a context manager", "an awaitable"

TOO_LATE = "whose code runs when the slot has been given back; use `with hold_slot(...)` inside it"


class SlotHolder(ContextDecorator, AbstractContextManager["Reservation"]):
    """What ``hold_slot(...)`` gives: for a ``with``, or as a decorator, which holds a slot for each call.

    Several threads, or tasks of asyncio, may use one at once: each ends what it has begun.
    """

    def __init__(self, hold: Callable[[], AbstractContextManager[Reservation]]) -> None:
        self._hold = hold
        self._held: dict[object, list[AbstractContextManager[Reservation]]] = {}

    def __call__(self, function: F) -> F:
        """Raises ImproperReservation for what runs only after it was called, when the slot has gone again.

        Where the function does not tell, as one that returns a coroutine of another, each call does.
        """
        _require_run_by_call(function)
        return super().__call__(_refusing_what_runs_later(function))

    def _recreate_cm(self) -> SlotHolder:
        """For each call of a decorated function."""
        return SlotHolder(self._hold)

    def __enter__(self) -> Reservation:
        held = self._hold()
        reservation = held.__enter__()
        self._held.setdefault(_caller(), []).append(held)
        return reservation

    def __exit__(self, *error: Any) -> bool | None:
        return self._last_held().__exit__(*error)

    def _last_held(self) -> AbstractContextManager[Reservation]:
        """By the caller; by anybody where an executor, perhaps, has let another thread begin it."""
        caller = _caller()
        if caller not in self._held:
            caller = list(self._held)[-1]
        own = self._held[caller]
        held = own.pop()
        if not own:
            del self._held[caller]
        return held


def _caller() -> object:
    """The thread, and the task of asyncio that it is about, if any."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), task


def hold_slot(
    tenant: str | int | UUID | None, queue: str, *, timeout: float = 0, priority: int = 0, key: str = ""
) -> SlotHolder:
    """Hold one of the tenant's slots on the queue while the block runs; it waits in the tenant's backlog for its turn.

    The database work is done by a thread with a connection of its own, so the block may be inside a transaction,
    or open one. As a decorator it holds a slot for each call.

    Args:
        tenant: its identifier; None or "" is no tenant, as for a job.
        queue: a queue of RQ_QUEUES. No worker needs to listen on it.
        timeout: seconds to wait; 0 takes a slot only if one is free and nobody waits before.
        priority: as of `using()`.
        key: as of `using()`.

    Raises:
        NoFreeSlot: the time is over, or somebody canceled the reservation while it waited.
        TenantQueueFull: no slot is free, and the backlog has its `max_waiting` jobs.
        HoldInTransaction: on SQLite, inside a transaction: only one connection at a time can write.
        ImproperReservation: it decorates a generator or a coroutine, or a call of what it decorates returns one, or
            what ``@contextmanager`` makes of one, or an awaitable.
        TenantSlotsError: a leaf that names what is wrong with the arguments.
    """
    return SlotHolder(partial(_held, tenant, queue, timeout, priority, key))


@contextmanager
def _held(
    tenant: str | int | UUID | None, queue: str, timeout: float, priority: int, key: str
) -> Iterator[Reservation]:
    """See `hold_slot`."""
    given = {"queue": queue, "timeout": timeout, "priority": priority, "key": key}
    require_options("hold_slot", given, OPTIONS)
    _require_second_connection()
    wanted = {"priority": priority, "key": name_text(key)}
    keeper = Keeper(tenants.checked_tenant("hold_slot", tenant), name_text(queue), timeout, wanted)
    outcome: dict[str, Any] = {"state": State.FINISHED}
    try:
        keeper.thread.start()
        reservation = keeper.answer()
        with _reporting(reservation.job) as reporter:
            try:
                yield reservation
            finally:
                outcome |= reporter.end() if reporter else {}
    except BaseException as error:
        outcome |= {"state": State.FAILED, "error": _last_line(error), "error_class": errors.class_of(error)}
        raise
    finally:
        keeper.end(outcome)


def _timeout_problem(value: object) -> str:
    return "" if is_number(value, 0, LONGEST_TIMEOUT) else f"give seconds, from 0 to {LONGEST_TIMEOUT}"


OPTIONS = {
    "queue": Option(name_problem),
    "timeout": Option(_timeout_problem),
    "priority": Option(priority_problem),
    "key": Option(key_problem),
}


def _require_run_by_call(function: Any) -> None:
    called = _called(function)
    for one in (called, type(called).__call__):  # an object's class may have what is called
        if inspect.isasyncgenfunction(one):
            raise _improper(function, f"it is {ASYNC_GENERATOR}")
        if inspect.isgeneratorfunction(one):
            raise _improper(function, f"it is {GENERATOR}")
        if iscoroutinefunction(one):
            raise _improper(function, f"it is {COROUTINE}")


def _refusing_what_runs_later(function: F) -> F:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, AsyncGenerator):  # has nothing to close before it was begun
            raise _improper(function, f"it returned {ASYNC_GENERATOR}")
        if isinstance(result, (Generator, Coroutine)):
            result.close()  # else Python warns that nobody has awaited it
            raise _improper(function, f"it returned {GENERATOR if isinstance(result, Generator) else COROUTINE}")
        if isinstance(result, (_GeneratorContextManager, _AsyncGeneratorContextManager)):
            raise _improper(function, f"it returned {CONTEXT_MANAGER}")
        if inspect.isawaitable(result):  # a future or a task of asyncio
            raise _improper(function, f"it returned {AWAITABLE}")
        return result

    return call  # type: ignore[return-value]  # is called as the function is


def _improper(function: Any, problem: str) -> ImproperReservation:
    called = _called(function)
    name = getattr(called, "__qualname__", type(called).__qualname__)
    return ImproperReservation(name=name, problem=f"{problem}, {TOO_LATE}")


def _called(function: Any) -> Any:
    """What a call comes to, behind partials and what a class makes of a function."""
    while isinstance(function, (partial, staticmethod, classmethod)):
        function = function.func if isinstance(function, partial) else function.__func__
    return function


def _require_second_connection() -> None:
    connection = connections[app_settings.DATABASE]
    if connection.vendor == "sqlite" and transactions.is_open(connection.alias):
        raise HoldInTransaction(database=app_settings.DATABASE)


def _reporting(job: TenantJob) -> AbstractContextManager[Reporter | None]:
    """A reservation inside a job is a part of the job, whose progress people watch."""
    return nullcontext() if progress.is_reporting() else progress.reporting(job)


def _last_line(error: BaseException) -> str:
    """Without the traceback: a view's may hold what its visitors sent."""
    return storable_error(errors.last_line(error))
