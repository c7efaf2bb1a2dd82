"""What the tests of Django and of the backport get instead of their own backends."""

from __future__ import annotations

from typing import Any

from django.test import TransactionTestCase, override_settings

from tenant_slots import tenant_scope
from tenant_slots.models import TenantJob
from tenant_slots.tasks_backend import TenantSlotsBackend

QUEUES = ("default", "queue_1", "queue-1", "queue-2")


class Stored(TenantSlotsBackend):
    """For the Dummy backend: no worker runs what is enqueued."""

    @property
    def results(self) -> list[Any]:
        return [self.get_result(str(uuid)) for uuid in TenantJob.objects.order_by("pk").values_list("uuid", flat=True)]

    def clear(self) -> None:
        TenantJob.objects.all().delete()


class AtOnce(TenantSlotsBackend):
    """For the Immediate backend: ``IMMEDIATE`` runs here and now what is enqueued."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        with override_settings(TENANT_SLOTS={"IMMEDIATE": True}):
            return super().enqueue(task, args, kwargs)


class DatabaseTestCase(TransactionTestCase):
    """For their test cases, which may use no database. Everything in them is of one tenant."""

    def run(self, result: Any = None) -> Any:
        from tests.settings import RQ_QUEUES

        with override_settings(RQ_QUEUES=dict.fromkeys(QUEUES, RQ_QUEUES["default"])), tenant_scope("acme"):
            return super().run(result)
