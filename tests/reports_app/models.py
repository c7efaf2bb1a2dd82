"""Models with decorated methods; their tables are made without migrations."""

from __future__ import annotations

import uuid
from datetime import timedelta

from django.db import models

from tenant_slots import tenant_job


class Executable(models.Model):
    tenant = models.CharField(max_length=50)
    done = models.CharField(max_length=50, default="")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.tenant} {self.pk}"

    @tenant_job("reports", tenant=lambda self, *args, **kwargs: self.tenant)
    def execute(self, words: str = "done") -> str:
        """Says what it did."""
        self.done = words
        self.save()
        return f"{type(self).__name__} {words}"


class Report(Executable):
    @tenant_job("reports", tenant="tenant", unique_for=timedelta(minutes=10))
    def send(self, tenant: str, copies: int = 1) -> int:
        return copies

    @tenant_job(
        "reports",
        tenant=lambda self: self.tenant,
        key=lambda self: f"report-{self.pk}",
        unique_for=timedelta(minutes=10),
        unique_key=lambda self: self.tenant,
    )
    def refresh(self) -> None: ...

    @tenant_job("reports", tenant=lambda self, *args: self.tenant, debounce=timedelta(seconds=30))
    def summarize(self, words: str) -> str:
        return words

    @tenant_job("reports", tenant=lambda self, *args: self.tenant)
    async def execute_async(self, words: str) -> str:
        self.done = words
        await self.asave()
        return words


class DraftReport(Report):
    class Meta:
        proxy = True


class DetailedReport(Report):
    """Its primary key is a link to its parent."""

    @tenant_job("reports", tenant=lambda self, *args, **kwargs: self.tenant)
    def execute(self, words: str = "details") -> str:
        return f"overridden {words}"


class Export(Executable):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)


class Named(Executable):
    name = models.CharField(max_length=300, primary_key=True)


class Line(Executable):
    """Its primary key has two parts."""

    pk = models.CompositePrimaryKey("tenant", "number")
    number = models.IntegerField()


class Archive(Export):
    """Its primary key is a link to its parent, whose own is a UUID."""

    shelf = models.CharField(max_length=50, default="")
