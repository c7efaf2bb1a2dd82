"""The Tasks that the suite for backends enqueues. Import it where ``TASKS`` is set up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tenant_slots.django_tasks.api import task, task_backends


def task_if_supported(coroutine: Callable[..., Any], **options: Any) -> Any:
    """Or the function as it is: a backend that runs no coroutines refuses it here, with all that comes after."""
    return task(**options)(coroutine) if task_backends["default"].supports_async_task else coroutine


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return {"args": list(args), "kwargs": kwargs}


noted: list[int] = []
"""What `note` was called with in this process."""


@task
def note(number: int) -> None:
    noted.append(number)


@task_if_supported
async def echo_async(*args: Any, **kwargs: Any) -> Any:
    return {"args": list(args), "kwargs": kwargs}


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task
def leave() -> None:
    raise SystemExit("enough")


@task
def give_a_set() -> Any:
    return {1, 2}


@task(takes_context=True)
def tell_context(context: Any, more: str) -> Any:
    result = context.task_result
    return {"id": result.id, "attempt": context.attempt, "status": str(result.status), "more": more}


@partial(task_if_supported, takes_context=True)
async def tell_context_async(context: Any, more: str) -> Any:
    return tell_context.func(context, more)
