"""The fields and forms that several pages have."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.functional import lazy
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import rates
from tenant_slots.admin import chosen
from tenant_slots.db import clock
from tenant_slots.db.compiled import among
from tenant_slots.exceptions import InvalidRate
from tenant_slots.models import HIGHEST_LIMIT, HIGHEST_SHARE, TenantQueue
from tenant_slots.validation import is_in_calendar

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


class MomentField(forms.DateTimeField):
    """Of the hour that a clock has twice in autumn the first one is meant.

    Django refuses it, and with it every change of a row that has such a time already.
    """

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except ValidationError as error:
            if error.code != "ambiguous_timezone":
                raise
            with timezone.override(UTC):
                read: Any = super().to_python(value)
            on_the_clock = read.replace(tzinfo=None)
            first = timezone.make_aware(on_the_clock)
            if timezone.make_naive(first.astimezone(UTC)) != on_the_clock:
                raise  # in spring the clock passes over it
            return first

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Not by what the input leaves out: the seconds, and in autumn which of the two hours it is."""
        try:
            return as_typed(self.to_python(initial)) != as_typed(self.to_python(data))
        except (ValidationError, OverflowError):
            return True


AS_TYPED = "%Y-%m-%dT%H:%M"
"""A time as the browser's input has it."""


def as_typed(time: datetime | None) -> str:
    return f"{timezone.localtime(time):{AS_TYPED}}" if time else ""


def _zone_in_words() -> str:
    """By its name: at the time that is typed it may have another offset than now."""
    return gettext("Time zone: %(zone)s.") % {"zone": timezone.get_current_timezone_name()}


zone_in_words = lazy(_zone_in_words, str)


def moment_field(label: Any, help_text: Any, **options: Any) -> forms.DateTimeField:
    """One input with one label, which the browser helps with; Django's two have a label for none of them."""
    widget = forms.DateTimeInput(attrs={**STYLED, "type": "datetime-local"}, format=AS_TYPED)
    help_text = format_lazy("{} {}", help_text, zone_in_words())
    return MomentField(label=label, required=False, help_text=help_text, widget=widget, **options)


def future_field(label: Any, help_text: Any) -> forms.DateTimeField:
    return moment_field(label, help_text, validators=[require_future])


def require_future(time: datetime) -> None:
    if not is_in_calendar(time):
        raise ValidationError(forms.DateTimeField.default_error_messages["invalid"], code="invalid")
    if time <= clock.now():
        raise ValidationError(_("This time has already passed."))


def require_future_in(form: forms.Form | forms.ModelForm[Any], name: str) -> None:
    """Where it depends on the other fields whether a time that has passed is an error."""
    time = form.cleaned_data.get(name)
    try:
        if time:
            require_future(time)
    except ValidationError as error:
        form.add_error(name, error)


def share_field(**options: Any) -> forms.IntegerField:
    return forms.IntegerField(
        label=_("Share"),
        min_value=1,
        max_value=HIGHEST_SHARE,
        help_text=TenantQueue._meta.get_field("share").help_text,
        widget=forms.NumberInput(attrs=STYLED),
        **options,
    )


def rate_field() -> forms.CharField:
    return forms.CharField(
        label=_("Rate"),
        max_length=40,
        required=False,
        validators=[require_rate],
        help_text=_(
            "How many jobs may start in a time: 100/m is 100 a minute, 5/s, 10/h, 2/d, 10/15m. Empty: any number."
        ),
        widget=forms.TextInput(attrs=STYLED),
    )


def burst_field() -> forms.IntegerField:
    return forms.IntegerField(
        label=_("Burst"),
        min_value=1,
        max_value=rates.HIGHEST_NUMBER,
        required=False,
        help_text=_("How many may start at once after a quiet time. Empty: what the rate brings in a second."),
        widget=forms.NumberInput(attrs=STYLED),
    )


def require_rate(text: str) -> None:
    try:
        rates.parse(text)
    except InvalidRate as error:
        raise ValidationError(_("This is not a rate; write for example 100/m or 10/15m.")) from error


class JobsField(forms.Field):
    """The jobs that the page has counted, by primary key: nothing is done to any other."""

    widget = forms.HiddenInput

    def prepare_value(self, value: Any) -> str:
        return value if isinstance(value, str) else chosen.as_text(value or ())

    def to_python(self, value: Any) -> list[int]:
        try:
            return chosen.from_text(value or "")
        except ValueError as error:
            raise ValidationError(_("These are no jobs that the page has shown."), code="invalid") from error


class ReasonForm(forms.Form):
    reason = reason_field()


class ResetForm(ReasonForm):
    version = forms.IntegerField(widget=forms.HiddenInput)


UNTIL_HELP = _("The current limit comes back then. Leave empty to keep the new one.")


class LimitForm(forms.Form):
    """A number, how long it is to last, why, and which version of the row the person has seen."""

    max_job = forms.IntegerField(
        label=_("Limit"), min_value=0, max_value=HIGHEST_LIMIT, widget=forms.NumberInput(attrs=STYLED)
    )
    until = future_field(_("Until"), UNTIL_HELP)
    reason = reason_field()
    version = forms.IntegerField(widget=forms.HiddenInput)


class LimitAndShareForm(LimitForm):
    """Who sends no share leaves it as it is. The limit's end may have passed where it is left alone with the limit."""

    until = moment_field(_("Until"), UNTIL_HELP)
    share = share_field(required=False)
    shown_until = forms.CharField(required=False, widget=forms.HiddenInput)

    field_order = ("max_job", "until", "share", "reason")

    def clean_shown_until(self) -> str | None:
        """None of who sends no such field: a script that means the number alone."""
        shown: str = self.cleaned_data["shown_until"]
        return shown if self.add_prefix("shown_until") in self.data else None

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self._leaves_end_alone(cleaned):
            cleaned["until"] = self.initial["until"]
        if {"max_job", "until"} & set(self.changed_data):
            require_future_in(self, "until")
        return cleaned

    def _leaves_end_alone(self, cleaned: dict[str, Any]) -> bool:
        """Who was shown another end means the time as typed, though somebody else has taken one that looks alike."""
        was_shown = cleaned.get("shown_until") in (None, self.initial["shown_until"])
        return was_shown and "until" not in self.changed_data

    def errors_by_name(self) -> dict[str, list[str]]:
        """Each with the label of its field, for who shows them apart from the fields."""
        return {
            name: [f"{self[name].label}: {text}" if name in self.fields else str(text) for text in texts]
            for name, texts in self.errors.items()
        }


class SeenForm(forms.Form):
    """Remembers the versions of the rows that the page showed, so that a row that changed since is left alone."""

    seen = forms.CharField(widget=forms.HiddenInput, required=False)

    def clean_seen(self) -> dict[int, int]:
        return numbers_by_key(self.cleaned_data["seen"])


def numbers_by_key(text: str) -> dict[int, int]:
    """Of what a page has shown of each row, written as ``key:number``; what is anything else is passed over."""
    pairs = (pair.partition(":")[::2] for pair in text.split())
    return {int(pk): int(number) for pk, number in pairs if _is_number(pk) and _is_number(number)}


def _is_number(text: str) -> bool:
    """Of one that a page has shown; Python refuses to read thousands of digits."""
    return text.isdecimal() and len(text) < 20


def seen(pks: list[int]) -> dict[str, Any]:
    """The initial value of a `SeenForm`."""
    return {"seen": numbers_as_text(TenantQueue.objects.filter(among(pks)).values_list("pk", "version"))}


def numbers_as_text(numbers: Iterable[tuple[int, int]]) -> str:
    """As `numbers_by_key` reads it."""
    return " ".join(f"{pk}:{number}" for pk, number in numbers)
