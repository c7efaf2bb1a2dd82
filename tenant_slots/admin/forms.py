"""The fields and forms that several pages have."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from tenant_slots.db import clock
from tenant_slots.models import HIGHEST_LIMIT, HIGHEST_SHARE, TenantQueue

LONGEST_REASON = 200

STYLED = {"class": "slots-input"}
"""The attributes of our own inputs, which a theme that replaces the widgets of model fields knows nothing of."""


def reason_field() -> forms.CharField:
    return forms.CharField(
        label=_("Reason"),
        max_length=LONGEST_REASON,
        required=False,
        help_text=_("Kept in the history."),
        widget=forms.TextInput(attrs=STYLED),
    )


def moment_field(label: Any, help_text: Any, **options: Any) -> forms.DateTimeField:
    """One input with one label, which the browser helps with; Django's two have a label for none of them."""
    widget = forms.DateTimeInput(attrs={**STYLED, "type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
    return forms.DateTimeField(label=label, required=False, help_text=help_text, widget=widget, **options)


def future_field(label: Any, help_text: Any) -> forms.DateTimeField:
    return moment_field(label, help_text, validators=[require_future])


def require_future(time: datetime) -> None:
    if time <= clock.now():
        raise ValidationError(_("This time has already passed."))


def share_field(**options: Any) -> forms.IntegerField:
    return forms.IntegerField(
        label=_("Share"),
        min_value=1,
        max_value=HIGHEST_SHARE,
        help_text=TenantQueue._meta.get_field("share").help_text,
        widget=forms.NumberInput(attrs=STYLED),
        **options,
    )


class ReasonForm(forms.Form):
    reason = reason_field()


class ResetForm(ReasonForm):
    version = forms.IntegerField(widget=forms.HiddenInput)


class LimitForm(forms.Form):
    """A number, how long it is to last, why, and which version of the row the person has seen."""

    max_job = forms.IntegerField(
        label=_("Limit"), min_value=0, max_value=HIGHEST_LIMIT, widget=forms.NumberInput(attrs=STYLED)
    )
    until = future_field(_("Until"), _("The current limit comes back then. Leave empty to keep the new one."))
    reason = reason_field()
    version = forms.IntegerField(widget=forms.HiddenInput)


class LimitAndShareForm(LimitForm):
    """Who sends no share leaves it as it is."""

    share = share_field(required=False)

    field_order = ("max_job", "until", "share", "reason")


class SeenForm(forms.Form):
    """Remembers the versions of the rows that the page showed, so that a row that changed since is left alone."""

    seen = forms.CharField(widget=forms.HiddenInput, required=False)

    def clean_seen(self) -> dict[int, int]:
        pairs = (pair.partition(":")[::2] for pair in self.cleaned_data["seen"].split())
        return {int(pk): int(version) for pk, version in pairs if pk.isdecimal() and version.isdecimal()}


def seen(rows: Iterable[Any]) -> dict[str, Any]:
    """The initial value of a `SeenForm`."""
    return {"seen": " ".join(f"{row.pk}:{row.version}" for row in rows)}
