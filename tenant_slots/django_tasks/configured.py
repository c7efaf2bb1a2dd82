"""The backends that ``TASKS`` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string


def configured_backends() -> list[Any]:
    """All of their classes, imported. Of one that cannot be, Django tells whoever uses it."""
    configured = getattr(settings, "TASKS", {})
    entries = list(configured.values()) if isinstance(configured, Mapping) else []
    return [found for params in entries if (found := _imported(params)) is not None]


def _imported(params: Any) -> Any:
    try:
        return import_string(params["BACKEND"])
    except Exception:  # whatever the project's module raises
        return None
