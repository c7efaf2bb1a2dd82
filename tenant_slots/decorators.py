"""``@tenant_job`` and the callable that it returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

from django.utils.module_loading import import_string
from rq import Retry

from tenant_slots.arguments import json_problem
from tenant_slots.exceptions import ImproperJob, InvalidOption, UnknownJob
from tenant_slots.models import TenantJob

P = ParamSpec("P")
R = TypeVar("R")

HIGHEST_PRIORITY = 1_000_000
LONGEST_KEY: int = TenantJob._meta.get_field("key").max_length or 0

RQ_OPTIONS = ("timeout", "result_ttl", "failure_ttl", "description", "meta", "retry")

Call = tuple[Iterable[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class TenantTask(Generic[P, R]):
    """A decorated function with what is known about its jobs, and the ways to enqueue it."""

    function: Callable[P, R]
    queue: str
    tenant: str | Callable[..., object]
    options: Mapping[str, Any] = field(default_factory=dict)
    explicit_tenant: str | int | None = None
    priority: int = 0
    run_after: datetime | None = None
    key: str = ""

    @functools.cached_property
    def path(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

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
            key: a name within the tenant, such as a user's id.

        Raises:
            InvalidOption: a value has the wrong type.
        """
        changes: dict[str, Any] = {
            "priority": priority,
            "run_after": run_after,
            "queue": queue,
            "explicit_tenant": tenant,
            "key": key,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        self._check(given)
        return replace(self, **given)

    def _check(self, given: Mapping[str, Any]) -> None:
        for option, value in given.items():
            if problem := _override_problem(option, value):
                raise InvalidOption(option=option, value=value, task=self.path, problem=problem)


class TenantJobFunction(Protocol[P, R]):
    """What ``@tenant_job`` returns: the function itself, which RQ can still name, with ways to enqueue it."""

    tenant_task: TenantTask[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> TenantJob: ...
    def enqueue_many(self, calls: Iterable[Call]) -> list[TenantJob]: ...
    def using(
        self,
        *,
        priority: int | None = None,
        run_after: datetime | None = None,
        queue: str | None = None,
        tenant: str | int | None = None,
        key: str | None = None,
    ) -> TenantTask[P, R]: ...


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

    Raises:
        ImproperJob: the function cannot be a job, at import time.
    """
    given = locals()
    options = {name: given[name] for name in RQ_OPTIONS if given[name] is not None}

    def decorate(function: Callable[P, R]) -> TenantJobFunction[P, R]:
        _require_usable(function, queue, tenant)
        _require_options(function, options)
        task = TenantTask(function, queue, tenant, options)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            from tenant_slots import runner

            result: R = runner.call(task, args, kwargs)
            return result

        for name in ("enqueue", "delay", "enqueue_many", "using"):
            setattr(run, name, getattr(task, name))
        run.tenant_task = task  # type: ignore[attr-defined]
        registered[task.path] = task
        return cast("TenantJobFunction[P, R]", run)

    return decorate


def resolve(path: str) -> TenantTask[..., Any]:
    """The decorated function at a dotted path; never anything else, whatever a row or an RQ payload says.

    Raises:
        UnknownJob: there is no such decorated function.
    """
    if path not in registered:
        try:
            import_string(path)
        except ImportError as error:
            raise UnknownJob(task=path) from error
    if path not in registered:
        raise UnknownJob(task=path)
    return registered[path]


def _override_problem(option: str, value: Any) -> str:
    kinds: dict[str, type] = {"priority": int, "run_after": datetime, "queue": str, "key": str}
    if option in kinds and not _is_a(value, kinds[option]):
        return f"it must be of type {kinds[option].__name__}"
    if option == "run_after" and value.tzinfo is None:
        return "it has no time zone"
    if option == "priority" and abs(value) > HIGHEST_PRIORITY:
        return f"it must be from {-HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}"
    if option == "key" and (len(value) > LONGEST_KEY or "\0" in value):
        return f"it must be a text of at most {LONGEST_KEY} characters without NUL"
    return ""


def _is_a(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _require_usable(function: Any, queue: Any, tenant: Any) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise ImproperJob(name=name, problem="it is not a function; decorate a function of a module")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ImproperJob(name=name, problem="it is async; decorate a plain function")
    if inspect.isgeneratorfunction(function):
        raise ImproperJob(name=name, problem="it is a generator, which would never run; decorate a plain function")
    if "<" in function.__qualname__:
        raise ImproperJob(
            name=name, problem="a worker cannot import a lambda or a nested function; move it to its module"
        )
    if "." in function.__qualname__:
        raise ImproperJob(name=name, problem="it is a method; decorate a function of a module")
    if not isinstance(queue, str) or not queue:
        raise ImproperJob(name=name, problem=f"the queue is {queue!r}; give the name of a queue of RQ_QUEUES")
    _require_tenant_argument(function, name, tenant)


def _require_tenant_argument(function: Callable[..., Any], name: str, tenant: Any) -> None:
    if callable(tenant):
        return
    parameters = inspect.signature(function).parameters
    if tenant not in parameters:
        has = ", ".join(parameters) or "none"
        raise ImproperJob(name=name, problem=f"it has no argument {tenant!r} to take the tenant from (it has: {has})")
    if parameters[tenant].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise ImproperJob(name=name, problem=f"{tenant!r} collects several arguments; name a single one")


def _require_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    kinds: dict[str, type] = {
        "timeout": int,
        "result_ttl": int,
        "failure_ttl": int,
        "description": str,
        "meta": dict,
        "retry": Retry,
    }
    for option, value in options.items():
        problem = "" if _is_a(value, kinds[option]) else f"it must be of type {kinds[option].__name__}"
        if option == "timeout" and value == 0:
            problem = "give seconds, or -1 for no limit"
        if option == "meta":
            problem = problem or json_problem(value)
        if problem:
            raise InvalidOption(option=option, value=value, task=function.__qualname__, problem=problem)
