"""django-tenants: a job runs in its tenant's schema, and never in the public one by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django_tenants.utils import (
    get_public_schema_name,
    get_tenant_database_alias,
    get_tenant_model,
    schema_context,
    schema_exists,
    tenant_context,
)

from tenant_slots.exceptions import NoSchema
from tenant_slots.models import TenantJob
from tenant_slots.tasks.context import PER_THREAD
from tenant_slots.tenants import ADMIN_TENANT


def capture() -> dict[str, Any]:
    """For ``CAPTURE_CONTEXT``: the schema of whoever enqueues."""
    return {"schema": current_schema()}


def current_schema(*args: object, **kwargs: object) -> str:
    """For ``@tenant_job(tenant=…)``, where the tenant of a job is the schema in which it is enqueued."""
    connection: Any = connections[get_tenant_database_alias()]
    return str(connection.schema_name)


@contextmanager
def job_context(job: TenantJob) -> Iterator[None]:
    """For ``JOB_CONTEXT``: the schema that was captured, else the one that is named as the job's tenant.

    Raises:
        NoSchema: the job has neither, no tenant has this schema, or it is not in the database.
    """
    schema = schema_of(job)
    tenant = get_tenant_model().objects.filter(schema_name=schema).first()
    if problem := _problem_with(schema, tenant):
        raise NoSchema(job=job.uuid, task=job.task, problem=problem)
    with schema_context(schema) if tenant is None else tenant_context(tenant):
        yield


setattr(job_context, PER_THREAD, True)


def _problem_with(schema: str, tenant: Any) -> str:
    """PostgreSQL passes over a schema that it does not have, and goes on to the next one of the path: to the public."""
    if tenant is None:
        return "" if schema == get_public_schema_name() else f"no tenant has the schema {schema!r}"
    if not schema_exists(schema, get_tenant_database_alias()):
        return f"the schema {schema!r} of its tenant is not in the database"
    return ""


def schema_of(job: TenantJob) -> str:
    """The public one only for a job that was enqueued there, and for no tenant.

    Raises:
        NoSchema: nothing says which one it is.
    """
    public = get_public_schema_name()
    captured, tenant = job.context.get("schema"), job.tenant_queue.tenant
    if captured and captured != public:
        return str(captured)
    if tenant not in ("", public, ADMIN_TENANT):
        return str(tenant)
    if captured == public or tenant == ADMIN_TENANT:
        return str(public)
    raise NoSchema(job=job.uuid, task=job.task, problem=f"none was captured, and tenant {tenant!r} names none")
