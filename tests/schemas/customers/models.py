from __future__ import annotations

from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Customer(TenantMixin):  # type: ignore[misc]
    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name


class Domain(DomainMixin): ...  # type: ignore[misc]
