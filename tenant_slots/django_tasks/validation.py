"""What a Task must be, besides what Django asks, so that its calls can be jobs."""

from __future__ import annotations

import inspect
from dataclasses import replace

from tenant_slots import tenants
from tenant_slots.decorators import problem_of as problem_of_function
from tenant_slots.django_tasks.api import AnyTask
from tenant_slots.exceptions import ImproperJob, InvalidOption
from tenant_slots.tasks.options import (
    DECORATOR_OPTIONS,
    USING_OPTIONS,
    Option,
    require_argument,
    require_fitting,
    require_options,
)

OPTIONS: dict[str, Option] = {name: DECORATOR_OPTIONS[name] for name in ("key", "timeout", "retry")}
OPTIONS["explicit_key"] = USING_OPTIONS["explicit_key"]
"""By the name of the field of our Task class."""


def problem_of(task: AnyTask) -> str:
    """Why there can be no such Task; empty when there can. Raises InvalidTenant."""
    if problem := problem_of_function(task.func):
        return f"{task.module_path} cannot be a Task: {problem}."
    given = {name: value for name in OPTIONS if (value := getattr(task, name, None)) is not None}
    try:
        require_options(task.module_path, given, OPTIONS)
        for name in ("tenant", "key"):
            _require_source(task, name)
        if inner := getattr(task.func, "tenant_task", None):
            require_fitting(replace(inner, run_after=task.run_after))
    except (InvalidOption, ImproperJob) as error:
        return str(error)
    if tenant := getattr(task, "explicit_tenant", None):
        tenants.require_tenant(tenant)
    return ""


def _require_source(task: AnyTask, name: str) -> None:
    source = getattr(task, name, None)
    if source is not None and not callable(source):
        require_argument(inspect.unwrap(task.func), name, source)
