from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class TenantSlotsConfig(AppConfig):
    name = "tenant_slots"
    verbose_name = _("Tenant slots")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tenant_slots import checks, receivers

        checks.register_all()
        receivers.connect_all()
