"""The Tasks that the suite for backends enqueues. Import it where ``TASKS`` is set up."""

from __future__ import annotations

from typing import Any

from tenant_slots.django_tasks.api import task


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return {"args": list(args), "kwargs": kwargs}


@task
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
