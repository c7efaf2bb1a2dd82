"""The live list of tenant queues: its tiles, and the JSON that its script polls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, JsonResponse
from django.urls import path

from tenant_slots import fleet
from tenant_slots.admin import cells, workers
from tenant_slots.admin.bases import QueueConcern
from tenant_slots.admin.pages import address, view_name
from tenant_slots.admin.permissions import Restricted
from tenant_slots.admin.plans import Plans
from tenant_slots.admin.polling import INTERVALS, asked_rows, clamped, conditional
from tenant_slots.admin.snapshots import (
    Board,
    measured_rows,
    seen_among,
    sees,
    shared_fleet,
    shared_queue_sight,
    shared_rows,
    shared_tiles,
    worker_time_for,
)
from tenant_slots.models import TenantQueue
from tenant_slots.stats import tiles


class LiveList(Plans, Restricted, QueueConcern):
    class Media:
        css = {"all": ("tenant_slots/admin.css",)}
        js = ("tenant_slots/admin_live.js",)

    def get_urls(self) -> list[Any]:
        poll = path("live/", self.admin_site.admin_view(self.live_view), name=view_name(self, "live"))
        return [poll, *super().get_urls()]

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
        found = shared_rows.get(shown, measured_rows)
        board = self._board_at_hand(request) if shown else self.board(request)
        texts = cells.of_tiles(*board) if board else {}
        worker_time = worker_time_for(self, request) if found else None
        for pk in shown:
            if pk in found:
                texts |= cells.of_row(found[pk], worker_time)
        return conditional(request, JsonResponse({"every": clamped(request.GET.get("every")), "cells": texts}))

    def board(self, request: HttpRequest) -> Board:
        own = self.own_tenant_queues(request)
        key = sees(own)
        return shared_tiles.get([key], lambda _: {key: _board(own)})[key]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """The page's rows with what their columns say, always fresh: whoever reloads wants to see what has changed.

        An action, which is sent here too, shows no list.
        """
        changelist = super().get_changelist_instance(request)
        if request.method == "POST":
            return changelist
        found = measured_rows([row.pk for row in changelist.result_list])
        shared_rows.put(found)
        worker_time = worker_time_for(self, request) if found else None
        plans = self.plans_of({row.tenant for row in changelist.result_list})
        for row in changelist.result_list:
            row.plan = plans.get(row.tenant, "")
            if row.pk in found:
                row.cells = cells.of_row(found[row.pk], worker_time)
        return changelist

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        texts = cells.of_tiles(*self.board(request)) if self.has_view_permission(request) else {}
        titles = cells.titles_of_tiles()
        context = {
            "slots_tiles": [(titles[key], cells.html(texts, key, "strong")) for key in texts],
            "slots_intervals": INTERVALS,
            "slots_every": INTERVALS[2],
            "slots_live_url": address(self, "live"),
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def _board_at_hand(self, request: HttpRequest) -> Board | None:
        return shared_tiles.at_hand(sees(self.own_tenant_queues(request)))

    def _rows_to_poll(self, request: HttpRequest) -> list[int]:
        return seen_among(shared_queue_sight, asked_rows(request), self.own_tenant_queues(request), _theirs)


def _theirs(pks: list[int], own: QuerySet[TenantQueue]) -> Iterable[int]:
    return own.filter(pk__in=pks).order_by().values_list("pk", flat=True)


def _board(queues: QuerySet[TenantQueue] | None) -> Board:
    known = shared_fleet.get(["all"], lambda _: {"all": fleet.known()})["all"]
    return Board(tiles.added_up(queues), None if known.unasked else known.alive, workers.deserted(known, queues))
