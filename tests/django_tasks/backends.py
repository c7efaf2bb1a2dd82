"""Backends of others, in ``TASKS`` of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.backends.immediate import ImmediateBackend
else:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.backends.immediate import ImmediateBackend


class Immediate(ImmediateBackend):
    """Runs a call here and now."""


class Foreign(BaseTaskBackend):
    """Would run calls elsewhere."""

    supports_async_task = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError
