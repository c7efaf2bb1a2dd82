"""Actions with a page in between that lists what they touch. Every handler checks its permission itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, ngettext

from tenant_slots.admin import chosen
from tenant_slots.admin.at_once import AtOnce
from tenant_slots.admin.bulk.commission import called, named_by
from tenant_slots.admin.bulk.start import start_bulk_change
from tenant_slots.admin.confirmed import DONE, FAILED, GONE, Confirmed
from tenant_slots.admin.pages import address, confirmation
from tenant_slots.admin.refusals import NOT_TAKEN, refusal
from tenant_slots.db.compiled import among
from tenant_slots.db.transactions import kept_unbroken

MOST_LISTED = 100

AT_ONCE = 500
"""Objects that are read together."""

PROBLEMS_SHOWN = 10
"""Of objects that could not be changed, the first ones."""

MOST_IN_REQUEST = 200
"""Rows that are changed while somebody waits for the page; more are left to a background job."""


def in_menu(action: Confirmed) -> Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]:
    """The action as a method of a ModelAdmin."""

    @admin.action(permissions=[action.permission], description=action.label)
    def chosen(model_admin: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return run(model_admin, request, queryset, action)

    return named_by(chosen, action)


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
    pks, spared = _without_spared(action, pks)
    form = action.form(None if shown is None else request.POST, initial=action.initial(pks) if shown is None else {})
    if shown is None or not form.is_valid():
        return _page(model_admin, request, pks, action, form, spared=spared if shown is None else 0)
    if _is_for_background(action, _theirs(model_admin, request, pks), form.cleaned_data):
        return _start(model_admin, request, pks, action, form)
    _report(model_admin, request, _apply(model_admin, request, pks, action, form.cleaned_data), action)
    return None


def _without_spared(action: Confirmed, pks: list[int]) -> tuple[list[int], int]:
    """What the action is about, and how many others were chosen with it."""
    spared = action.spared(pks) if len(pks) > 1 else set()
    if len(spared) == len(pks):
        return pks, 0
    return [pk for pk in pks if pk not in spared], len(spared)


def _start(model_admin: Any, request: HttpRequest, pks: list[int], action: Confirmed, form: Any) -> HttpResponse:
    """The page of the background job, or why there is none."""
    name = called(model_admin, action)
    try:
        with kept_unbroken():
            change = start_bulk_change(model_admin, request, action, name, pks, form.cleaned_data)
    except NOT_TAKEN as error:
        text, status = refusal(error)
        form.add_error(None, text)
        return _page(model_admin, request, pks, action, form, status)
    return HttpResponseRedirect(address(model_admin, "bulk_change", change.pk))


def _theirs(model_admin: Any, request: HttpRequest, pks: list[int]) -> list[int]:
    """Those of them that the viewer may see: whatever set was sent, nothing is counted of any other."""
    if model_admin.own_tenant_queues(request) is None:
        return pks
    return list(_visible(model_admin, request, pks).order_by().values_list("pk", flat=True))


def _is_for_background(action: Confirmed, pks: list[int], values: Any) -> bool:
    """Also where few rows will change: each object is looked at, whether or not there is something to change."""
    return max(len(pks), action.rows_changed(pks, values)) > MOST_IN_REQUEST


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


def _apply(model_admin: Any, request: HttpRequest, pks: list[int], action: Confirmed, values: dict[str, Any]) -> AtOnce:
    done = AtOnce(action, model_admin, request, values)
    for start in range(0, len(pks), AT_ONCE):
        some = pks[start : start + AT_ONCE]
        found = list(_objects(model_admin, request, some).order_by("pk"))  # a job before those that run after it
        done.outcomes[GONE] += len(some) - len(found)
        for one in found:
            done.change(one)
    return done


def _visible(model_admin: Any, request: HttpRequest, pks: list[int]) -> QuerySet[Any]:
    found: QuerySet[Any] = model_admin.get_queryset(request).filter(among(pks))
    return found


def _objects(model_admin: Any, request: HttpRequest, pks: list[int]) -> QuerySet[Any]:
    """Those of them that the viewer may see, as the list reads them."""
    related = model_admin.list_select_related
    found = _visible(model_admin, request, pks)
    return found.select_related(*related) if isinstance(related, list | tuple) else found


def _page(
    model_admin: Any,
    request: HttpRequest,
    pks: list[int],
    action: Confirmed,
    form: forms.Form,
    status: int = 200,
    spared: int = 0,
) -> HttpResponse:
    touched = ngettext("This affects %(count)d object.", "This affects %(count)d objects.", len(pks))
    hidden = [("action", called(model_admin, action)), ("confirm", "yes"), ("chosen", chosen.as_text(pks))]
    hidden += [
        (name, value) for name in (ACTION_CHECKBOX_NAME, "select_across") for value in request.POST.getlist(name)
    ]
    theirs = _theirs(model_admin, request, pks)
    values: Any = getattr(form, "cleaned_data", form.initial)
    effects = [touched % {"count": len(pks)}, *action.warnings(model_admin, request, theirs, values)]
    if spared:
        text = ngettext(
            "%(count)d other belongs to bulk changes and is left alone. To change it, choose it alone.",
            "%(count)d others belong to bulk changes and are left alone. To change them, choose them alone.",
            spared,
        )
        effects.append(text % {"count": spared})
    if _is_for_background(action, theirs, values):
        effects.append(gettext("A background job will do this: you will see its progress, and can stop it."))
    listed = _objects(model_admin, request, pks[:MOST_LISTED])
    return confirmation(
        model_admin,
        request,
        title=action.title,
        effects=effects,
        objects=list(map(action.describe, listed)),
        more=max(0, len(pks) - MOST_LISTED),
        hidden=hidden,
        form=form,
        status=status,
    )


def _report(model_admin: Any, request: HttpRequest, done: AtOnce, action: Confirmed) -> None:
    outcomes = done.outcomes
    for outcome, text in action.outcomes.items():
        if count := outcomes[outcome]:
            level = messages.SUCCESS if outcome == DONE else messages.WARNING
            model_admin.message_user(request, text % {"count": count}, level)
    if outcomes[GONE]:
        text = ngettext("%(count)d object is gone.", "%(count)d objects are gone.", outcomes[GONE])
        model_admin.message_user(request, text % {"count": outcomes[GONE]}, messages.WARNING)
    if outcomes[FAILED]:
        text = ngettext("%(count)d could not be changed.", "%(count)d could not be changed.", outcomes[FAILED])
        said = [text % {"count": outcomes[FAILED]}, *done.problems[:PROBLEMS_SHOWN]]
        model_admin.message_user(request, " ".join(said), messages.ERROR)
    if not outcomes.total():
        model_admin.message_user(request, gettext("There was nothing to do."), messages.WARNING)
