"""Actions with a page in between that lists what they touch. Every handler checks its permission itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext, ngettext

from tenant_slots.admin import chosen
from tenant_slots.admin.pages import confirmation

MOST_LISTED = 100

AT_ONCE = 500
"""Objects that are read together."""

GONE = "gone"
"""The outcome for one that was deleted after the page was shown."""

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
    initial: Callable[[list[int]], dict[str, Any]] = field(default=lambda pks: {})
    """Of the form, by the primary keys of what is touched."""
    warnings: Callable[[list[int]], list[str]] = field(default=lambda pks: [])
    """What else the page is to say of them."""


def in_menu(action: Confirmed) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]:
    """The action as a method of a ModelAdmin."""

    @admin.action(permissions=[action.permission], description=action.label)
    def chosen(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return run(model_admin, request, queryset, action)

    return chosen


def run(model_admin: Any, request: HttpRequest, objects: QuerySet[Any], action: Confirmed) -> HttpResponse | None:
    """The page in between, or the action once that page was sent: on what the page has shown, and on nothing else."""
    if not getattr(model_admin, f"has_{action.permission}_permission")(request):
        raise PermissionDenied
    shown = _shown(request, objects)
    pks = list(objects.order_by().values_list("pk", flat=True)[: chosen.MOST + 1]) if shown is None else shown
    if len(pks) > chosen.MOST:
        text = gettext("No more than %(count)d objects can be changed at once; filter the list.")
        model_admin.message_user(request, text % {"count": chosen.MOST}, messages.ERROR)
        return None
    form = action.form(None if shown is None else request.POST, initial=action.initial(pks) if shown is None else {})
    if shown is None or not form.is_valid():
        return _page(model_admin, request, pks, action, form)
    _report(model_admin, request, _apply(model_admin, request, pks, action, form.cleaned_data), action)
    return None


def _shown(request: HttpRequest, objects: QuerySet[Any]) -> list[int] | None:
    """What the page has shown that was confirmed; None when there was none.

    Who names the objects one by one, as a script may, has seen them.
    """
    if "confirm" not in request.POST:
        return None
    if "chosen" not in request.POST:
        return None if request.POST.get("select_across") == "1" else list(objects.values_list("pk", flat=True))
    try:
        return chosen.from_text(request.POST["chosen"])
    except ValueError:
        return None


def _apply(
    model_admin: Any, request: HttpRequest, pks: list[int], action: Confirmed, values: dict[str, Any]
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for start in range(0, len(pks), AT_ONCE):
        some = pks[start : start + AT_ONCE]
        found = list(_objects(model_admin, request, some).order_by("pk"))  # a job before those that run after it
        outcomes[GONE] += len(some) - len(found)
        outcomes.update(action.apply(model_admin, request, one, values) for one in found)
    return outcomes


def _objects(model_admin: Any, request: HttpRequest, pks: list[int]) -> QuerySet[Any]:
    """Those of them that the viewer may see, as the list reads them."""
    related = model_admin.list_select_related
    found: QuerySet[Any] = model_admin.get_queryset(request).filter(pk__in=pks)
    return found.select_related(*related) if isinstance(related, list | tuple) else found


def _page(model_admin: Any, request: HttpRequest, pks: list[int], action: Confirmed, form: forms.Form) -> HttpResponse:
    touched = ngettext("This affects %(count)d object.", "This affects %(count)d objects.", len(pks))
    hidden = [("action", request.POST["action"]), ("confirm", "yes"), ("chosen", chosen.as_text(pks))]
    hidden += [
        (name, value)
        for name in (ACTION_CHECKBOX_NAME, "select_across", "index")
        for value in request.POST.getlist(name)
    ]
    listed = _objects(model_admin, request, pks[:MOST_LISTED])
    return confirmation(
        model_admin,
        request,
        title=action.title,
        effects=[touched % {"count": len(pks)}, *action.warnings(pks)],
        objects=list(map(action.describe, listed)),
        more=max(0, len(pks) - MOST_LISTED),
        hidden=hidden,
        form=form,
    )


def _report(model_admin: Any, request: HttpRequest, outcomes: Counter[str], action: Confirmed) -> None:
    for outcome, text in action.outcomes.items():
        if count := outcomes[outcome]:
            level = messages.SUCCESS if outcome == DONE else messages.WARNING
            model_admin.message_user(request, text % {"count": count}, level)
    if outcomes[GONE]:
        text = ngettext("%(count)d object is gone.", "%(count)d objects are gone.", outcomes[GONE])
        model_admin.message_user(request, text % {"count": outcomes[GONE]}, messages.WARNING)
    if not outcomes.total():
        model_admin.message_user(request, gettext("There was nothing to do."), messages.WARNING)
