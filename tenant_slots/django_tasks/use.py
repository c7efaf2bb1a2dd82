"""Whether the project uses Django's Tasks, and what this process has to know then."""

from __future__ import annotations

from importlib.util import find_spec

import django
from django.apps import apps
from django.conf import global_settings, settings

BACKEND = "tenant_slots.tasks_backend.TenantSlotsBackend"


def is_used() -> bool:
    """Whether ``TASKS`` is the project's, or the backport is installed as an app."""
    if django.VERSION < (6, 0) and find_spec("django_tasks") is None:
        return False
    of_django = getattr(global_settings, "TASKS", None)
    return getattr(settings, "TASKS", of_django) != of_django or apps.is_installed("django_tasks")


def connect() -> None:
    """For an app's ``ready``: a worker is told of calls whose module it has not imported yet."""
    if not is_used():
        return
    from tenant_slots.django_tasks import foreign, ours
    from tenant_slots.django_tasks.configured import configured_backends

    backends = configured_backends()  # before we listen to what they are made of
    foreign.connect()
    if any(getattr(backend, "gives_slots", False) for backend in backends):
        ours.connect()
