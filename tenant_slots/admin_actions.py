"""Actions with a page in between that lists what they touch. Every handler checks its permission itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin_limits import list_page

MOST_LISTED = 100

DONE = "done"
"""The outcome of an action on one object that did what it should."""


@dataclass(frozen=True)
class Confirmed:
    """An action that asks first."""

    permission: str
    """Of ``has_<permission>_permission`` of the ModelAdmin."""
    title: Any
    form: type[forms.Form]
    apply: Callable[[Any, HttpRequest, Any, dict[str, Any]], str]
    """Acts on one object with the form's values and returns its outcome."""
    describe: Callable[[Any], str]
    """An object in the list of what is touched, in words."""
    outcomes: dict[str, Callable[[int], str]]
    """What to say of so many objects with this outcome."""
    initial: Callable[[Sequence[Any]], dict[str, Any]] = field(default=lambda objects: {})


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
    hidden = [("action", request.POST["action"]), ("confirm", "yes")]
    hidden += [
        (name, value)
        for name in (ACTION_CHECKBOX_NAME, "select_across", "index")
        for value in request.POST.getlist(name)
    ]
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": action.title,
        "effects": [
            ngettext("This touches %(count)d object.", "This touches %(count)d objects.", len(objects))
            % {"count": len(objects)}
        ],
        "objects": [action.describe(one) for one in objects[:MOST_LISTED]],
        "more": max(0, len(objects) - MOST_LISTED),
        "hidden": hidden,
        "form": form,
        "media": model_admin.media,
        "back": list_page(model_admin),
    }
    return TemplateResponse(request, "admin/tenant_slots/confirm.html", context)


def _report(model_admin: Any, request: HttpRequest, outcomes: Counter[str], action: Confirmed) -> None:
    for outcome, count in sorted(outcomes.items(), key=lambda pair: pair[0] != DONE):
        level = messages.SUCCESS if outcome == DONE else messages.WARNING
        model_admin.message_user(request, action.outcomes[outcome](count), level)
    if not outcomes:
        model_admin.message_user(request, gettext("There was nothing to do."), messages.WARNING)


class SeenForm(forms.Form):
    """Remembers the versions of the rows that the page showed, so that a row that changed since is left alone."""

    seen = forms.CharField(widget=forms.HiddenInput, required=False)

    def clean_seen(self) -> dict[int, int]:
        pairs = (pair.partition(":")[::2] for pair in self.cleaned_data["seen"].split())
        return {int(pk): int(version) for pk, version in pairs if pk.isdecimal() and version.isdecimal()}


def seen(rows: Iterable[Any]) -> dict[str, Any]:
    return {"seen": " ".join(f"{row.pk}:{row.version}" for row in rows)}


class CountForm(forms.Form):
    """The person types how many jobs will be canceled, as the page said it."""

    typed = forms.IntegerField(label=_("Type the number of jobs"), min_value=0)
    reason = forms.CharField(label=_("Reason"), max_length=200, required=False)
    count = forms.IntegerField(widget=forms.HiddenInput)
    up_to = forms.IntegerField(widget=forms.HiddenInput)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if "typed" in cleaned and "count" in cleaned and cleaned["typed"] != cleaned["count"]:
            message = gettext("It is %(count)s jobs, not %(typed)s.")
            self.add_error("typed", message % {"count": cleaned["count"], "typed": cleaned["typed"]})
        return cleaned
