"""A Task as a `TenantTask`, so that a call of it becomes a job and is run like any other."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from rq import Retry

from tenant_slots.django_tasks import results
from tenant_slots.django_tasks.api import (
    DEFAULT_TASK_QUEUE_NAME,
    AnyTask,
    BaseTaskBackend,
    TaskContext,
    normalize_json,
)
from tenant_slots.django_tasks.found import task_at
from tenant_slots.django_tasks.task import FOR_RQ
from tenant_slots.django_tasks.tenant import Source, TenantOfCall, source_in
from tenant_slots.exceptions import ResultNotStorable
from tenant_slots.models import TenantJob
from tenant_slots.running.runner import result_problem
from tenant_slots.tasks import attempts
from tenant_slots.tasks.task import TaskCall, TenantTask


@dataclass(frozen=True)
class CalledTask(TenantTask[..., Any]):
    """The function of a Task. Its first argument is left out if that is the Task's context."""

    takes_context: bool = False
    backend: str = ""
    names_inner_queue: bool = False
    """As the decorator inside does: the queue alone does not tell that from a Task that names none."""

    @functools.cached_property
    def is_method(self) -> bool:
        return False

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        return _signature(self.function, self.takes_context)

    @functools.cached_property
    def stored_options(self) -> dict[str, Any]:
        named = [name for name in ("tenant", "key") if getattr(self, f"explicit_{name}") is not None]
        named += ["queue"] if self.names_inner_queue else []
        run_after = self.run_after.isoformat() if self.run_after else None
        mark = {"backend": self.backend, "named": named, "run_after": run_after}
        own = {name: value for name, value in mark.items() if value}
        return {**super().stored_options, attempts.MARK: own}

    def called_with(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> TaskCall:
        """As of `TenantTask`. No keyword of a call is the context, whatever others the function takes."""
        args = tuple(args)
        if self.takes_context:
            inspect.signature(self.function).bind(None, *args, **kwargs)
        return super().called_with(args, kwargs)

    def called_for(self, job: TenantJob) -> Callable[..., Any]:
        if not self.takes_context:
            return self.function
        context = TaskContext(task_result=results.result_of(results.as_stored(job)))
        return functools.partial(self.function, context)

    def result_of(self, call: Callable[[], Any]) -> Any:
        result = super().result_of(call)
        return _awaited(self.path, result) if isinstance(result, Coroutine) else _kept(self.path, result)


def called_task(task: AnyTask, backend: BaseTaskBackend) -> CalledTask:
    """What a call of this Task becomes a job of. Options of a ``@tenant_job`` inside it hold too."""
    inner: TenantTask[..., Any] | None = getattr(task.func, "tenant_task", None)
    values = {} if inner is None else {field.name: getattr(inner, field.name) for field in fields(TenantTask)}
    function = _function(task.func, inner)
    queue = _queue(task, inner)
    signature = _signature(function, task.takes_context)
    named = getattr(task, "tenant", None), getattr(inner, "tenant", None), _option_of(backend)
    sources = tuple(source for source in named if source is not None)
    values |= {
        "function": function,
        "queue": queue,
        "explicit_queue": inner is not None and queue != inner.queue,
        "tenant": TenantOfCall(task.module_path, task.backend, signature, sources),
        "rq_options": _rq_options(task, inner),
        "explicit_tenant": getattr(task, "explicit_tenant", None),
        "explicit_key": getattr(task, "explicit_key", None),
        "priority": task.priority,
        "run_after": task.run_after,
        "takes_context": task.takes_context,
        "backend": task.backend,
        "names_inner_queue": inner is not None and task.queue_name == inner.queue != DEFAULT_TASK_QUEUE_NAME,
    }
    if (key := getattr(task, "key", None)) is not None:
        values["key"] = key
    return CalledTask(**values)


def called_task_at(path: str) -> CalledTask | None:
    """For whoever runs a job."""
    task = task_at(path)
    return None if task is None else called_task(task, task.get_backend())


def as_json(value: Any) -> Any:
    """As Django makes it, without the end of Python's stack. Raises TypeError or ValueError: it is none."""
    try:
        return normalize_json(value)
    except RecursionError:
        raise TypeError("Unsupported value: it is nested too deeply, or holds itself") from None


def _option_of(backend: BaseTaskBackend) -> Source | None:
    """Another backend, which a Task may have in the code, means something else by its options."""
    is_ours = getattr(backend, "gives_slots", False) and isinstance(backend.options, Mapping)
    return source_in(backend.options.get("TENANT")) if is_ours else None


def _function(function: Callable[..., Any], inner: TenantTask[..., Any] | None) -> Callable[..., Any]:
    """What is called: the decorated one itself, unless another decorator stands between, which belongs to it."""
    wrapped: object = getattr(function, "__wrapped__", None)
    return inner.function if inner is not None and wrapped is inner.function else function


def _queue(task: AnyTask, inner: TenantTask[..., Any] | None) -> str:
    """A Task that names none has Django's default; a decorator inside it always names one."""
    return task.queue_name if inner is None or task.queue_name != DEFAULT_TASK_QUEUE_NAME else inner.queue


def _rq_options(task: AnyTask, inner: TenantTask[..., Any] | None) -> dict[str, Any]:
    own = {name: getattr(task, name) for name in FOR_RQ if hasattr(task, name)}
    options = {**(inner.rq_options if inner else {}), **own}
    return {name: value for name, value in options.items() if value is not None}


def _signature(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[takes_context:]
    return signature.replace(parameters=parameters)


async def _awaited(path: str, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return _kept(path, await coroutine)


def _kept(path: str, result: Any) -> Any:
    """As the row will have it.

    Raises:
        TypeError, ValueError: it is none that Django's Tasks can have.
        ResultNotStorable: it is too large, or a database cannot keep it.
    """
    if isinstance(result, Retry):
        return result
    plain = _with_texts_as_keys(as_json(result))
    if problem := result_problem(plain):
        raise ResultNotStorable(task=path, problem=problem)
    return plain


def _with_texts_as_keys(value: Any) -> Any:
    """As JSON writes the keys that Django leaves as they are, such as numbers."""
    if isinstance(value, dict):
        return {_as_text(key): _with_texts_as_keys(item) for key, item in value.items()}
    return [_with_texts_as_keys(item) for item in value] if isinstance(value, list) else value


def _as_text(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)
