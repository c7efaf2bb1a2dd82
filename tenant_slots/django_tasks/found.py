"""The way from a dotted path to the Task there."""

from __future__ import annotations

import sys
from typing import Any

from tenant_slots.django_tasks.api import AnyTask, Task
from tenant_slots.exceptions import UnknownJob
from tenant_slots.tasks.registry import import_module_of


def task_at(path: str) -> AnyTask | None:
    """Among the modules that are imported; never anything but a Task."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        if module is not None:
            found: Any = module
            for name in parts[length:]:
                found = getattr(found, name, None)
            return found if isinstance(found, Task) and found.module_path == path else None
    return None


def require_task(path: str) -> AnyTask:
    """Raises UnknownJob when there is none, or its module is gone."""
    import_module_of(path)
    if (task := task_at(path)) is None:
        raise UnknownJob(task=path)
    return task
