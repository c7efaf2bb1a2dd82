"""What an action is that asks first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.http import HttpRequest

GONE = "gone"
"""The outcome for one that was deleted after the page was shown."""

DONE = "done"
"""The outcome of an action on one object that did what it should."""

FAILED = "failed"
"""The outcome for one that could not be changed; the report says why."""

JOBS = "jobs"
"""The outcome for each job, of an action on tenant queues that changes their jobs."""


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
    warnings: Callable[[Any, HttpRequest, list[int], dict[str, Any]], list[str]] = field(
        default=lambda model_admin, request, pks, values: []
    )
    """What else the page is to say of them to this viewer, with the values that its form has."""
    spared: Callable[[list[int]], set[int]] = field(default=lambda pks: set())
    """Those of what is chosen that are left alone where they come with others."""
    rows_changed: Callable[[list[int], dict[str, Any]], int] = field(default=lambda pks, values: len(pks))
    """How many rows it is about to change, with these values: many are left to a background job."""
    in_background: Callable[[Any], Iterator[None]] | None = None
    """How a background job does it, if not one by one: see `bulk.ways`."""
    in_rounds: bool = False
    """Of jobs: whether a background job changes those first that others of them run after."""
    counts: str = ""
    """The outcome that `rows_changed` is about, where its progress is not that of the objects."""
