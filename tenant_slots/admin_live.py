"""The live list of tenant queues: its columns, tiles, filters, and the JSON that its script polls."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path, reverse
from django.utils.cache import get_conditional_response
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from tenant_slots import admin_cells, dispatch
from tenant_slots.admin_lists import Restricted
from tenant_slots.admin_words import STATES
from tenant_slots.models import TenantQueue
from tenant_slots.snapshots import Shared
from tenant_slots.stats import rows, tiles
from tenant_slots.stats.states import with_state

if TYPE_CHECKING:
    Base = admin.ModelAdmin[TenantQueue]
else:
    Base = object

INTERVALS = (0, 2, 5, 15, 30)
"""Seconds between two polls that a viewer may choose; 0 is off."""

SHORTEST_INTERVAL = 2

MOST_ROWS = 500
"""Rows that one poll may ask for."""


class Board(NamedTuple):
    """What stands above the list. The number of workers is None where Redis cannot be asked."""

    tiles: tiles.Tiles
    workers: int | None


shared_rows: Shared[int, rows.Row] = Shared(seconds=1)
shared_tiles: Shared[str, Board] = Shared(seconds=5)
"""Longer, because adding up all waiting jobs takes as long as a page of rows, and a sum moves little in that time."""


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state.value, name) for state, name in STATES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return with_state(queryset).filter(state=self.value()) if self.value() else queryset


class QueueFilter(admin.SimpleListFilter):
    """The queues of the settings, as asking all rows for theirs takes a query that grows with them."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in getattr(settings, "RQ_QUEUES", {})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(queue=self.value()) if self.value() else queryset


class LiveList(Restricted, Base):
    """For a ModelAdmin of TenantQueue."""

    class Media:
        css = {"all": ("tenant_slots/admin.css",)}
        js = ("tenant_slots/admin_live.js",)

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_live"
        return [path("live/", self.admin_site.admin_view(self.live_view), name=name), *super().get_urls()]

    def live_view(self, request: HttpRequest) -> HttpResponse:
        """The figures of the rows on a page, shared with whoever else looks at them in this second.

        With the tiles, where they are at hand; who asks for no rows gets the tiles in any case. So no poll is held up
        by both sums.
        """
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if not self.has_view_permission(request):
            raise PermissionDenied
        shown = self._rows_to_poll(request)
        found = shared_rows.get(shown, rows.measured)
        board = self._board_at_hand(request) if shown else self.board(request)
        cells = admin_cells.of_tiles(*board) if board else {}
        for pk in shown:
            if pk in found:
                cells |= admin_cells.of_row(found[pk])
        return _conditional(request, JsonResponse({"every": clamped(request.GET.get("every")), "cells": cells}))

    def board(self, request: HttpRequest) -> Board:
        own = self.tenant_queues_for(request)
        if own is not None:
            return _board(own)
        return shared_tiles.get(["all"], lambda _: {"all": _board()})["all"]

    def _board_at_hand(self, request: HttpRequest) -> Board | None:
        return shared_tiles.at_hand("all") if self.tenant_queues_for(request) is None else None

    def _rows_to_poll(self, request: HttpRequest) -> list[int]:
        asked = [int(pk) for pk in request.GET.get("rows", "").split(",") if pk.isdecimal() and len(pk) < 19]
        asked = asked[:MOST_ROWS]
        own = self.tenant_queues_for(request)
        return asked if own is None else list(own.filter(pk__in=asked).values_list("pk", flat=True))

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The page's rows with what is `live` of them, always fresh: who reloads wants to see what has changed."""
        changelist = super().get_changelist_instance(request)
        found = rows.measured([row.pk for row in changelist.result_list])
        shared_rows.put(found)
        for row in changelist.result_list:
            row.live = found.get(row.pk)
        return changelist

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        cells = admin_cells.of_tiles(*self.board(request)) if self.has_view_permission(request) else {}
        titles = admin_cells.titles_of_tiles()
        name = f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_live"
        context = {
            "slots_tiles": [(titles[key], admin_cells.html(cells, key, "strong")) for key in cells],
            "slots_intervals": INTERVALS,
            "slots_live_url": reverse(name),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    @admin.display(description=_("tenant"), ordering="tenant")
    def tenant_name(self, row: TenantQueue) -> Any:
        # <bdi> keeps the marks of a right-to-left name from turning its surroundings round.
        name = row.tenant or _("no tenant")
        return format_html('<bdi class="slots-name">{}</bdi><small class="slots-queue">{}</small>', name, row.queue)

    @admin.display(description=_("state"))
    def state(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "state", css="slots-pill")

    @admin.display(description=_("in use"), ordering="current_job")
    def usage(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "meter", "meter") + SafeString(" ") + self._cell(row, "usage", css="slots-number")

    @admin.display(description=_("running"))
    def running(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "running")

    @admin.display(description=_("queued"))
    def queued(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "queued")

    @admin.display(description=_("waiting"), ordering="waiting")
    def waiting(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "waiting")

    @admin.display(description=_("oldest wait"))
    def oldest_wait(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "oldest")

    @admin.display(description=_("start delay p95, 15 min"))
    def start_delay(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "delay")

    @admin.display(description=_("failed, 1 h"))
    def failed(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "failed")

    @admin.display(description=_("last 60 minutes"))
    def activity(self, row: TenantQueue) -> SafeString:
        cells, key = self._cells(row), f"{row.pk}."
        return format_html(
            '<svg class="slots-spark" role="img" viewBox="0 -1 60 26" preserveAspectRatio="none" '
            'data-slots="{0}chart"{1}><polyline class="slots-limit" data-slots="{0}limit"{2}/>'
            '<polyline class="slots-ran" data-slots="{0}ran"{3}/></svg>',
            key,
            *(admin_cells.attributes(cells[key + place]) for place in ("chart", "limit", "ran")),
        )

    @admin.display(description=_("limit from"))
    def origin(self, row: TenantQueue) -> SafeString:
        return self._cell(row, "origin", "bdi")

    def _cell(self, row: TenantQueue, place: str, tag: str = "span", css: str = "") -> SafeString:
        return admin_cells.html(self._cells(row), f"{row.pk}.{place}", tag, css)

    def _cells(self, row: Any) -> admin_cells.Cells:
        """Once per row, for all its columns."""
        if not hasattr(row, "cells"):
            found = getattr(row, "live", None) or rows.measured([row.pk])[row.pk]
            row.cells = admin_cells.of_row(found)
        cells: admin_cells.Cells = row.cells
        return cells


def forget_shared() -> None:
    """After a change by a viewer, who wants to see it at once."""
    shared_rows.clear()
    shared_tiles.clear()


def _board(queues: QuerySet[TenantQueue] | None = None) -> Board:
    return Board(tiles.added_up(queues), dispatch.workers_alive())


def clamped(asked: str | None) -> int:
    """The interval that a poll may really have."""
    seconds = int(asked) if asked and asked.isdecimal() and len(asked) < 6 else INTERVALS[2]
    return max(SHORTEST_INTERVAL, seconds)


def _conditional(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """304 when the viewer has this answer already."""
    etag = f'"{hashlib.sha256(response.content).hexdigest()[:32]}"'
    answer = get_conditional_response(request, etag=etag, response=response) or response
    answer.headers["ETag"] = etag
    return answer
