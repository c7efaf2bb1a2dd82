"""Where the tables are."""

from __future__ import annotations

from typing import Any

from django.db import models

from tenant_slots.conf import app_settings


class InConfiguredDatabase(models.Manager[Any]):
    """Reads and writes in ``TENANT_SLOTS["DATABASE"]`` unless told otherwise."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().using(self._db or app_settings.DATABASE)
