"""`tenant_scope`: whose the calls of Tasks in a block are that say nothing of it themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from uuid import UUID

from tenant_slots.exceptions import InvalidTenant
from tenant_slots.tenants import require_tenant

_tenant: ContextVar[str | None] = ContextVar("tenant_slots_tenant", default=None)


@contextmanager
def tenant_scope(tenant: str | int | UUID) -> Iterator[None]:
    """Tasks that are enqueued in this block, in this thread or this asyncio task, are this tenant's.

    What says so itself goes before: ``.using(tenant=…)``, ``@task(tenant=…)`` and ``OPTIONS["TENANT"]``. A job does not
    run in the scope of its call.

    Raises:
        InvalidTenant: it is not a text, number or UUID, or too long or empty.
    """
    if tenant == "":
        raise InvalidTenant(value=tenant, problem='it is empty; a call of nobody is one with .using(tenant="")')
    token = _tenant.set(require_tenant(tenant))
    try:
        yield
    finally:
        _tenant.reset(token)


@contextmanager
def outside_of_scopes() -> Iterator[None]:
    """For a job that runs where it was enqueued: under a worker there is no scope of the call either."""
    token = _tenant.set(None)
    try:
        yield
    finally:
        _tenant.reset(token)


def tenant_in_scope() -> str | None:
    return _tenant.get()
