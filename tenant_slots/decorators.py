"""``@tenant_job`` and the callable that it returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.db.models import Model
from django.utils.module_loading import import_string
from rq import Retry

from tenant_slots.busy import WAIT, OnBusy
from tenant_slots.exceptions import ImproperJob, UnknownJob
from tenant_slots.methods import WAYS_TO_ENQUEUE, BoundTenantJob, TenantJobMethod
from tenant_slots.models import TenantJob
from tenant_slots.options import OWN_OPTIONS, RQ_OPTIONS, require_argument, require_options, require_overrides
from tenant_slots.throttling import Throttle

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
M = TypeVar("M", bound=Model)

Call = tuple[Iterable[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class TenantTask(Generic[P, R]):
    """A decorated function with what is known about its jobs, and the ways to enqueue it."""

    function: Callable[P, R]
    queue: str
    tenant: str | Callable[..., object]
    options: Mapping[str, Any] = field(default_factory=dict)
    on_busy: OnBusy = WAIT
    throttle: Sequence[Throttle] = ()
    unique_for: timedelta | None = None
    unique_key: Callable[..., object] | None = None
    key: str | Callable[..., object] | None = None
    explicit_tenant: str | int | None = None
    explicit_key: str | None = None
    explicit_queue: bool = False
    """The caller chose the queue; no throttle moves the job from there."""
    priority: int = 0
    run_after: datetime | None = None

    @functools.cached_property
    def path(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @functools.cached_property
    def is_method(self) -> bool:
        """Whether the function's first argument is an object of a model, which the row keeps apart."""
        return "." in self.function.__qualname__

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @functools.cached_property
    def stored_options(self) -> dict[str, Any]:
        """The options as a row keeps them, so that whoever pushes the job need not import its code."""
        options = dict(self.options)
        if retry := options.get("retry"):
            options["retry"] = {"max": retry.max, "intervals": retry.intervals}
        return options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob:
        """Store a job and admit it as soon as its tenant has a free slot.

        Inside a transaction the job is admitted when that commits; a rollback leaves no job.

        Raises:
            TenantSlotsError: a leaf that names what is wrong; nothing was stored.
            TypeError: the arguments do not fit the function.
        """
        return self.enqueue_many([(args, kwargs)])[0]

    delay = enqueue

    def enqueue_many(self, calls: Iterable[Call]) -> list[TenantJob]:
        """Store many jobs, all or none. `calls` are pairs of positional and keyword arguments.

        Raises:
            TenantSlotsError: as `enqueue`; nothing was stored.
        """
        from tenant_slots import line

        return line.enqueue_many(self, calls)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob:
        """`enqueue` for async code."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    async def aenqueue_many(self, calls: Iterable[Call]) -> list[TenantJob]:
        """`enqueue_many` for async code."""
        return await sync_to_async(self.enqueue_many)(calls)

    def using(
        self,
        *,
        priority: int | None = None,
        run_after: datetime | None = None,
        queue: str | None = None,
        tenant: str | int | None = None,
        key: str | None = None,
    ) -> TenantTask[P, R]:
        """The same function with other settings for the jobs that are enqueued through the result.

        Args:
            priority: a higher one goes first in its tenant's line; 0 is the default.
            run_after: an aware time before which the job does not start.
            queue: another queue of RQ_QUEUES, with that queue's slots.
            tenant: the tenant, instead of what the decorator derives.
            key: a name within the tenant, such as a user's id, instead of what the decorator derives.

        Raises:
            InvalidOption: a value has the wrong type.
        """
        changes: dict[str, Any] = {
            "priority": priority,
            "run_after": run_after,
            "queue": queue,
            "explicit_tenant": tenant,
            "explicit_key": key,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        require_overrides(self.path, given)
        return replace(self, **given, explicit_queue=self.explicit_queue or queue is not None)


class TenantJobFunction(Protocol[P, R]):
    """What ``@tenant_job`` returns: the function itself, which RQ can still name, with ways to enqueue it."""

    tenant_task: TenantTask[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob: ...
    def enqueue_many(self, calls: Iterable[Call]) -> list[TenantJob]: ...
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob: ...
    async def aenqueue_many(self, calls: Iterable[Call]) -> list[TenantJob]: ...
    def using(
        self,
        *,
        priority: int | None = None,
        run_after: datetime | None = None,
        queue: str | None = None,
        tenant: str | int | None = None,
        key: str | None = None,
    ) -> TenantTask[P, R]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> TenantJobFunction[P, R]: ...
    @overload
    def __get__(
        self: TenantJobFunction[Concatenate[M, Q], R], instance: M, owner: type | None = None
    ) -> BoundTenantJob[Q, R]: ...


registered: dict[str, TenantTask[..., Any]] = {}
"""Every decorated function of this process by its dotted path."""


def tenant_job(
    queue: str,
    *,
    tenant: str | Callable[..., object],
    timeout: int | None = None,
    result_ttl: int | None = None,
    failure_ttl: int | None = None,
    description: str | None = None,
    meta: dict[str, Any] | None = None,
    retry: Retry | None = None,
    on_busy: OnBusy | None = None,
    throttle: Sequence[Throttle] | None = None,
    unique_for: timedelta | None = None,
    unique_key: Callable[..., object] | None = None,
    key: str | Callable[..., object] | None = None,
) -> Callable[[Callable[P, R]], TenantJobFunction[P, R]]:
    """Give the jobs of a function one tenant's slots on one queue.

    Args:
        queue: the queue of RQ_QUEUES whose slots the jobs take.
        tenant: the name of the function's argument that is the tenant, or a callable that is given the call's
            arguments and returns the tenant as str or int; None or "" means that the job has no tenant.
        timeout: seconds that a run may take, -1 for ever; RQ's default is the queue's, else 180.
        result_ttl: seconds that Redis keeps RQ's copy of the result.
        failure_ttl: seconds that Redis keeps RQ's record of a failed run.
        description: shown by RQ instead of "task for tenant"; RQ logs it, so put no secret there.
        meta: RQ's meta for every run.
        retry: how often and after how many seconds a job that raised runs again.
        on_busy: what a job does that finds no free slot: ``"wait"`` in line (the default), ``"discard"`` (it is
            canceled), a `Reschedule`, or a callable that gets the job and its tenant queue and returns one of these.
        throttle: rules by which a tenant's jobs go to slower RQ queues; of several that apply, the last one.
        unique_for: for how long after a job was enqueued an identical one (function, tenant, arguments) is not stored
            a second time while the first has not ended.
        unique_key: a callable that is given the call's arguments and returns what makes two jobs identical, as text.
        key: the name of the function's argument that is the key, or a callable that is given the call's arguments:
            who within the tenant a job is for, see `TenantQueue.max_job_per_key`.

    Raises:
        ImproperJob: the function cannot be a job, at import time.
        InvalidOption: an option has the wrong type or range, at import time.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    rq_options = {name: given[name] for name in RQ_OPTIONS if name in given}
    own_options = {name: given[name] for name in OWN_OPTIONS if name in given}

    def decorate(function: Callable[P, R]) -> TenantJobFunction[P, R]:
        _require_usable(function, queue, tenant)
        require_options(function.__qualname__, {**rq_options, **own_options})
        if isinstance(key, str):
            require_argument(function, "key", key)
        task = TenantTask(function, queue, tenant, rq_options, **own_options)
        registered[task.path] = task
        return cast("TenantJobFunction[P, R]", TenantJobMethod(task) if task.is_method else _wrapper(task))

    return decorate


def _wrapper(task: TenantTask[P, R]) -> Callable[P, R]:
    """The function itself, which asks for a slot when plain RQ calls it."""

    @functools.wraps(task.function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from tenant_slots import runner

        result: R = runner.call(task, args, kwargs)
        return result

    for name in WAYS_TO_ENQUEUE:
        setattr(run, name, getattr(task, name))
    run.tenant_task = task  # type: ignore[attr-defined]
    if iscoroutinefunction(task.function):
        markcoroutinefunction(run)
    return run


def resolve(path: str) -> TenantTask[..., Any]:
    """The decorated function at a dotted path; never anything else, whatever a row or an RQ payload says.

    Raises:
        UnknownJob: there is no such decorated function.
    """
    if path not in registered:
        try:
            _import(path)
        except ImportError as error:
            raise UnknownJob(task=path) from error
    if path not in registered:
        raise UnknownJob(task=path)
    return registered[path]


def _import(path: str) -> None:
    try:
        import_string(path)
    except ImportError:
        import_string(path.rpartition(".")[0])  # of a method, which is registered when its class is made


def _require_usable(function: Any, queue: Any, tenant: Any) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise ImproperJob(name=name, problem="it is not a function; decorate a function of a module")
    if inspect.isasyncgenfunction(function):
        raise ImproperJob(name=name, problem="it is an async generator, which would never run; decorate a coroutine")
    if inspect.isgeneratorfunction(function):
        raise ImproperJob(name=name, problem="it is a generator, which would never run; decorate a plain function")
    if "<" in function.__qualname__:
        raise ImproperJob(
            name=name, problem="a worker cannot import a lambda or a nested function; move it to its module"
        )
    if not isinstance(queue, str) or not queue:
        raise ImproperJob(name=name, problem=f"the queue is {queue!r}; give the name of a queue of RQ_QUEUES")
    if not callable(tenant):
        require_argument(function, "tenant", tenant)
