"""Backends of others, in ``TASKS`` of tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.backends.immediate import ImmediateBackend
    from django.tasks.base import Task
else:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.backends.immediate import ImmediateBackend
    from django_tasks.base import Task


class Immediate(ImmediateBackend):
    """Runs a call here and now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTask(Task):  # type: ignore[type-arg]
    """Of a class of its own."""


class Sync(Immediate):
    """Runs no coroutines, and says so."""

    supports_async_task = False
    task_class = SyncTask


class Foreign(BaseTaskBackend):
    """Would run calls elsewhere."""

    supports_async_task = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError
