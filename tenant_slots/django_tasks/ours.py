"""What a process does that enqueues or runs Tasks on tenants' slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from tenant_slots.django_tasks import calls, told
from tenant_slots.tasks.registry import ways_to_django_tasks


def connect() -> None:
    """Once in a process, however often it is called."""
    ways_to_django_tasks.add(calls.called_task_at)
    told.connect()


def are_configured() -> bool:
    """Whether one of the backends of ``TASKS`` is ours, or made of it. Django tells of one that cannot be imported."""
    configured = getattr(settings, "TASKS", {})
    return isinstance(configured, Mapping) and any(map(_is_ours, configured.values()))


def _is_ours(params: Any) -> bool:
    try:
        return bool(getattr(import_string(params["BACKEND"]), "gives_slots", False))
    except (ImportError, KeyError, TypeError):
        return False
