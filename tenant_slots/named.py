"""Callables that a setting names by their dotted paths."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import import_string

from tenant_slots.exceptions import InvalidSetting

NOT_IMPORTABLE = (ImportError, TypeError, ValueError)
"""What `import_string` raises; the latter two for a path that begins with a dot."""


def callable_named(name: str, path: str) -> Any:
    """What this key of ``TENANT_SLOTS`` names. Raises InvalidSetting: it cannot be imported, or called."""
    try:
        found = import_string(path)
    except NOT_IMPORTABLE as error:
        raise InvalidSetting(name=name, value=path, problem=f"it cannot be imported ({error})") from error
    if not callable(found):
        raise InvalidSetting(name=name, value=path, problem="it is not callable")
    return found
