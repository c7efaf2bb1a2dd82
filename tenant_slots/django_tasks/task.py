"""The Task class of our backend: Django's, with a tenant, a concurrency key, and how often and how long it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from rq import Retry

from tenant_slots.django_tasks.api import AnyTask
from tenant_slots.django_tasks.found import require_task, task_at
from tenant_slots.tasks.options import UNCHANGED

FOR_RQ = ("timeout", "retry")
"""The fields of our Task class that are options for RQ."""

OF_CODE = ("func", "tenant", "key", "retry")
"""What the Task in the code has: a lambda can be pickled nowhere, and RQ's objects are equal to no copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSlotsTask(AnyTask):
    """What ``@task`` makes of a function where `TenantSlotsBackend` is its backend.

    Args:
        tenant: whose its calls are: the name of the function's argument, or a callable that is given the arguments.
        key: the concurrency key, in the same way.
        timeout, retry: as of ``@tenant_job``; those of one inside it, if none are given.
        explicit_tenant, explicit_key: what `using` was given.
    """

    tenant: str | Callable[..., object] | None = None
    key: str | Callable[..., object] | None = None
    timeout: int | None = UNCHANGED
    retry: Retry | None = UNCHANGED
    explicit_tenant: str | int | UUID | None = None
    explicit_key: str | None = None

    def __post_init__(self) -> None:
        """From here on None means none, whatever stands inside."""
        inner = getattr(self.func, "tenant_task", None)
        for name in FOR_RQ:
            if getattr(self, name) is UNCHANGED:
                object.__setattr__(self, name, inner.rq_options.get(name) if inner else None)
        AnyTask.__post_init__(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        tenant: str | int | UUID | None = None,
        key: str | None = None,
        timeout: int | None = UNCHANGED,
        retry: Retry | None = UNCHANGED,
    ) -> TenantSlotsTask:
        """The same Task with other settings for the calls that are enqueued through the result.

        Args:
            priority, queue_name, run_after, backend: Django's own.
            tenant: whose the calls are; "" for nobody's, which run without a limit.
            key: the concurrency key, such as a user's id.
            timeout, retry: as of ``@tenant_job``; None takes away what the Task has.

        Raises:
            InvalidTask: a value is not possible.
            InvalidTenant: `tenant` cannot be one.
        """
        changes: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "explicit_tenant": tenant,
            "explicit_key": key,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        own: dict[str, Any] = {"timeout": timeout, "retry": retry}
        return replace(self, **given, **{name: value for name, value in own.items() if value is not UNCHANGED})

    def __reduce__(self) -> tuple[Callable[[str, dict[str, Any]], AnyTask], tuple[str, dict[str, Any]]]:
        """Without what it has in common with the Task at its path, of `OF_CODE`."""
        own = task_at(self.module_path)
        in_common = {name for name in OF_CODE if getattr(self, name) is getattr(own, name, UNCHANGED)}
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in in_common}
        return unpickled, (self.module_path, values)


def unpickled(path: str, values: dict[str, Any]) -> AnyTask:
    """Raises UnknownJob."""
    return with_values(require_task(path), values)


def with_values(task: AnyTask, values: Mapping[str, Any]) -> AnyTask:
    """A Task as it once was, whether or not today's settings would allow it."""
    kind = type(task)
    other = object.__new__(kind)
    for field in fields(kind):
        object.__setattr__(other, field.name, values.get(field.name, getattr(task, field.name)))
    return other
