"""What the live list of jobs says in each place of a row; see `cells`."""

from __future__ import annotations

from datetime import datetime

from django.utils.formats import localize
from django.utils.translation import gettext

from tenant_slots.admin import progress
from tenant_slots.admin.cells import Cell, Cells
from tenant_slots.admin.words import NOTHING, moment, state_of
from tenant_slots.models import TenantJob

FIELDS = ("state", "priority", "progress", "stats", "started_at", "ended_at", "attempt")
"""What the places are made of."""

LINES = tuple(f"line{number}" for number in range(progress.IN_A_ROW + 1))
"""Places of the first statistics, and of the sign that there are more."""


def of_job(job: TenantJob) -> Cells:
    """By ``<primary key>.<place>``."""
    attributes, numbers = progress.measured(job)
    bar = {"max": None, "value": None, **(attributes or {}), **_shown(attributes is not None)}
    lines = progress.first_statistics(job)
    places: Cells = {
        "state": {"text": str(state_of(job)), "attrs": {"data-state": job.state}},
        "bar": {"attrs": {**bar, "aria-label": gettext("progress")}},
        "numbers": {"text": "" if lines and numbers == NOTHING else numbers},
        "priority": {"text": str(localize(job.priority))},
        "started": {"text": _moment(job.started_at)},
        "ended": {"text": _moment(job.ended_at)},
        "attempt": {"text": str(localize(job.attempt))},
    }
    places |= {place: _line(text) for place, text in zip(LINES, [*lines, *[""] * len(LINES)], strict=False)}
    return {f"{job.pk}.{place}": cell for place, cell in places.items()}


def _line(text: str) -> Cell:
    return {"text": text, "attrs": _shown(bool(text))}


def _shown(is_shown: bool) -> dict[str, str | None]:
    return {"hidden": None if is_shown else ""}


def _moment(time: datetime | None) -> str:
    return moment(time) if time else NOTHING
