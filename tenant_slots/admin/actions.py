"""Actions with a page in between that lists what they touch. Every handler checks its permission itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext

from tenant_slots.admin.pages import confirmation

MOST_LISTED = 100

DONE = "done"
"""The outcome of an action on one object that did what it should."""


@dataclass(frozen=True)
class Confirmed:
    """An action that asks first. Its texts are lazy."""

    permission: str
    """Of ``has_<permission>_permission`` of the ModelAdmin."""
    label: Any
    """In the menu of actions."""
    title: Any
    """Of the page in between, and on its button."""
    form: type[forms.Form]
    apply: Callable[[Any, HttpRequest, Any, dict[str, Any]], str]
    """Acts on one object with the form's values and returns its outcome."""
    describe: Callable[[Any], str]
    """An object in the list of what is touched, in words."""
    outcomes: dict[str, Any]
    """What to say of so many objects with this outcome: a plural text by ``count``."""
    initial: Callable[[Sequence[Any]], dict[str, Any]] = field(default=lambda objects: {})


def in_menu(action: Confirmed) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]:
    """The action as a method of a ModelAdmin."""

    @admin.action(permissions=[action.permission], description=action.label)
    def chosen(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return run(model_admin, request, queryset, action)

    return chosen


def run(model_admin: Any, request: HttpRequest, objects: QuerySet[Any], action: Confirmed) -> HttpResponse | None:
    """The page in between, or the action once that page was sent."""
    if not getattr(model_admin, f"has_{action.permission}_permission")(request):
        raise PermissionDenied
    found = list(objects)
    sent = "confirm" in request.POST
    form = action.form(request.POST if sent else None, initial=action.initial(found))
    if not sent or not form.is_valid():
        return _page(model_admin, request, found, action, form)
    outcomes = Counter(action.apply(model_admin, request, one, form.cleaned_data) for one in found)
    _report(model_admin, request, outcomes, action)
    return None


def _page(
    model_admin: Any, request: HttpRequest, objects: list[Any], action: Confirmed, form: forms.Form
) -> HttpResponse:
    touched = ngettext("This affects %(count)d object.", "This affects %(count)d objects.", len(objects))
    hidden = [("action", request.POST["action"]), ("confirm", "yes")]
    hidden += [
        (name, value)
        for name in (ACTION_CHECKBOX_NAME, "select_across", "index")
        for value in request.POST.getlist(name)
    ]
    return confirmation(
        model_admin,
        request,
        title=action.title,
        effects=[touched % {"count": len(objects)}],
        objects=[action.describe(one) for one in objects[:MOST_LISTED]],
        more=max(0, len(objects) - MOST_LISTED),
        hidden=hidden,
        form=form,
    )


def _report(model_admin: Any, request: HttpRequest, outcomes: Counter[str], action: Confirmed) -> None:
    for outcome, text in action.outcomes.items():
        if count := outcomes[outcome]:
            level = messages.SUCCESS if outcome == DONE else messages.WARNING
            model_admin.message_user(request, text % {"count": count}, level)
    if not outcomes:
        model_admin.message_user(request, gettext("There was nothing to do."), messages.WARNING)
