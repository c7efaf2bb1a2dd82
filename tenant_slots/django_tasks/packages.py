"""What has Tasks in this process: Django, and the backport where a backend is made of that one, on Django 6 too."""

from __future__ import annotations

import sys
from typing import Any

PACKAGES = ("django.tasks", "django_tasks")


def imported(module: str, name: str) -> tuple[Any, ...]:
    """What each of them has there. None is imported for it: nothing is made yet of what nobody has imported."""
    modules = [sys.modules.get(f"{package}.{module}") for package in PACKAGES]
    return tuple(getattr(found, name) for found in modules if hasattr(found, name))
