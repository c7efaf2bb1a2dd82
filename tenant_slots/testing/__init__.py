"""For the tests of projects: run what was enqueued in the test's own process, and look at what was.

No worker and no Redis take part. Each job takes a slot and gives it back as it does under a worker, so that limits,
pauses, rates and the order within a tenant hold; tenants have their turns one after the other. It works in a
`TestCase`, whose transaction never commits, and where commits are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from django.apps import apps
from django.db.models import Model

from tenant_slots.exceptions import JobsDoNotEnd
from tenant_slots.models import TenantJob
from tenant_slots.running.here import Turns, run_next
from tenant_slots.tasks import methods
from tenant_slots.tasks.registry import django_task_at
from tenant_slots.tasks.task import TenantTask
from tenant_slots.testing.asking import Asking
from tenant_slots.validation import name_text

WORKER = "tenant_slots.testing"
"""What a job that ran here has as its worker."""


class DjangoTask(Protocol):
    """One of Django's Tasks, also where there are none: type checkers then know nothing of their class."""

    @property
    def module_path(self) -> str: ...


def run_jobs(*, scheduled: bool = False, most: int = 1000) -> list[TenantJob]:
    """Run the waiting jobs, and those that they enqueue, until none may start.

    A job that finds no free slot does what its `on_busy` says, in a `TestCase` too.

    A job that fails raises nothing here: look at its `state` and `error`. Plain RQ jobs and reservations are left
    alone. No timeout ends a job.

    Args:
        scheduled: also what is scheduled for later, as if its time had come.
        most: runs altogether, retries counted.

    Returns:
        The jobs that ran, in the order of their first starts, as they are now.

    Raises:
        JobsDoNotEnd: so many have run, and there are more: one enqueues itself, perhaps.
    """
    ran: dict[int, None] = {}
    turns = Turns()

    def require_fewer(job: TenantJob) -> None:
        if turns.total() >= most:
            raise JobsDoNotEnd(most=most, task=job.task)

    asking = Asking()
    asking.ask_new_ones()
    while job := run_next(WORKER, turns, scheduled=scheduled, choosing=require_fewer):
        ran[job.pk] = None
        asking.ask_new_ones()
    rows = TenantJob.objects.select_related("tenant_queue").in_bulk(list(ran))
    return [rows[pk] for pk in ran if pk in rows]


def enqueued(*, task: Callable[..., Any] | DjangoTask | str | None = None, tenant: object = None) -> list[TenantJob]:
    """The jobs that were stored, in the order of their enqueueing, whatever has become of them.

    Args:
        task: only those of this decorated function or Task, or of this path; of an object's method, only that object's.
        tenant: only those of this tenant.

    Raises:
        TypeError: `task` is none of these.
    """
    jobs = TenantJob.objects.jobs().select_related("tenant_queue").order_by("pk")
    if task is not None:
        jobs = jobs.filter(task=_path(task), **_object_of(task))
    if tenant is not None:
        jobs = jobs.filter(tenant_queue__tenant=name_text(tenant))
    return list(jobs)


def assert_enqueued(task: Callable[..., Any] | DjangoTask, /, *args: Any, **kwargs: Any) -> TenantJob:
    """The last job of this function that was enqueued with these arguments; with any, if none are given.

    Whether an argument was passed by name or by position does not matter. A method of a class takes its object first.

    Raises:
        AssertionError: there is none. It says what was enqueued.
        TypeError: as `enqueued`.
    """
    if args and isinstance(args[0], Model) and _task(task).is_method and getattr(task, "__self__", None) is None:
        task, args = getattr(args[0], _task(task).function.__name__), args[1:]
    jobs = enqueued(task=task)
    for job in reversed(jobs):
        if not (args or kwargs) or _bound(_task(task), job.args, job.kwargs) == _bound(_task(task), args, kwargs):
            return job
    calls = ", ".join(f"{job.args} {job.kwargs}" for job in jobs) or "nothing"
    raise AssertionError(f"{_path(task)} was not enqueued with {list(args)} {kwargs}, but with: {calls}")


def _path(task: Any) -> str:
    return task if isinstance(task, str) else _task(task).path


def _task(function: Any) -> TenantTask[..., Any]:
    task = getattr(function, "tenant_task", None) or django_task_at(getattr(function, "module_path", ""))
    if task is None:
        raise TypeError(f"{function!r} is neither decorated with @tenant_job nor a Task whose backend is ours")
    return task


def _object_of(task: Any) -> dict[str, Any]:
    """Of a method of one object: what its jobs keep of it, also if they know it by a proxy model."""
    instance = getattr(task, "__self__", None)
    if instance is None:
        return {}
    own = methods.object_fields(_task(task), (instance,))
    concrete = instance._meta.concrete_model
    models = [model._meta.label_lower for model in apps.get_models() if model._meta.concrete_model is concrete]
    return {"object_pk": own["object_pk"], "object_model__in": models}


def _bound(task: TenantTask[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """By the names of the parameters, as JSON has them, which knows no tuples. A default need not be JSON."""
    bound = task.signature.bind(*((None, *args) if task.is_method else args), **kwargs)
    bound.apply_defaults()
    return {name: _as_json(value) for name, value in bound.arguments.items()}


def _as_json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return value
