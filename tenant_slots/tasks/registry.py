"""Every decorated function that this process has imported, and the way from a dotted path to one of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tenant_slots.conf import app_settings
from tenant_slots.exceptions import UnknownJob
from tenant_slots.models import TenantJob
from tenant_slots.tasks import attempts
from tenant_slots.tasks.task import TenantTask

OF_PROGRAMS = ("__main__.", "None.", "django.core.management.commands.shell.")
"""How the paths of functions begin that a script, a shell or a notebook has defined. Django's plain shell has no
module, unless it is given what to run.
"""

registered: dict[str, TenantTask[..., Any]] = {}
"""By dotted path."""

ways_to_django_tasks: set[Callable[[str], TenantTask[..., Any] | None]] = set()
"""What finds one of Django's Tasks by its dotted path, once its module is imported: see ``django_tasks/``."""


def task_of(job: TenantJob) -> TenantTask[..., Any]:
    """What a job calls: the decorated function of that path, or Django's Task, if the job is a call of one.

    Raises:
        UnknownJob: as `resolve`.
    """
    if not attempts.is_call(job):
        return resolve(job.task)
    import_module_of(job.task)
    if (task := known_task_of(job)) is None:
        raise UnknownJob(task=job.task)
    return task


def known_task_of(job: TenantJob) -> TenantTask[..., Any] | None:
    """As `task_of`, among what this process has imported so far; None if it is not there."""
    if not attempts.is_call(job):
        return registered.get(job.task)
    return django_task_at(job.task)


def django_task_at(path: str) -> TenantTask[..., Any] | None:
    """One of Django's Tasks, among what this process has imported so far; None if there is none."""
    return next(filter(None, (find(path) for find in ways_to_django_tasks)), None)


def resolve(path: str) -> TenantTask[..., Any]:
    """The decorated function at a dotted path; never anything else, whatever a row or an RQ payload says.

    What a module raises that is there and cannot be loaded is raised as it is: that is no unknown function, but a
    mistake in its code.

    Raises:
        UnknownJob: there is no such decorated function, or no such module.
    """
    if path not in registered:
        import_module_of(path)
    if path not in registered:
        raise UnknownJob(task=path)
    return registered[path]


def place_problem(path: str) -> str:
    """Why no worker would find what is at a dotted path; empty where one may. Immediate mode needs none."""
    if not path.startswith(OF_PROGRAMS) or app_settings.IMMEDIATE:
        return ""
    return "it is in the program that runs here, of which a worker runs another one; move it to a module of the project"


def import_module_of(path: str) -> None:
    """The longest part of the path that is a module: a method is registered when its class is made."""
    is_path = all(part.isidentifier() for part in path.split("."))
    module = path.rpartition(".")[0] if is_path else ""
    while module:
        try:
            import_module(module)
            return
        except ModuleNotFoundError as error:
            if not _is_missing(module, error):
                raise
        module = module.rpartition(".")[0]


def _is_missing(module: str, error: ModuleNotFoundError) -> bool:
    """Whether it is this module, or a package around it, that is not there, and not one that it imports."""
    return bool(error.name) and f"{module}.".startswith(f"{error.name}.")
