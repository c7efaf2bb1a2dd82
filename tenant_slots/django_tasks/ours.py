"""What a process does that enqueues or runs Tasks on tenants' slots."""

from __future__ import annotations

from tenant_slots.django_tasks import calls, told
from tenant_slots.tasks.registry import ways_to_django_tasks


def connect() -> None:
    """Once in a process, however often it is called."""
    ways_to_django_tasks.add(calls.called_task_at)
    told.connect()
