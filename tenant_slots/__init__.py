"""Slots per tenant and queue for background jobs on django-rq."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenant_slots.decorators import tenant_job as tenant_job
    from tenant_slots.running.progress import report_progress as report_progress
    from tenant_slots.running.reservation import hold_slot as hold_slot
    from tenant_slots.scope import tenant_scope as tenant_scope
    from tenant_slots.tasks.context import capture_context as capture_context
    from tenant_slots.tasks.on_busy import Reschedule as Reschedule
    from tenant_slots.tasks.tenant_busy import TenantBusy as TenantBusy
    from tenant_slots.tasks.throttle import Throttle as Throttle

__all__ = [
    "Reschedule",
    "TenantBusy",
    "Throttle",
    "capture_context",
    "hold_slot",
    "report_progress",
    "tenant_job",
    "tenant_scope",
]

MODULES = {
    "Reschedule": "tasks.on_busy",
    "TenantBusy": "tasks.tenant_busy",
    "Throttle": "tasks.throttle",
    "capture_context": "tasks.context",
    "hold_slot": "running.reservation",
    "report_progress": "running.progress",
    "run_job": "running.runner",
    "tenant_job": "decorators",
    "tenant_scope": "scope",
}
"""Where the names of this package are defined; `run_job` is what RQ calls."""


def __getattr__(name: str) -> object:
    # Models cannot be imported while Django loads its apps, and this package is one of them.
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _set_up_django()
    return getattr(import_module(f"tenant_slots.{MODULES[name]}"), name)


def _set_up_django() -> None:
    """RQ's SpawnWorker imports a job in a new process that nobody has set Django up in."""
    import django
    from django.apps import apps

    if not apps.apps_ready:
        django.setup()
