"""Who may see what: views of ours are closed until a callable of the project opens them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ObjectDoesNotExist, PermissionDenied
from django.http import Http404

from tenant_slots.conf import app_settings
from tenant_slots.named import callable_named

Decision = Callable[..., bool]


def decision(setting: str) -> Decision:
    """The callable that a setting names; one that allows nothing while it names none.

    Raises:
        InvalidSetting: it cannot be imported, or called.
    """
    path: str = getattr(app_settings, setting)
    if not path:
        return lambda *_: False
    found: Decision = callable_named(setting, path)
    return found


def is_allowed(may_view: Decision, *asked: Any) -> bool:
    """Only True opens: what an async function returns is true as well.

    Who is asked for a row that they do not have, as the shop of a user, is not allowed: an error would tell them that
    there is such a job.
    """
    try:
        return may_view(*asked) is True
    except (PermissionDenied, Http404, ObjectDoesNotExist):
        return False
