"""What a Task must be, besides what Django asks, so that its calls can be jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from math import isnan
from typing import Any, cast

from tenant_slots import tenants
from tenant_slots.decorators import problem_of as problem_of_function
from tenant_slots.django_tasks.api import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY, AnyTask
from tenant_slots.django_tasks.found import task_at
from tenant_slots.exceptions import ImproperJob, InvalidOption
from tenant_slots.tasks.options import (
    DECORATOR_OPTIONS,
    USING_OPTIONS,
    Option,
    require_argument,
    require_fitting,
    require_options,
)
from tenant_slots.tasks.registry import place_problem
from tenant_slots.validation import time_problem, type_problem

OPTIONS: dict[str, Option] = {name: DECORATOR_OPTIONS[name] for name in ("key", "timeout", "retry")}
OPTIONS["explicit_key"] = USING_OPTIONS["explicit_key"]
"""By the name of the field of our Task class."""


def _priority_problem(value: object) -> str:
    """Django says itself what is out of range, and takes 1.0 for 1."""
    is_any = issubclass(type(value), int | float) and not isnan(cast(float, value))
    return "" if is_any else f"give a whole number from {TASK_MIN_PRIORITY} to {TASK_MAX_PRIORITY}"


def _run_after_problem(value: object) -> str:
    if value is None:
        return ""
    if type_problem(value, datetime):
        return "give a datetime, such as timezone.now() + timedelta(hours=1)"
    is_aware = cast(datetime, value).utcoffset() is not None  # Django says itself whether it must be
    return time_problem(value, aware=is_aware)


DJANGOS: dict[str, Callable[[Any], str]] = {
    "priority": _priority_problem,
    "queue_name": USING_OPTIONS["queue"].problem,
    "run_after": _run_after_problem,
}
"""Django's own, which it compares and asks for more without a look at what they are."""


def problem_of_values(task: AnyTask) -> str:
    """Why Django cannot check what it knows of a Task; empty when it can."""
    for name, problem_of_value in DJANGOS.items():
        value = getattr(task, name)
        if problem := problem_of_value(value):
            return f"{name}={value!r} is not possible for a Task: {problem}."
    return ""


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
    if (tenant := getattr(task, "explicit_tenant", None)) not in (None, tenants.NO_TENANT):
        tenants.require_tenant(tenant)
    return ""


def problem_of_place(task: AnyTask) -> str:
    """Why no worker would find the Task by its path, which is its function's; empty when it would."""
    if problem := place_problem(task.module_path):
        return f"{task.module_path} cannot be enqueued: {problem}."
    if task_at(task.module_path) is None:
        return f"{task.module_path} is no Task in its module: give the Task the name of its function there."
    return ""


def _require_source(task: AnyTask, name: str) -> None:
    """Of its own, and of a ``@tenant_job`` inside it, which does not know that the first argument is the context."""
    for own in (task, getattr(task.func, "tenant_task", None)):
        source = getattr(own, name, None)
        if source is not None and not callable(source):
            require_argument(inspect.unwrap(task.func), name, source, but_first=task.takes_context)
