"""Which tenant, which concurrency key, which row and which default limit a call belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from django.db import IntegrityError, OperationalError

from tenant_slots import logs, rates, tenant_rows
from tenant_slots.conf import app_settings, rq_queues
from tenant_slots.db import transactions
from tenant_slots.db.sessions import outside
from tenant_slots.exceptions import (
    InvalidKey,
    InvalidLimit,
    InvalidOption,
    InvalidShare,
    InvalidTenant,
    TenantMissing,
    TenantQueueLocked,
    UnknownQueue,
    UnknownTenantQueue,
)
from tenant_slots.models import HIGHEST_LIMIT, HIGHEST_SHARE, TenantQueue
from tenant_slots.named import callable_named
from tenant_slots.queue_names import queue_problem
from tenant_slots.tasks.options import key_problem
from tenant_slots.tasks.task import TaskCall
from tenant_slots.validation import is_name, is_whole, name_text, text_problem

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")

LONGEST_TENANT: int = TenantQueue._meta.get_field("tenant").max_length or 0

NO_TENANT = ""
"""The tenant of calls without one. Its row starts with the highest limit there is."""

ADMIN_TENANT = "tenant_slots.admin"
"""The tenant of our own jobs, which carry out what staff have confirmed. Whoever could name himself so would keep these
waiting behind his own, and what staff do to many tenants away from himself.
"""

OUR_PATHS = "tenant_slots."
"""How the paths of our own functions begin."""

JOBS_OF_ADMIN = 2
"""How many of them run at once on a queue, unless somebody sets another limit."""

TENANTS_AT_ONCE = 100
"""Most new rows in one transaction, whose commit whoever enqueues for one of these tenants waits for."""


def tenant_of(call: TaskCall) -> str:
    """The tenant of one call; `NO_TENANT` when it has none and may therefore run unlimited.

    Raises:
        InvalidTenant: it is not a text, number or UUID, or too long.
        TenantMissing: there is none and ``REQUIRE_TENANT`` is on.
    """
    task = call.task
    explicit = task.explicit_tenant
    return checked_tenant(task.path, call.answer_of(task.tenant) if explicit is None else explicit)


def checked_tenant(path: str, value: object) -> str:
    """See `tenant_of`; `path` names who was called."""
    if value is None or value == "":
        if app_settings.REQUIRE_TENANT:
            raise TenantMissing(task=path)
        about_task = logs.about_named(task=path, tenant=NO_TENANT)
        logger.warning("%s was called without a tenant and is not limited", path, extra=about_task)
        return NO_TENANT
    tenant = require_tenant(value)
    if tenant == ADMIN_TENANT and not path.startswith(OUR_PATHS):
        raise InvalidTenant(value=tenant, problem="it is the one of what staff have confirmed; give another name")
    return tenant


def key_of(call: TaskCall) -> str:
    """The concurrency key: who within the tenant a call is for; "" for nobody in particular.

    Raises:
        InvalidKey: what the decorator's ``key`` gave is not a short text, a number or a UUID.
    """
    task = call.task
    if task.explicit_key is not None:
        return name_text(task.explicit_key)
    value = None if task.key is None else call.answer_of(task.key)
    if value is None:
        return ""
    if not is_name(value):
        raise InvalidKey(value=value, task=task.path, problem="it must be a str, an int or a UUID")
    key = name_text(value)
    if problem := key_problem(key):
        raise InvalidKey(value=value, task=task.path, problem=problem)
    return key


def require_tenant(value: object) -> str:
    """A tenant's identifier as a row keeps it. Raises InvalidTenant unless it is a short text, a number or a UUID."""
    if not is_name(value):
        raise InvalidTenant(value=value, problem="it must be a str, an int or a UUID")
    tenant = name_text(value)
    if len(tenant) > LONGEST_TENANT:
        problem = f"it has {len(tenant)} characters, at most {LONGEST_TENANT} fit"
        raise InvalidTenant(value=f"{tenant[:40]}…", problem=problem)
    if text_problem(tenant):
        raise InvalidTenant(value=tenant, problem="it holds a character that databases cannot store")
    return tenant


def tenant_queue_for(tenant: str, queue: str) -> TenantQueue:
    """The row of this tenant on this queue, made on first use: outside of the caller's transaction, where possible.

    Nobody deletes it before that transaction has ended.

    Raises:
        InvalidTenant: it cannot name a tenant.
        UnknownQueue: RQ has no such queue.
        UnknownTenantQueue: there is no row and ``AUTO_CREATE`` is off.
        InvalidLimit: ``DEFAULT_MAX_JOB`` gave something else than a limit.
        InvalidShare: ``DEFAULT_SHARE`` gave something else than a share.
        InvalidRate: ``DEFAULT_RATE`` gave something else than a rate.
        TenantQueueLocked: another transaction has made the row, or deletes it, and does not end.
    """
    require_queue(queue)
    require_tenant(tenant)
    found = tenant_rows.found(tenant, queue)
    if found is not None:
        return found
    if not app_settings.AUTO_CREATE:
        raise UnknownTenantQueue(tenant=tenant, queue=queue)
    return _made(tenant, queue, defaults(tenant, queue))


def tenant_queue_of_admin(queue: str) -> TenantQueue:
    """The row of our own jobs on this queue, made on first use: no setting of the project is about it.

    Raises:
        UnknownQueue, TenantQueueLocked: as `tenant_queue_for`.
    """
    require_queue(queue)
    return tenant_rows.found(ADMIN_TENANT, queue) or _made(ADMIN_TENANT, queue, {"max_job": JOBS_OF_ADMIN})


def tenant_queues_for(tenants: Iterable[str], queue: str) -> dict[str, TenantQueue]:
    """As `tenant_queue_for`, for many tenants at once."""
    names = sorted(set(tenants))
    if len(names) == 1:
        return {name: tenant_queue_for(name, queue) for name in names}
    rows: dict[str, TenantQueue] = {}
    for start in range(0, len(names), TENANTS_AT_ONCE):
        rows |= _some_rows(names[start : start + TENANTS_AT_ONCE], queue)
    return rows


def _some_rows(tenants: list[str], queue: str) -> dict[str, TenantQueue]:
    require_queue(queue)
    rows = tenant_rows.found_among(map(require_tenant, tenants), queue)
    missing = [tenant for tenant in tenants if tenant not in rows]
    if missing and app_settings.AUTO_CREATE:
        values = {tenant: defaults(tenant, queue) for tenant in missing}
        make = partial(create_missing, queue, values)
        if not _made_outside(make, missing, queue):
            make()
        rows |= tenant_rows.found_among(missing, queue)
    return rows | {tenant: tenant_queue_for(tenant, queue) for tenant in tenants if tenant not in rows}


def defaults(tenant: str, queue: str) -> dict[str, Any]:
    """What the settings say of a new row. See `default_max_job`, `default_share` and `default_rate`."""
    return {"max_job": default_max_job(tenant, queue), **defaults_beside_limit(tenant, queue)}


def defaults_beside_limit(tenant: str, queue: str) -> dict[str, Any]:
    """The same for a row whose limit somebody gives: nobody is asked for another one."""
    return {"share": default_share(tenant, queue), **rates.fields_of(default_rate(tenant, queue))}


def _made(tenant: str, queue: str, values: dict[str, Any]) -> TenantQueue:
    """A new row. While it is not committed, everybody else who enqueues for the tenant has to wait for it.

    So it is made outside of the caller's transaction, which may be long; a rollback then leaves the row. Where there is
    no further connection to be had, it is made inside.
    """
    make = partial(get_or_create, tenant, queue, values)
    return (tenant_rows.found(tenant, queue) if _made_outside(make, [tenant], queue) else None) or make()


def _made_outside(make: Callable[[], object], tenants: list[str], queue: str) -> bool:
    """Whether there was a transaction of the caller to be left, and a session for it."""
    if not transactions.can_be_left(app_settings.DATABASE):
        return False
    try:
        outside(make)
    except TenantQueueLocked:
        raise
    except OperationalError as error:
        text = "the tenant queue %s on %s is made in the caller's transaction, as there is no other session: %s"
        only = tenants[0] if len(tenants) == 1 else None
        whose = f"of {len(tenants)} tenants" if only is None else f"of {only!r}"
        logger.warning(text, whose, queue, error, extra=logs.about_named(tenant=only, queue=queue))
        return False
    return True


def create_missing(queue: str, values: Mapping[str, dict[str, Any]]) -> None:
    """New rows in one transaction, of tenants that have none. Their values are by tenant.

    They are written in the order of the tenants, so that two that make the same rows do not wait for each other.

    Raises:
        TenantQueueLocked: another transaction has made one of them and does not end.
    """
    alias = app_settings.DATABASE
    with transactions.bounded_at_once(alias, f"of {len(values)} tenants on {queue}"):
        new = [TenantQueue(tenant=tenant, queue=queue, **own) for tenant, own in sorted(values.items())]
        TenantQueue.objects.bulk_create(new, ignore_conflicts=True)


def get_or_create(tenant: str, queue: str, values: dict[str, Any]) -> TenantQueue:
    """The row, whoever makes it. A transaction that cannot see it, because its isolation level is strict and somebody
    has made the row since it began, ends with a serialization failure, as with any statement that meets such a row: so
    it can be tried again.

    Raises:
        TenantQueueLocked: as `create_missing`.
    """
    alias = app_settings.DATABASE
    with transactions.bounded_at_once(alias, f"of {tenant!r} on {queue}"):
        row: TenantQueue
        try:
            row, _ = TenantQueue.objects.get_or_create(tenant=tenant, queue=queue, defaults=values)
        except IntegrityError:  # of which PostgreSQL does not tell that it is for the isolation level alone
            create_missing(queue, {tenant: values})
            raise
    return row


def though_deleted(store: Callable[[], T]) -> T:
    """What `store` gives. It is tried again once: that makes a tenant queue anew that was deleted since it was read."""
    try:
        return store()
    except (IntegrityError, OperationalError) as error:
        was_deleted = isinstance(error, IntegrityError) or transactions.is_undone(error)  # at a strict isolation level
        if transactions.is_open(app_settings.DATABASE) or not was_deleted:
            raise
        return store()


def require_queue(queue: str) -> None:
    """Raises UnknownQueue unless the project's ``RQ_QUEUES`` has it, and InvalidOption if its name does not fit."""
    require_known(queue)
    if problem := queue_problem(queue):
        raise InvalidOption(option="queue", value=queue, task="a tenant queue", problem=problem)


def require_known(queue: object) -> None:
    """Raises UnknownQueue unless the project's ``RQ_QUEUES`` has it."""
    known = rq_queues()
    if queue not in known:
        raise UnknownQueue(queue=queue, known=", ".join(sorted(map(str, known))) or "none")


def default_max_job(tenant: str, queue: str) -> int:
    """The limit of a new row, from ``DEFAULT_MAX_JOB``: a number, one per queue (else 1), or a callable's answer.

    Raises:
        InvalidLimit, InvalidSetting: it is not a limit, or its callable cannot be imported.
    """
    if tenant == NO_TENANT:
        return HIGHEST_LIMIT
    return require_limit(_default("DEFAULT_MAX_JOB", tenant, queue, otherwise=1), tenant, queue)


def default_share(tenant: str, queue: str) -> int:
    """The share of a new row, from ``DEFAULT_SHARE``: as `default_max_job`. No callable is asked for `NO_TENANT`.

    Raises:
        InvalidShare, InvalidSetting: it is not a share, or its callable cannot be imported.
    """
    if tenant == NO_TENANT and isinstance(app_settings.DEFAULT_SHARE, str):
        return 1
    return require_share(_default("DEFAULT_SHARE", tenant, queue, otherwise=1), tenant, queue)


def default_rate(tenant: str, queue: str) -> rates.Rate | None:
    """The rate of a new row, from ``DEFAULT_RATE``: a text, one per queue, or a callable's answer; None for none.

    Calls without a tenant have none, as they have no limit.

    Raises:
        InvalidRate, InvalidSetting: it is not a rate, or its callable cannot be imported.
    """
    if tenant == NO_TENANT:
        return None
    configured = app_settings.DEFAULT_RATE
    is_one = rates.is_notation(configured)
    rate = configured if is_one else _default("DEFAULT_RATE", tenant, queue, otherwise=None)
    return None if rate is None else rates.parse(rate)


def _default(name: str, tenant: str, queue: str, otherwise: Any) -> Any:
    """What this setting says of a tenant on a queue: a value for all, one per queue, or a callable's answer."""
    configured = getattr(app_settings, name)
    if isinstance(configured, Mapping):
        return configured.get(queue, otherwise)
    return callable_named(name, configured)(tenant, queue) if isinstance(configured, str) else configured


def is_limit(value: object) -> bool:
    return is_whole(value, 0, HIGHEST_LIMIT)


def require_limit(value: Any, tenant: str, queue: str) -> int:
    """Raises InvalidLimit unless `value` is a whole number from 0 to ``HIGHEST_LIMIT``."""
    if not is_limit(value):
        raise InvalidLimit(value=value, tenant=tenant, queue=queue, lowest=0, highest=HIGHEST_LIMIT)
    limit: int = value
    return limit


def is_share(value: object) -> bool:
    return is_whole(value, 1, HIGHEST_SHARE)


def require_share(value: Any, tenant: str, queue: str) -> int:
    """Raises InvalidShare unless `value` is a whole number from 1 to ``HIGHEST_SHARE``."""
    if not is_share(value):
        raise InvalidShare(value=value, tenant=tenant, queue=queue, highest=HIGHEST_SHARE)
    share: int = value
    return share
