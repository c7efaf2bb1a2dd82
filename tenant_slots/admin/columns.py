"""The columns of the live list, each a place that a poll can find again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import cells, words
from tenant_slots.admin.bases import QueueConcern
from tenant_slots.admin.pages import address
from tenant_slots.admin.words import NOTHING
from tenant_slots.models import TenantQueue
from tenant_slots.stats import rows


def time_column(field: str, description: Any) -> Callable[[Any, TenantQueue], str]:
    """A method that shows a time of the row with its zone, which Django leaves out."""

    @admin.display(description=description)
    def shown(model_admin: Any, row: TenantQueue) -> str:
        time = getattr(row, field)
        return words.moment(time) if time else NOTHING

    return shown


def column(
    place: str, description: Any, *, ordering: str | None = None, tag: str = "span", css: str = ""
) -> Callable[[Any, TenantQueue], SafeString]:
    """A method of a ModelAdmin that shows one cell."""

    @admin.display(description=description, ordering=ordering)
    def shown(model_admin: Any, row: TenantQueue) -> SafeString:
        return cell(row, place, tag, css)

    return shown


class QueueColumns(QueueConcern):
    state = column("state", _("state"), css="slots-pill")
    share_shown = column("share", _("share"), ordering="share")
    running = column("running", _("running"))
    queued = column("queued", _("next"))
    waiting = column("waiting", _("waiting"), ordering="waiting")
    oldest_wait = column("oldest", _("oldest wait"), ordering="longest_wait")
    start_delay = column("delay", _("start delay p95, 15 min"), ordering="delay_of_starts")
    worker_time = column("worker", _("worker time, 1 h"), ordering="worker_time", css="slots-number")
    failed = column("failed", _("failed, 1 h"))
    origin = column("origin", _("limit source"), tag="bdi")
    override_end = time_column("override_until", _("override until"))
    pause_end = time_column("resume_at", _("resume at"))
    created = time_column("created_at", _("created"))

    @admin.display(description=_("tenant"), ordering="tenant")
    def tenant_name(self, row: TenantQueue) -> Any:
        # <bdi> keeps the marks of a right-to-left name from turning its surroundings round.
        name, plan = words.tenant(row), getattr(row, "plan", "")
        named = format_html('<bdi class="slots-name">{}</bdi><small class="slots-queue">{}</small>', name, row.queue)
        return format_html('{} <bdi class="slots-plan">{}</bdi>', named, plan) if plan else named

    @admin.display(description=_("in use"), ordering="in_use")
    def usage(self, row: TenantQueue) -> SafeString:
        return cell(row, "meter", "meter") + SafeString(" ") + cell(row, "usage", css="slots-number")

    @admin.display(description=_("rate"))
    def rate_shown(self, row: TenantQueue) -> str:
        return str(row.rate or NOTHING)

    @admin.display(description=_("tokens of the rate"))
    def tokens(self, row: TenantQueue) -> str:
        return words.tokens(row)

    @admin.display(description=_("rest"))
    def rest(self, row: TenantQueue) -> str:
        return words.rest_now(row)

    @admin.display(description=_("last 60 minutes"))
    def activity(self, row: TenantQueue) -> SafeString:
        key = f"{row.pk}."
        return format_html(
            '<svg class="slots-spark" role="img" viewBox="0 -1 60 26" preserveAspectRatio="none" '
            'data-slots="{0}chart"{1}><polyline class="slots-limit" data-slots="{0}limit"{2}/>'
            '<polyline class="slots-ran" data-slots="{0}ran"{3}/></svg>',
            key,
            *(cells.attributes(cells_of(row)[key + place]) for place in ("chart", "limit", "ran")),
        )

    @admin.display(description=_("edit"))
    def edit(self, row: TenantQueue) -> SafeString:
        return format_html(
            '<a href="{0}" data-slots="{1}.edit" data-slots-edit="{2}" aria-label="{4}: {2}"{3}>{4}</a>',
            address(self, "limit", row.pk),
            row.pk,
            str(row),
            cells.attributes(cells_of(row)[f"{row.pk}.edit"]),
            gettext("Set limit"),
        )


def cell(row: TenantQueue, place: str, tag: str = "span", css: str = "") -> SafeString:
    return cells.html(cells_of(row), f"{row.pk}.{place}", tag, css)


def cells_of(row: Any) -> cells.Cells:
    """Once per row, for all its columns."""
    if not hasattr(row, "cells"):
        found = getattr(row, "live", None) or rows.measured([row.pk]).get(row.pk)
        row.cells = cells.of_row(found) if found else cells.of_deleted(row.pk)
    made: cells.Cells = row.cells
    return made
