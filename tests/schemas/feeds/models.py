from __future__ import annotations

import gc
from collections.abc import Iterator

from django.db import connection, models
from django_tenants.utils import schema_context

from tenant_slots import tenant_job
from tenant_slots.contrib.schemas import current_schema


class Entry(models.Model):
    text = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.text

    @tenant_job("imports", tenant=current_schema)
    def amend(self) -> str:
        self.text += " amended"
        self.save()
        return str(connection.schema_name)


@tenant_job("imports", tenant="tenant")
def note(tenant: str, text: str) -> str:
    Entry.objects.create(text=text)
    return str(connection.schema_name)


@tenant_job("imports", tenant="tenant")
async def note_later(tenant: str, text: str) -> int:
    await Entry.objects.acreate(text=text)
    return await Entry.objects.acount()


@tenant_job("imports", tenant=current_schema)
def note_here(text: str) -> str:
    Entry.objects.create(text=text)
    return str(connection.schema_name)


def leave_schema(schema: str, include_public: bool) -> None:
    """A plain function, of which nobody puts back by itself what it leaves."""
    connection.set_schema(schema, include_public)  # type: ignore[attr-defined]


def schema_here() -> str:
    return str(connection.schema_name)


def _in_schema(schema: str) -> Iterator[str]:
    with schema_context(schema):
        yield str(connection.schema_name)


@tenant_job("imports", tenant="tenant")
def fail_in_schema(tenant: str) -> None:
    """With a generator that nobody has gone through, which its error holds, which is a name in its own traceback."""
    schemas = _in_schema("acme")
    error = ValueError(next(schemas))
    gc.collect()  # what is left of these is old by now, so that Python does not look at it for long
    raise error


@tenant_job("imports", tenant="tenant")
def note_after_collection(tenant: str, text: str) -> str:
    gc.collect()
    Entry.objects.create(text=text)
    return str(connection.schema_name)
