"""Slots per tenant and queue for background jobs on django-rq."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenant_slots.decorators import tenant_job as tenant_job

__all__ = ["tenant_job"]


def __getattr__(name: str) -> object:
    # Models cannot be imported while Django loads its apps, and this package is one of them.
    if name == "tenant_job":
        _set_up_django()
        from tenant_slots.decorators import tenant_job

        return tenant_job
    if name == "run_job":
        _set_up_django()
        from tenant_slots.runner import run_job

        return run_job
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _set_up_django() -> None:
    """RQ's SpawnWorker imports a job in a new process that nobody has set Django up in."""
    import django
    from django.apps import apps

    if not apps.apps_ready:
        django.setup()
