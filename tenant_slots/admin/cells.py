"""What the live list says in each place: one text and some attributes per key, for the page and for each poll alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from tenant_slots.admin import charts
from tenant_slots.admin.forms import as_typed
from tenant_slots.admin.words import NOTHING, activity_in_words, duration, origin, origin_and_reason, part_of, state
from tenant_slots.stats.rows import Row
from tenant_slots.stats.tiles import Tiles
from tenant_slots.stats.worker_time import WorkerTime


class Cell(TypedDict, total=False):
    text: str
    attrs: Mapping[str, str | None]
    """None takes an attribute away."""


Cells = dict[str, Cell]

PLACES = (
    "state", "usage", "meter", "share", "running", "queued", "waiting", "oldest", "delay", "worker", "failed", "chart",
    "ran", "limit", "origin", "edit",
)  # fmt: skip
"""Of a row."""


def of_row(row: Row, worker_time: WorkerTime | None = None) -> Cells:
    """By ``<primary key>.<place>``.

    Args:
        worker_time: of all tenants; None for a viewer who is not to learn of others.
    """
    places: Cells = {
        "state": {"text": state(row), "attrs": {"data-state": row.state}},
        "usage": {"text": f"{row.running} / {row.max_job}"},
        "meter": {"attrs": _meter(row)},
        "share": {"text": str(row.share)},
        "running": {"text": str(row.running)},
        "queued": {"text": str(row.queued)},
        "waiting": {"text": str(row.waiting)},
        "oldest": {"text": duration(row.oldest_wait)},
        "delay": {"text": duration(row.start_delay)},
        "worker": {"text": _worker_time(row, worker_time)},
        "failed": {"text": str(row.failed)},
        "chart": {"attrs": {"aria-label": activity_in_words(row)}},
        "ran": {"attrs": {"points": charts.line(row.activity, _highest(row))}},
        "limit": {"attrs": {"points": charts.steps(row.limits, _highest(row))}},
        "origin": {"text": origin_and_reason(row)},
        "edit": {"attrs": _edit(row)},
    }
    return {f"{row.pk}.{place}": cell for place, cell in places.items()}


def of_deleted(pk: int) -> Cells:
    """As `of_row`, of a row that is gone since the list was read."""
    places: Cells = {place: {} for place in PLACES}
    places["state"] = {"text": gettext("Deleted"), "attrs": {"data-state": "deleted"}}
    return {f"{pk}.{place}": cell for place, cell in places.items()}


def of_tiles(tiles: Tiles, workers: int | None, deserted: Sequence[str] = ()) -> Cells:
    """By ``tile.<name>``. See `snapshots.Board`."""
    return {
        "tile.running": {
            "text": f"{tiles.running} / {NOTHING if workers is None else workers}",
            "attrs": {"data-alarm": "no" if workers else "yes"},
        },
        "tile.waiting": {"text": str(tiles.waiting)},
        "tile.oldest": {"text": duration(tiles.oldest_wait)},
        "tile.at_limit": {"text": str(tiles.at_limit)},
        "tile.stale": {"text": str(tiles.stale), "attrs": {"data-alarm": "yes" if tiles.stale else "no"}},
        "tile.deserted": {
            "text": ", ".join(deserted) or NOTHING,
            "attrs": {"data-alarm": "yes" if deserted else "no"},
        },
    }


def titles_of_tiles() -> dict[str, str]:
    return {
        "tile.running": gettext("Running / workers alive"),
        "tile.waiting": gettext("Waiting"),
        "tile.oldest": gettext("Oldest wait"),
        "tile.at_limit": gettext("Tenant queues at limit"),
        "tile.stale": gettext("Stale owners"),
        "tile.deserted": gettext("Queues without a worker"),
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
    pairs = [(name, value) for name, value in cell.get("attrs", {}).items() if value is not None]
    return format_html_join("", ' {}="{}"', pairs)


def _worker_time(row: Row, of_all: WorkerTime | None) -> str:
    """A part is one of the same look at all: what the row knows itself may be newer, and parts would not add up."""
    if of_all is None:
        return duration(row.worker_seconds) if row.worker_seconds else NOTHING
    return part_of(of_all.of_rows.get(row.pk, 0.0), of_all.of_queues.get(row.queue, 0.0))


def _highest(row: Row) -> int:
    return max([1, *row.activity, *row.limits])


def _meter(row: Row) -> dict[str, str]:
    most = max(1, row.max_job, row.running)
    label = gettext("%(used)d of %(limit)d slots in use") % {"used": row.running, "limit": row.max_job}
    return {"min": "0", "max": str(most), "value": str(row.running), "aria-label": label}


def _edit(row: Row) -> dict[str, str]:
    return {
        "data-limit": str(row.max_job),
        "data-share": str(row.share),
        "data-version": str(row.version),
        "data-running": str(row.running),
        "data-until": as_typed(row.override_until),
        "data-override": origin(row) if row.override_until else "",
    }
