"""What an address may ask of a list: the filters and the order that its page offers, and nothing else.

Django allows every lookup of a model's own fields, so that whoever may see the list could guess a hidden value letter
by letter: ``?stats__api_key__startswith=a``. Here the filters of the list are the allow-list, a project's own included.
"""

from __future__ import annotations

from typing import Any

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.widgets import url_params_from_lookup_dict
from django.db.models import QuerySet
from django.http import HttpRequest

from tenant_slots.admin.bases import AnyChangeList, AnyConcern

SENT_BY_FILTERS = ("", "__exact", "__isnull", "__in", "__gte", "__lt", "__isempty", "__id__exact", "__pk__exact")
"""What Django's filters of a field append to its path."""

SENT_BY_HIERARCHIES = ("__year", "__month", "__day")


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
        return lookup in self._offered(request) or self._chooses_for_a_field(lookup, value)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_storable(request, super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **options: Any) -> Any:
        kind = super().get_changelist(request, **options)
        return type(kind.__name__, (SortedAsOffered, kind), {})

    def _offered(self, request: HttpRequest) -> set[str]:
        offered = {*self.linked, *(f"{self.date_hierarchy}{suffix}" for suffix in SENT_BY_HIERARCHIES)}
        return offered.union(*map(_sent_by, self.get_list_filter(request)))

    def _chooses_for_a_field(self, lookup: str, value: Any) -> bool:
        """Whether a foreign key to the model chooses by this very value, as the popup of its field asks for it."""
        for choices in self.model._meta.related_fkey_lookups:
            sent = url_params_from_lookup_dict(choices() if callable(choices) else choices)
            if (lookup, value) in sent.items():
                return True
        return False


def with_storable(request: HttpRequest, rows: QuerySet[Any]) -> QuerySet[Any]:
    """No row where the address names a NUL: no text in the database has one, and PostgreSQL refuses to look for it."""
    named = (value for _, values in request.GET.lists() for value in values)
    return rows.none() if any("\0" in value for value in named) else rows


def _sent_by(list_filter: Any) -> set[str]:
    """The parameters of one filter of a list: a class with a parameter of its own, a path, or a path with a class."""
    if isinstance(list_filter, type):
        return {list_filter.parameter_name or ""} if issubclass(list_filter, SimpleListFilter) else set()
    path = list_filter if isinstance(list_filter, str) else list_filter[0]
    return {f"{path}{suffix}" for suffix in SENT_BY_FILTERS}
