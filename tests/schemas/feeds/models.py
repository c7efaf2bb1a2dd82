from __future__ import annotations

from django.db import connection, models

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
