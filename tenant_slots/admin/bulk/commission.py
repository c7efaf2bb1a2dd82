"""In whose name a background job acts, and by which action of which ModelAdmin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, TypeVar

from django.apps import apps
from django.conf import settings
from django.contrib.admin.sites import all_sites
from django.contrib.auth import get_user_model
from django.http import HttpRequest

from tenant_slots.admin.confirmed import Confirmed
from tenant_slots.db.sessions import schema_of
from tenant_slots.exceptions import UnknownBulkAction, UnreadableBulkChange
from tenant_slots.models import BulkChange, BulkChunk
from tenant_slots.models.fields import Unreadable

F = TypeVar("F", bound=Callable[..., Any])

LEFT_OUT = ("seen", "jobs")
"""Values of a form that the chunks have."""


@dataclass(frozen=True)
class Commission:
    """What a bulk change is to do."""

    model_admin: Any
    request: HttpRequest
    """Of nobody's browser: it has the user, and nothing else."""
    action: Confirmed
    values: dict[str, Any]
    by: str
    reason: str

    @classmethod
    def of(cls, change: BulkChange) -> Commission | None:
        """None when whoever has confirmed it may not do so any more.

        Raises:
            UnknownBulkAction: this process has no such admin site, or it has no such action.
            UnreadableBulkChange: somebody has spoilt what was typed into its form.
        """
        require_readable(change, "values")
        found = cls.once_given(change)
        return found if found is not None and found.still_stands() else None

    @classmethod
    def once_given(cls, change: BulkChange) -> Commission | None:
        """Whether or not whoever has confirmed it may still do so; None when they are gone. Raises UnknownBulkAction:
        see `of`.
        """
        model_admin = model_admin_of(change)
        action = action_of(model_admin, change.action)
        user = _user_with(change.user_key)
        if action is None:
            raise UnknownBulkAction(action=change.action, model=change.model, site=change.site)
        if user is None:
            return None
        request = HttpRequest()
        request.method, request.user = "POST", user
        return cls(model_admin, request, action, restored(change.values), change.by, change.reason)

    def still_stands(self) -> bool:
        may = getattr(self.model_admin, f"has_{self.action.permission}_permission")
        return bool(self.model_admin.admin_site.has_permission(self.request) and may(self.request))


def key_of(user: Any) -> str:
    """Who has confirmed a bulk change. With a schema per tenant each has users of its own, counted from 1 in each."""
    return f"{_place_of_users()}{user.pk}"


def is_of_this_place(change: BulkChange) -> bool:
    """Whether whoever has confirmed it may be among the users here, in whose name alone it can be gone on with."""
    return change.user_key.startswith(_place_of_users())


def _user_with(key: str) -> Any:
    """None, too, where the users are those of another schema."""
    place = _place_of_users()
    if not key.startswith(place):
        return None
    return get_user_model()._default_manager.filter(pk=key.removeprefix(place)).first()


def _place_of_users() -> str:
    """Empty but with django-tenants."""
    schema = schema_of(get_user_model()._default_manager.db)
    return f"{schema}/" if schema else ""


def require_readable(row: BulkChange | BulkChunk, column: str) -> None:
    """Raises UnreadableBulkChange when the column holds something else than what was stored there."""
    value = getattr(row, column)
    if isinstance(value, Unreadable):
        raise UnreadableBulkChange(column=column, row=f"row {row.pk} of {row._meta.db_table}", problem=value.problem)


def model_admin_of(change: BulkChange) -> Any:
    """Raises UnknownBulkAction: see `Commission.of`."""
    found = _registered(change)
    if found is None:
        import_module(settings.ROOT_URLCONF)  # where a project may make its sites
        found = _registered(change)
    if found is None:
        raise UnknownBulkAction(action=change.action, model=change.model, site=change.site)
    return found


def _registered(change: BulkChange) -> Any:
    model = apps.get_model(change.model)
    sites = [site for site in all_sites if site.name == change.site and site.is_registered(model)]
    return sites[0]._registry[model] if sites else None


def named_by(method: F, action: Confirmed) -> F:
    """The method of a ModelAdmin, by whose name an action is found again."""
    method.confirmed = action  # type: ignore[attr-defined]
    return method


def called(model_admin: Any, action: Confirmed) -> str:
    """How the ModelAdmin calls it, whatever the form has sent: a list may have two menus."""
    kind = type(model_admin)
    return next(name for name in dir(kind) if getattr(getattr(kind, name, None), "confirmed", None) is action)


def action_of(model_admin: Any, name: str) -> Confirmed | None:
    found: Confirmed | None = getattr(getattr(model_admin, name, None), "confirmed", None)
    return found


def stored(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a form as JSON."""
    return {name: _stored(value) for name, value in values.items() if name not in LEFT_OUT}


def _stored(value: Any) -> Any:
    return {"time": value.isoformat()} if isinstance(value, datetime) else value


def restored(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: datetime.fromisoformat(value["time"]) if isinstance(value, dict) else value
        for name, value in values.items()
    }
