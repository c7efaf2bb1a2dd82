"""Tasks of functions that are decorated with ``@tenant_job``, and that another backend runs without a slot."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tenant_slots import logs
from tenant_slots.django_tasks.api import AnyTask, BaseTaskBackend
from tenant_slots.django_tasks.packages import imported
from tenant_slots.tasks.registry import registered

logger = logging.getLogger("tenant_slots")

AS_PLAIN_RQ = "django_tasks_rq."
"""A backend whose RQ jobs call the Task's function, which takes its slot then, as with any plain RQ job.

Unless they await it, in a thread of asgiref's: see ``running/plain_rq.py``.
"""


def connect() -> None:
    for task_enqueued in imported("signals", "task_enqueued"):
        task_enqueued.connect(warn, dispatch_uid="tenant_slots.foreign_tasks")


def warn(*, sender: Any, task_result: Any, **_: Any) -> None:
    """Receiver of Django's signal, and the backport's: what no system check has seen, as nobody had imported it."""
    function = task_result.task.func
    if getattr(function, "tenant_task", None) is not None and not _gives_slots(sender, function):
        path, uuid = task_result.task.module_path, task_result.id
        about_task = logs.about_named(task=path, job=uuid)
        logger.warning("%s, a call of %s, will run without a slot", uuid, path, extra=about_task)


def without_slots() -> Iterator[tuple[str, str]]:
    """The path of each such Task that is imported so far, and the alias of its backend."""
    named: list[AnyTask] = []
    for path, task in _tasks_of_ours():
        if task not in named and not _gives_slots(type(task.get_backend()), task.func):
            named.append(task)
            yield path, task.backend


def _tasks_of_ours() -> Iterator[tuple[str, AnyTask]]:
    """Wherever a module has them, those beside their function first: others may have imported them from there."""
    beside = {task.function.__module__ for task in registered.values()}
    kinds = imported("base", "Task")
    for module in sorted(sys.modules, key=lambda name: (name not in beside, name)):
        for name, value in list(_names_in(sys.modules.get(module)).items()):
            if issubclass(type(value), kinds) and getattr(value.func, "tenant_task", None) is not None:
                yield f"{module}.{name}", value


def _names_in(module: object) -> dict[str, Any]:
    """Without asking the module, which might be one that is loaded when it is asked. Nor is a lazy object asked."""
    return object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}


def _gives_slots(backend: type[BaseTaskBackend], function: Callable[..., Any]) -> bool:
    """Or runs nothing, or runs it here and now, as a plain call of the function would."""
    local = imported("backends.dummy", "DummyBackend") + imported("backends.immediate", "ImmediateBackend")
    is_called_by_rq = _is_of_plain_rq(backend) and not inspect.iscoroutinefunction(function)  # as Django asks
    return issubclass(backend, local) or getattr(backend, "gives_slots", False) or is_called_by_rq


def _is_of_plain_rq(backend: type[BaseTaskBackend]) -> bool:
    """Or a class of the project that is made of it."""
    return any(kind.__module__.startswith(AS_PLAIN_RQ) for kind in backend.__mro__)
