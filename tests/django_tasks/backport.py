"""Backends of others that are made of the backport, which goes with a Django that has Tasks of its own too."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django_tasks.backends.base import BaseTaskBackend
from django_tasks.backends.dummy import DummyBackend
from django_tasks.backends.immediate import ImmediateBackend
from django_tasks.base import TaskResult, TaskResultStatus
from django_tasks.signals import task_enqueued


class Foreign(BaseTaskBackend):
    """Would run calls elsewhere, and tells of them."""

    supports_async_task = True

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result: Any = TaskResult(
            task=task,
            id="17",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result


class OfRQ(Foreign):
    """As the backend of the package ``django-tasks-rq``."""


OfRQ.__module__ = "django_tasks_rq.backend"


class Immediate(ImmediateBackend):
    """Runs a call here and now."""


class Dummy(DummyBackend):
    """Runs none."""
