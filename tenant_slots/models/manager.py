"""Where the tables are."""

from __future__ import annotations

from typing import Any

from django.db import models

from tenant_slots.conf import app_settings


class InConfiguredDatabase(models.Manager[Any]):
    """Reads and writes in ``TENANT_SLOTS["DATABASE"]`` unless told otherwise, whatever the project's routers say.

    It is its models' base manager too, which Django uses where no manager is named: to refresh an object, to load a
    deferred field, to follow a foreign key. A router that prefers a replica would let us decide by what is old.
    """

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().using(self._db or app_settings.DATABASE)
