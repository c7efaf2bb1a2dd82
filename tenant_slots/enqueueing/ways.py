"""The ways to enqueue a task: what every callable that ``@tenant_job`` makes can do."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeVar
from uuid import UUID

from asgiref.sync import sync_to_async
from rq import Retry

from tenant_slots.enqueueing import enqueue
from tenant_slots.exceptions import InvalidCall
from tenant_slots.models import TenantJob
from tenant_slots.tasks.options import UNCHANGED, USING_OPTIONS, as_fields, require_fitting, require_options
from tenant_slots.tasks.registry import resolve
from tenant_slots.tasks.task import Arguments, Call, TenantTask

P = ParamSpec("P")
R = TypeVar("R")


CHANGED = (*(name for name, option in USING_OPTIONS.items() if not option.is_for_rq), "rq_options", "explicit_queue")
"""The fields of a task that `using` changes."""


def _is_call(given: object) -> bool:
    match given:
        case Call():
            return True
        case [args, Mapping() as kwargs]:
            is_positional = isinstance(args, Iterable) and not isinstance(args, str)
            return is_positional and all(isinstance(name, str) for name in kwargs)
    return False


class WaysToEnqueue(Generic[P, R]):
    """A task, to be enqueued with its arguments."""

    NAMES = ("enqueue", "delay", "enqueue_many", "call", "using", "aenqueue", "aenqueue_many")

    def __init__(self, task: TenantTask[..., R]) -> None:
        self.tenant_task = task

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TenantJob:
        """Store a job and admit it as soon as its tenant has a free slot.

        Inside a transaction the job is admitted when that commits; a rollback leaves no job.

        Raises:
            TenantSlotsError: a leaf that names what is wrong; nothing was stored.
            TypeError: the arguments do not fit the function.
        """
        return self.enqueue_many([(args, kwargs)])[0]

    delay = enqueue

    def enqueue_many(self, calls: Iterable[Call[P] | Arguments]) -> list[TenantJob]:
        """Store many jobs, all or none. `calls` are made by `call`, or pairs of positional and keyword arguments.

        Raises:
            InvalidCall: one of them is neither.
            TenantSlotsError: as `enqueue`; nothing was stored.
        """
        return enqueue.enqueue_many(self.tenant_task, itertools.starmap(self._arguments, enumerate(calls)))

    def _arguments(self, number: int, call: Any) -> Arguments:
        """Of a call, whose own values are in no error: they may be secrets."""
        if not _is_call(call):
            raise InvalidCall(number=number, task=self.tenant_task.path, kind=type(call).__name__)
        args, kwargs = call
        return self._all_args(args), kwargs

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """One call for `enqueue_many`, whose arguments type checkers know."""
        return Call(*args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> TenantJob:
        """`enqueue` for async code."""
        return await sync_to_async(partial(self.enqueue, *args, **kwargs))()  # whose parameters have names

    async def aenqueue_many(self, calls: Iterable[Call[P] | Arguments]) -> list[TenantJob]:
        """`enqueue_many` for async code."""
        return await sync_to_async(self.enqueue_many)(calls)

    def using(
        self,
        *,
        priority: int | None = None,
        run_after: datetime | None = None,
        queue: str | None = None,
        tenant: str | int | UUID | None = None,
        key: str | None = None,
        after: Iterable[TenantJob] | None = None,
        after_any: bool | None = None,
        timeout: int | None = UNCHANGED,
        meta: dict[str, Any] | None = UNCHANGED,
        retry: Retry | None = UNCHANGED,
        expires: timedelta | None = UNCHANGED,
        debounce: timedelta | None = UNCHANGED,
        max_wait: timedelta | None = UNCHANGED,
    ) -> Self:
        """The same function with other settings for the jobs that are enqueued through the result.

        Args:
            priority: a higher one goes first in its tenant's backlog; 0 is the default.
            run_after: an aware time before which the job does not start.
            queue: another queue of RQ_QUEUES, with that queue's slots.
            tenant: the tenant, instead of what the decorator derives.
            key: the concurrency key, such as a user's id, instead of what the decorator derives.
            after: jobs that have to finish before this one starts; if one fails or is canceled, so is this one.
            after_any: however they end, this one runs when they have.
            timeout, meta, retry, expires, debounce, max_wait: as of ``@tenant_job``, instead of what stands there;
                None for what holds where nothing does. `debounce` takes `max_wait` along.

        Raises:
            InvalidOption: a value has the wrong type, or does not go together with another one.
        """
        changes: dict[str, Any] = {
            "priority": priority,
            "run_after": run_after,
            "queue": queue,
            "explicit_tenant": tenant,
            "explicit_key": key,
            "after": list(after) if isinstance(after, Iterable) else after,
            "after_any": after_any,
        }
        of_decorator: dict[str, Any] = {
            "timeout": timeout,
            "meta": meta,
            "retry": retry,
            "expires": expires,
            "debounce": debounce,
            "max_wait": max_wait,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        given |= {name: value for name, value in of_decorator.items() if value is not UNCHANGED}
        if debounce is None:
            given.setdefault("max_wait", None)
        task = self.tenant_task
        values = {name: value for name, value in given.items() if value is not None}
        require_options(task.path, values, USING_OPTIONS)
        if "after" in given:
            given["after"] = tuple(dict.fromkeys(job.pk for job in given["after"]))
        fields = as_fields(given, USING_OPTIONS, task.rq_options)
        changed = replace(task, **fields, explicit_queue=task.explicit_queue or queue is not None)
        require_fitting(changed)
        return self._with(changed)

    def __reduce__(self) -> Any:
        """By the name of the function, with what ``using()`` has changed: RQ pickles the object of a method.

        So a bound `enqueue` can be given to plain RQ, to be called by a worker, and to its cron.
        """
        task = self.tenant_task
        known = resolve(task.path)
        changes = {name: getattr(task, name) for name in CHANGED if getattr(task, name) != getattr(known, name)}
        return _by_name, (type(self), task.path, changes)

    def _with(self, task: TenantTask[..., R]) -> Self:
        return type(self)(task)

    def _all_args(self, args: Iterable[Any]) -> Iterable[Any]:
        """The function's positional arguments."""
        return args


def _by_name(kind: type[WaysToEnqueue[..., Any]], path: str, changes: dict[str, Any]) -> WaysToEnqueue[..., Any]:
    """Raises UnknownJob when there is no such decorated function."""
    task = resolve(path)
    return kind(replace(task, **changes) if changes else task)
