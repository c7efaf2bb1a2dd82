from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class TenantSlotsConfig(AppConfig):
    name = "tenant_slots"
    verbose_name = _("Tenant slots")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # limits and enqueueing hold the bodies of the models' methods.
        from tenant_slots import checks, limits, receivers  # noqa: F401
        from tenant_slots.enqueueing import cancel, priority, retry  # noqa: F401

        checks.register_all()
        receivers.connect_all()
