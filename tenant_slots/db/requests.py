"""Views around which Django is to begin no transaction: with ``ATOMIC_REQUESTS`` it does so before it calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from tenant_slots.conf import app_settings

View = TypeVar("View", bound=Callable[..., Any])


class _EveryDatabase(set[str]):
    """Django asks whether a database is in it; `transaction.non_atomic_requests` would add one, of which it is told."""

    def __contains__(self, alias: object) -> bool:
        return True


class _OurDatabase(set[str]):
    def __contains__(self, alias: object) -> bool:
        return alias == app_settings.DATABASE or super().__contains__(alias)


def outside_transactions(view: View) -> View:
    """Have Django begin none around a view: with ``ATOMIC_REQUESTS`` of any database it is not called before there is
    one.
    """
    view._non_atomic_requests = _EveryDatabase()  # type: ignore[attr-defined]
    return view


def outside_our_transactions(view: Callable[..., Any]) -> Callable[..., Any]:
    """A view like it, with the same for our database alone: for views that change the rows of several tenants, each of
    which is to be locked no longer than it takes to change it.

    The view itself stays as it is: it may be in use elsewhere, or a method, which takes no attributes.
    """

    @functools.wraps(view)
    def outside(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    others = getattr(view, "_non_atomic_requests", ())
    outside._non_atomic_requests = _OurDatabase(others)  # type: ignore[attr-defined]
    return markcoroutinefunction(outside) if iscoroutinefunction(view) else outside
