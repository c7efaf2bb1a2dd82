"""Which tenant, which row and which limit a call belongs to, and the changes of that limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from tenant_slots import limits
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import (
    InvalidKey,
    InvalidLimit,
    InvalidSetting,
    InvalidTenant,
    TenantMissing,
    TimeHasPassed,
    UnknownQueue,
    UnknownTenantQueue,
)
from tenant_slots.limits import Change
from tenant_slots.models import HIGHEST_LIMIT, LimitSource, TenantQueue
from tenant_slots.options import key_problem

if TYPE_CHECKING:
    from tenant_slots.decorators import TenantTask

logger = logging.getLogger("tenant_slots")

LONGEST_TENANT: int = TenantQueue._meta.get_field("tenant").max_length or 0


LONGEST_LINE = 2**31 - 1
"""What the column of ``max_waiting`` holds."""

NO_TENANT = ""
"""The tenant of calls without one. Its row starts with the highest limit there is."""


def tenant_of(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The tenant of one call; `NO_TENANT` when it has none and may therefore run unlimited.

    Raises:
        InvalidTenant: it is not a text, number or UUID, or too long.
        TenantMissing: there is none and ``REQUIRE_TENANT`` is on.
        TypeError: the arguments do not fit the function.
    """
    return checked_tenant(task.path, _explicit_or_derived(task, args, kwargs))


def checked_tenant(path: str, value: object) -> str:
    """See `tenant_of`; `path` names who was called."""
    if value is None or value == "":
        if app_settings.REQUIRE_TENANT:
            raise TenantMissing(task=path)
        logger.warning("%s was called without a tenant and is not limited", path)
        return NO_TENANT
    return require_tenant(value)


def _explicit_or_derived(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    task.signature.bind(*args, **kwargs)
    if task.explicit_tenant is not None:
        return task.explicit_tenant
    return _argument_or_answer(task, task.tenant, args, kwargs)


def key_of(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Who within the tenant a call is for; "" for nobody in particular.

    Raises:
        InvalidKey: what the decorator's ``key`` gave is not a short text, a number or a UUID.
    """
    if task.explicit_key is not None:
        return task.explicit_key
    value = None if task.key is None else _argument_or_answer(task, task.key, args, kwargs)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise InvalidKey(value=value, task=task.path, problem="it must be a str, an int or a UUID")
    if problem := key_problem(str(value)):
        raise InvalidKey(value=value, task=task.path, problem=problem)
    return str(value)


def _argument_or_answer(
    task: TenantTask[..., Any], source: str | Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> object:
    if callable(source):
        return source(*args, **kwargs)
    call = task.signature.bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments[source]


def require_tenant(value: object) -> str:
    """The key of a tenant as a row keeps it. Raises InvalidTenant unless it is a short text, a number or a UUID."""
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise InvalidTenant(value=value, problem="it must be a str, an int or a UUID")
    tenant = str(value)
    if len(tenant) > LONGEST_TENANT:
        problem = f"it has {len(tenant)} characters, at most {LONGEST_TENANT} fit"
        raise InvalidTenant(value=f"{tenant[:40]}…", problem=problem)
    if "\0" in tenant or not _is_encodable(tenant):
        raise InvalidTenant(value=tenant, problem="it holds a character that databases cannot store")
    return tenant


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def tenant_queue_for(tenant: str, queue: str) -> TenantQueue:
    """The row of this tenant on this queue, made on first use.

    Raises:
        InvalidTenant: the tenant cannot be a key.
        UnknownQueue: RQ has no such queue.
        UnknownTenantQueue: there is no row and ``AUTO_CREATE`` is off.
        InvalidLimit: ``DEFAULT_MAX_JOB`` gave something else than a limit.
    """
    require_queue(queue)
    require_tenant(tenant)
    found: TenantQueue | None = TenantQueue.objects.filter(tenant=tenant, queue=queue).first()
    if found is not None:
        return found
    if not app_settings.AUTO_CREATE:
        raise UnknownTenantQueue(tenant=tenant, queue=queue)
    created: TenantQueue
    created, _ = TenantQueue.objects.get_or_create(
        tenant=tenant, queue=queue, defaults={"max_job": default_max_job(tenant, queue)}
    )
    return created


def require_queue(queue: str) -> None:
    """Raises UnknownQueue unless the project's ``RQ_QUEUES`` has it."""
    known = getattr(settings, "RQ_QUEUES", {})
    if queue not in known:
        raise UnknownQueue(queue=queue, known=", ".join(sorted(known)) or "none")


def default_max_job(tenant: str, queue: str) -> int:
    """The limit of a new row, from ``DEFAULT_MAX_JOB``: a number, one per queue (else 1), or a callable's answer.

    Raises:
        InvalidLimit, InvalidSetting: it is not a limit, or its callable cannot be imported.
    """
    if tenant == NO_TENANT:
        return HIGHEST_LIMIT
    configured = app_settings.DEFAULT_MAX_JOB
    if isinstance(configured, Mapping):
        limit: Any = configured.get(queue, 1)
    elif isinstance(configured, str):
        limit = imported_default_max_job(configured)(tenant, queue)
    else:
        limit = configured
    return require_limit(limit, tenant, queue)


def imported_default_max_job(path: str) -> Callable[[str, str], int]:
    try:
        function: Callable[[str, str], int] = import_string(path)
    except ImportError as error:
        raise InvalidSetting(name="DEFAULT_MAX_JOB", value=path, problem=f"it cannot be imported ({error})") from error
    return function


def is_limit(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= HIGHEST_LIMIT


def require_limit(value: Any, tenant: str, queue: str) -> int:
    """Raises InvalidLimit unless `value` is a whole number from 0 to ``HIGHEST_LIMIT``."""
    if not is_limit(value):
        raise InvalidLimit(value=value, tenant=tenant, queue=queue, lowest=0, highest=HIGHEST_LIMIT)
    limit: int = value
    return limit


def _require_cap(value: Any, row: TenantQueue, lowest: int, highest: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise InvalidLimit(value=value, tenant=row.tenant, queue=row.queue, lowest=lowest, highest=highest)


def set_limit(
    tenant_queue: TenantQueue, max_job: int, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    """Change a limit, for good; waiting jobs that now fit are admitted when the change commits. Lowering stops no job.

    Args:
        tenant_queue: the row; afterwards it has the values that are stored now.
        by, reason: for the log and the signal.
        version: what `tenant_queue.version` was when whoever decides looked at it; None to change it in any case.

    Returns:
        What really changed, as the signal ``limit_changed`` tells it.

    Raises:
        InvalidLimit: `max_job` is not a whole number from 0 to ``HIGHEST_LIMIT``.
        StaleVersion: another change came first; nothing is changed.
    """
    require_limit(max_job, tenant_queue.tenant, tenant_queue.queue)

    def apply(row: TenantQueue) -> None:
        _end_override(row)
        row.max_job, row.limit_source, row.limit_set_by = max_job, LimitSource.SET, by

    return limits.change(tenant_queue, apply, by, reason, version)


def set_override(
    tenant_queue: TenantQueue,
    max_job: int,
    until: datetime,
    *,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    """Change a limit until a time; then the sweep puts the limit back that was there before. See `set_limit`.

    Raises:
        TimeHasPassed: `until` is not in the future.
        InvalidLimit, StaleVersion: as `set_limit`.
    """
    require_limit(max_job, tenant_queue.tenant, tenant_queue.queue)
    _require_future(until)

    def apply(row: TenantQueue) -> None:
        if row.override_until is None:
            row.limit_before_override = row.max_job
        row.max_job, row.override_until, row.override_by = max_job, until, by

    return limits.change(tenant_queue, apply, by, reason, version)


def end_override(
    tenant_queue: TenantQueue, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    """Put the limit back that was there before the override. Does nothing when there is none."""

    def apply(row: TenantQueue) -> None:
        if row.limit_before_override is not None:
            row.max_job = row.limit_before_override
        _end_override(row)

    return limits.change(tenant_queue, apply, by, reason, version)


def reset_to_default(
    tenant_queue: TenantQueue, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    """Give a row the limit that a new one would get. See `set_limit`."""
    default = default_max_job(tenant_queue.tenant, tenant_queue.queue)

    def apply(row: TenantQueue) -> None:
        _end_override(row)
        row.max_job, row.limit_source, row.limit_set_by = default, LimitSource.DEFAULT, ""

    return limits.change(tenant_queue, apply, by, reason, version)


def set_max_job_per_key(
    tenant_queue: TenantQueue,
    max_job_per_key: int | None,
    *,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    """Change how many jobs with the same key may hold a slot at once; None for no such limit. See `set_limit`.

    Raises:
        InvalidLimit: it is neither None nor a whole number from 1 to ``HIGHEST_LIMIT``.
        StaleVersion: another change came first; nothing is changed.
    """
    _require_cap(max_job_per_key, tenant_queue, 1, HIGHEST_LIMIT)
    return limits.change(tenant_queue, _setting("max_job_per_key", max_job_per_key), by, reason, version)


def set_max_waiting(
    tenant_queue: TenantQueue,
    max_waiting: int | None,
    *,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    """Change how many jobs may wait; None for any number. What waits already stays. See `set_limit`.

    Raises:
        InvalidLimit: it is neither None nor a whole number from 0 to ``LONGEST_LINE``.
        StaleVersion: another change came first; nothing is changed.
    """
    _require_cap(max_waiting, tenant_queue, 0, LONGEST_LINE)
    return limits.change(tenant_queue, _setting("max_waiting", max_waiting), by, reason, version)


def pause(
    tenant_queue: TenantQueue,
    *,
    until: datetime | None = None,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    """Let no further job of this tenant start; running ones go on. With `until` the sweep resumes it then.

    Raises:
        TimeHasPassed: `until` is not in the future.
        StaleVersion: another change came first; nothing is changed.
    """
    if until is not None:
        _require_future(until)

    def apply(row: TenantQueue) -> None:
        row.paused, row.resume_at = True, until

    return limits.change(tenant_queue, apply, by, reason, version)


def resume(tenant_queue: TenantQueue, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
    """Undo `pause`; waiting jobs are admitted when the change commits."""

    def apply(row: TenantQueue) -> None:
        row.paused, row.resume_at = False, None

    return limits.change(tenant_queue, apply, by, reason, version)


def _setting(field: str, value: int | None) -> Callable[[TenantQueue], None]:
    return lambda row: setattr(row, field, value)


def _end_override(row: TenantQueue) -> None:
    row.override_until, row.override_by, row.limit_before_override = None, "", None


def _require_future(until: datetime) -> None:
    if until <= timezone.now():
        raise TimeHasPassed(until=until)
