"""What the live list says in each place: one text and some attributes per key, for the page and for each poll alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from tenant_slots import charts
from tenant_slots.admin_audit import moment
from tenant_slots.live import QueueState, Row, Tiles
from tenant_slots.models import LimitSource

NOTHING = "\N{EN DASH}"


class Cell(TypedDict, total=False):
    text: str
    attrs: dict[str, str]


Cells = dict[str, Cell]


def of_row(row: Row) -> Cells:
    """By ``<primary key>.<place>``."""
    places: Cells = {
        "state": {"text": str(QueueState(row.state).label), "attrs": {"data-state": row.state}},
        "usage": {"text": f"{row.current_job} / {row.max_job}"},
        "meter": {"attrs": _meter(row)},
        "running": {"text": str(row.running)},
        "queued": {"text": str(row.queued)},
        "waiting": {"text": str(row.waiting)},
        "oldest": {"text": duration(row.oldest_wait)},
        "delay": {"text": duration(row.start_delay)},
        "failed": {"text": str(row.failed)},
        "chart": {"attrs": {"aria-label": activity_in_words(row)}},
        "ran": {"attrs": {"points": charts.line(row.activity, _highest(row))}},
        "limit": {"attrs": {"points": charts.steps(row.limits, _highest(row))}},
        "origin": {"text": origin(row)},
        "edit": {"attrs": _edit(row)},
    }
    return {f"{row.pk}.{place}": cell for place, cell in places.items()}


def of_tiles(tiles: Tiles) -> Cells:
    """By ``tile.<name>``."""
    return {
        "tile.slots": {"text": f"{tiles.in_use} / {tiles.capacity}"},
        "tile.waiting": {"text": str(tiles.waiting)},
        "tile.oldest": {"text": duration(tiles.oldest_wait)},
        "tile.at_limit": {"text": str(tiles.at_limit)},
        "tile.stale": {"text": str(tiles.stale), "attrs": {"data-alarm": "yes" if tiles.stale else "no"}},
        "tile.workers": {
            "text": NOTHING if tiles.workers is None else str(tiles.workers),
            "attrs": {"data-alarm": "no" if tiles.workers else "yes"},
        },
    }


def titles_of_tiles() -> dict[str, str]:
    return {
        "tile.slots": gettext("Slots in use / capacity"),
        "tile.waiting": gettext("Waiting"),
        "tile.oldest": gettext("Oldest wait"),
        "tile.at_limit": gettext("Tenants at limit"),
        "tile.stale": gettext("Stale leases"),
        "tile.workers": gettext("Workers alive"),
    }


def html(cells: Cells, key: str, tag: str = "span", css: str = "") -> SafeString:
    """The element of one place; a poll finds it by ``data-slots``."""
    cell = cells[key]
    return format_html(
        '<{} data-slots="{}"{}{}>{}</{}>',
        tag,
        key,
        format_html(' class="{}"', css) if css else "",
        attributes(cell),
        cell.get("text", ""),
        tag,
    )


def attributes(cell: Cell) -> SafeString:
    pairs: Iterable[tuple[str, str]] = cell.get("attrs", {}).items()
    return format_html_join("", ' {}="{}"', pairs)


def duration(seconds: float | None) -> str:
    """Coarse on purpose: a figure that changes every second would make every poll a new answer."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return gettext("< 1 s")
    if seconds < 60:
        return gettext("%(count)d s") % {"count": seconds}
    if seconds < 3600:
        return gettext("%(count)d min") % {"count": seconds // 60}
    if seconds < 48 * 3600:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": seconds // 3600, "minutes": seconds % 3600 // 60}
    return ngettext("%(count)d day", "%(count)d days", int(seconds // 86400)) % {"count": seconds // 86400}


def origin(row: Any) -> str:
    """Where the limit of a live row, or of a TenantQueue, comes from."""
    if row.override_until is not None:
        text = gettext("override until %(time)s, then %(limit)s") % {
            "time": moment(row.override_until),
            "limit": row.limit_before_override,
        }
        return f"{text} ({row.override_by})" if row.override_by else text
    if row.limit_source == LimitSource.DEFAULT:
        return gettext("default")
    if row.limit_source == LimitSource.SET:
        return gettext("set by %(name)s") % {"name": row.limit_set_by} if row.limit_set_by else gettext("set by code")
    return NOTHING


def activity_in_words(row: Row) -> str:
    return gettext("Running in the last 60 minutes: at most %(most)d, now %(now)d; limit %(limit)d") % {
        "most": max(row.activity, default=0),
        "now": row.running,
        "limit": row.max_job,
    }


def effect_of(limit: int, running: int) -> str:
    """What a limit will do, in words."""
    if limit >= running:
        return gettext("Running %(running)d, limit %(limit)d: none is stopped.") % {"running": running, "limit": limit}
    return ngettext(
        "Running %(running)d, limit %(limit)d: %(over)d will finish, none is stopped.",
        "Running %(running)d, limit %(limit)d: %(over)d will finish, none is stopped.",
        running - limit,
    ) % {"running": running, "limit": limit, "over": running - limit}


def _highest(row: Row) -> int:
    return max(1, *row.activity, *row.limits)


def _meter(row: Row) -> dict[str, str]:
    most = max(1, row.max_job, row.current_job)
    label = gettext("%(used)d of %(limit)d slots in use") % {"used": row.current_job, "limit": row.max_job}
    return {"min": "0", "max": str(most), "value": str(row.current_job), "aria-label": label}


def _edit(row: Row) -> dict[str, str]:
    return {
        "data-limit": str(row.max_job),
        "data-version": str(row.version),
        "data-running": str(row.current_job),
    }
