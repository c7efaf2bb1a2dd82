"""``@tenant_job`` and the callables that it returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, Self, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.db.models import Model
from rq import Retry

from tenant_slots.enqueueing.ways import WaysToEnqueue
from tenant_slots.exceptions import ImproperJob, MethodNotPicklable
from tenant_slots.models import TenantJob
from tenant_slots.running import plain_rq
from tenant_slots.tasks.inner import with_options_inside
from tenant_slots.tasks.methods import models_of
from tenant_slots.tasks.on_busy import OnBusy
from tenant_slots.tasks.options import DECORATOR_OPTIONS, as_fields, require_argument, require_fitting, require_options
from tenant_slots.tasks.registry import registered
from tenant_slots.tasks.task import TenantTask
from tenant_slots.tasks.throttle import Throttle

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
M = TypeVar("M", bound=Model)

LONGEST_PATH: int = TenantJob._meta.get_field("task").max_length or 0


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
    unique_until: Literal["start", "end"] | None = None,
    debounce: timedelta | None = None,
    max_wait: timedelta | None = None,
    key: str | Callable[..., object] | None = None,
    expires: timedelta | None = None,
    retry_for: type[BaseException] | tuple[type[BaseException], ...] | None = None,
    on_success: Callable[[TenantJob, Any], object] | None = None,
    on_failure: Callable[[TenantJob, BaseException], object] | None = None,
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
        on_busy: what a job does that finds no free slot: ``"wait"`` (the default), ``"discard"`` (it is
            canceled), a `Reschedule`, or a callable that gets the job and its tenant queue and returns one of these.
        throttle: rules by which a tenant's jobs go to overflow queues; of several that apply, the last one.
        unique_for: for how long after a job was enqueued an identical one (function, tenant, arguments) is not stored
            a second time while the first has not ended.
        unique_key: a callable that is given the call's arguments and returns what makes two jobs identical, as text.
        unique_until: ``"end"`` (the default), or ``"start"``: a job that has started has no duplicates, so that one is
            stored for what changes while it runs.
        debounce: a job starts so long after the newest call of its tenant, or of its `unique_key`, and with what that
            one has given; earlier calls whose job has not started get the same job.
        max_wait: how long after the first of these calls it may start at the latest.
        key: the concurrency key: the name of the function's argument that is the key, or a callable that is given the
            call's arguments: who within the tenant a job is for, see `TenantQueue.max_job_per_key`.
        expires: how long after it was enqueued a job that has not begun is canceled.
        retry_for: the errors after which `retry` holds; after any other one the job fails at once.
        on_success: called with the job and its result once the function has returned, in the job's process. The outcome
            stands by then: what it raises is logged.
        on_failure: so too, with the job and the error that it has failed with; not after an attempt that is to be
            followed by another one, and not for a job whose process died, of which the signal `job_ended` tells.

    Options of ``@django_rq.job`` inside it are taken over.

    Raises:
        ImproperJob: the function cannot be a job, or those options cannot be its own, at import time.
        InvalidOption: an option has the wrong type or range, at import time.
    """
    given = {name: value for name, value in locals().items() if name in DECORATOR_OPTIONS and value is not None}

    def decorate(function: Callable[P, R]) -> TenantJobFunction[P, R]:
        _require_usable(function, queue, tenant)
        options = with_options_inside(function, queue, given)
        require_options(function.__qualname__, options, DECORATOR_OPTIONS)
        if isinstance(key, str):
            require_argument(function, "key", key)
        task = TenantTask(function, queue, tenant, **as_fields(options, DECORATOR_OPTIONS, {}))
        require_fitting(task)
        registered[task.path] = task
        return cast("TenantJobFunction[P, R]", TenantJobMethod(task) if task.is_method else _wrapper(task))

    return decorate


class TenantJobFunction(WaysToEnqueue[P, R]):
    """A decorated function with the ways to enqueue it. Called, it runs here and now.

    What ``@tenant_job`` returns looks like this to type checkers; it is a function, as RQ must be able to name it.
    """

    tenant_task: TenantTask[P, R]

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.tenant_task.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> TenantJobFunction[P, R]: ...
    @overload
    def __get__(
        self: TenantJobFunction[Concatenate[M, Q], R], instance: M, owner: type | None = None
    ) -> BoundTenantJob[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Only for type checkers, which see a decorated method as this: at run time it is a `TenantJobMethod`."""
        return self


class TenantJobMethod(WaysToEnqueue[P, R]):
    """The attribute of the model's class. Called, or enqueued, through the class it takes the object first."""

    tenant_task: TenantTask[P, R]

    def __init__(self, task: TenantTask[..., R]) -> None:
        _look_like(task.function, self)
        super().__init__(task)

    def contribute_to_class(self, model: type[Model], name: str) -> None:
        """Called by Django while it makes the class of a model."""
        models_of[self.tenant_task.path] = model
        setattr(model, name, self)

    def __set_name__(self, owner: type, name: str) -> NoReturn:
        """Called by Python while it makes any other class."""
        raise ImproperJob(
            name=self.tenant_task.function.__qualname__,
            problem=f"{owner.__name__} is not a Django model, so a worker could not fetch the object; "
            "decorate a function of a module, or make the class an abstract model",
        )

    def __get__(self, instance: Model | None, owner: type | None = None) -> Any:
        return self if instance is None else BoundTenantJob(self.tenant_task, instance)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = plain_rq.call(self.tenant_task, args, kwargs)
        return result

    def __reduce__(self) -> NoReturn:
        raise MethodNotPicklable(task=self.tenant_task.path)


class BoundTenantJob(WaysToEnqueue[P, R]):
    """A decorated method of one object. Called it runs here and now; it is enqueued for that object.

    To enqueue raises InvalidObject too: the object is not saved, or its key cannot be kept.
    """

    def __init__(self, task: TenantTask[..., R], instance: Any) -> None:
        _look_like(task.function, self)
        super().__init__(task)
        self.__self__ = instance

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.tenant_task.function(self.__self__, *args, **kwargs)

    def __reduce__(self) -> NoReturn:
        raise MethodNotPicklable(task=self.tenant_task.path)

    def _with(self, task: TenantTask[..., R]) -> Self:
        return type(self)(task, self.__self__)

    def _all_args(self, args: Iterable[Any]) -> Iterable[Any]:
        return (self.__self__, *args)


def _wrapper(task: TenantTask[P, R]) -> Callable[P, R]:
    """The function itself, which asks for a slot when plain RQ calls it."""

    @functools.wraps(task.function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = plain_rq.call(task, args, kwargs)
        return result

    ways: TenantJobFunction[P, R] = TenantJobFunction(task)
    for name in WaysToEnqueue.NAMES:
        setattr(run, name, getattr(ways, name))
    run.tenant_task = task  # type: ignore[attr-defined]
    if iscoroutinefunction(task.function):
        markcoroutinefunction(run)
    return run


def _look_like(function: Any, wrapper: Any) -> None:
    functools.update_wrapper(wrapper, function)
    for name in WaysToEnqueue.NAMES:  # another decorator's, such as the delay of django_rq.job
        vars(wrapper).pop(name, None)
    if iscoroutinefunction(function):
        markcoroutinefunction(wrapper)


def _require_usable(function: Any, queue: Any, tenant: Any) -> None:
    name = getattr(function, "__qualname__", repr(function))
    if problem := problem_of(function):
        raise ImproperJob(name=name, problem=problem)
    if not isinstance(queue, str) or not queue:
        raise ImproperJob(name=name, problem=f"the queue is {queue!r}; give the name of a queue of RQ_QUEUES")
    if not callable(tenant):
        require_argument(function, "tenant", tenant)


def problem_of(function: Any) -> str:
    """Why a function cannot be a job; empty when it can."""
    if not inspect.isfunction(function):
        return "it is not a function; decorate a function of a module"
    if inspect.isasyncgenfunction(function):
        return "it is an async generator, which would never run; decorate a coroutine"
    if inspect.isgeneratorfunction(function):
        return "it is a generator, which would never run; decorate a plain function"
    if "<" in function.__qualname__:
        return "a worker cannot import a lambda or a nested function; move it to its module"
    path = f"{function.__module__}.{function.__qualname__}"
    return f"its path has {len(path)} characters, at most {LONGEST_PATH} fit" if len(path) > LONGEST_PATH else ""
