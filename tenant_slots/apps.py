from __future__ import annotations

import logging

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class TenantSlotsConfig(AppConfig):
    name = "tenant_slots"
    verbose_name = _("Tenant slots")
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        super().import_models()
        # They hold the bodies of the models' methods, which another app's ready() may call before ours.
        from tenant_slots import limits  # noqa: F401
        from tenant_slots.enqueueing import cancel, deletion, priority, retry  # noqa: F401

    def ready(self) -> None:
        from tenant_slots import checks, logs, receivers
        from tenant_slots.django_tasks import use

        logging.getLogger("tenant_slots").addFilter(logs.complete)
        checks.register_all()
        receivers.connect_all()
        use.connect()
