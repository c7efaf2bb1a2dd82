"""What an address may ask of a list: the filters and the order that its page offers, and nothing else.

Django allows every lookup of a model's own fields, so that whoever may see the list could guess a hidden value letter
by letter: ``?stats__api_key__startswith=a``. Here the filters of the list are the allow-list, a project's own included.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin import FieldListFilter, ListFilter, SimpleListFilter
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.admin.widgets import url_params_from_lookup_dict
from django.db.models import QuerySet
from django.http import HttpRequest

from tenant_slots.admin.bases import AnyChangeList, AnyConcern
from tenant_slots.admin.chosen import HIGHEST

SENT_BY_HIERARCHIES = ("__year", "__month", "__day")


KEY = "tenant_queue__exact"
"""Django itself checks the keys of other lookups."""


class SortedAsOffered(AnyChangeList):
    """Orders by no column whose head nobody can click on: some would sort a million rows."""

    def get_ordering_field(self, field_name: Any) -> Any:
        return super().get_ordering_field(field_name) if field_name in (self.sortable_by or ()) else None


class OfferedLookups(AnyConcern):
    linked: tuple[str, ...] = ()
    """Lookups beside those of the filters, for links to the list."""
    private: tuple[str, ...] = ()
    """Fields that no filter opens, not even a project's own."""

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        if lookup.split("__")[0] in self.private:
            return False
        if lookup in self.linked or lookup in {f"{self.date_hierarchy}{suffix}" for suffix in SENT_BY_HIERARCHIES}:
            return True
        filters = self.get_list_filter(request)
        return any(lookup in self._sent_by(one, request) for one in filters) or self._chooses_for_a_field(lookup, value)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_storable(request, super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **options: Any) -> Any:
        kind = super().get_changelist(request, **options)
        return type(kind.__name__, (SortedAsOffered, kind), {})

    def _sent_by(self, list_filter: Any, request: Any) -> list[str | None]:
        """The parameters of one filter: a class with a name of its own, a path, or a path with a class."""
        if isinstance(list_filter, type) and issubclass(list_filter, SimpleListFilter):
            return [list_filter.parameter_name]
        made: ListFilter
        if isinstance(list_filter, type):
            made = list_filter(request, {}, self.model, self)
        else:
            path, kind = (list_filter, FieldListFilter.create) if isinstance(list_filter, str) else list_filter
            made = kind(get_fields_from_path(self.model, path)[-1], request, {}, self.model, self, field_path=path)
        return made.expected_parameters()

    def _chooses_for_a_field(self, lookup: str, value: Any) -> bool:
        """Whether a foreign key to the model chooses by this very value, as the popup of its field asks for it."""
        for choices in self.model._meta.related_fkey_lookups:
            sent = url_params_from_lookup_dict(choices() if callable(choices) else choices)
            if (lookup, value) in sent.items():
                return True
        return False


def with_storable(request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
    """No row where the address names what none can have: a NUL, for which PostgreSQL refuses to look, or a key of a
    tenant queue that is too large, which SQLite refuses.
    """
    named = (value for _, values in request.GET.lists() for value in values)
    is_storable = not any("\0" in value for value in named)
    return rows if is_storable and all(map(_may_be_key, request.GET.getlist(KEY))) else rows.none()


def _may_be_key(text: str) -> bool:
    """What is no number at all is left to Django, which says so."""
    try:
        return abs(int(text)) <= HIGHEST
    except ValueError:
        return True
