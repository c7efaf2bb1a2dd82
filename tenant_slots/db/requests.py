"""Views that are to be called while a database is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

View = TypeVar("View", bound=Callable[..., Any])


class _EveryDatabase(set[str]):
    """Django asks whether a database is in it; `transaction.non_atomic_requests` would add one, of which it is told."""

    def __contains__(self, alias: object) -> bool:
        return True


def outside_transactions(view: View) -> View:
    """Have Django begin none around a view: with ``ATOMIC_REQUESTS`` of any database it is not called before there is
    one.
    """
    view._non_atomic_requests = _EveryDatabase()  # type: ignore[attr-defined]
    return view
