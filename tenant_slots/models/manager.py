"""Where the tables are."""

from __future__ import annotations

from typing import TypeVar

from django.db import models

from tenant_slots.conf import app_settings

MYPY = False
"""True to mypy, whose plugin for Django understands `from_queryset`. Other type checkers are told what that makes."""

M = TypeVar("M", bound=models.Model, covariant=True)


class InConfiguredDatabase(models.Manager[M]):
    """Reads and writes in ``TENANT_SLOTS["DATABASE"]`` unless told otherwise, whatever the project's routers say.

    It is its models' base manager too, which Django uses where no manager is named: to refresh an object, to load a
    deferred field, to follow a foreign key. A router that prefers a replica would let us decide by what is old.
    """

    def get_queryset(self) -> models.QuerySet[M]:
        return super().get_queryset().using(self._db or app_settings.DATABASE)
