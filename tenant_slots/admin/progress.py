"""How the admin shows what a job reports: a bar with its numbers, and the statistics by name."""

from __future__ import annotations

from typing import Any

from django.utils.formats import localize
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext

from tenant_slots.admin.arguments import HIDDEN, is_hidden
from tenant_slots.admin.words import NOTHING
from tenant_slots.models import TenantJob

IN_A_ROW = 4
"""How many statistics the list of jobs shows of each; the page of a job shows all."""

LONGEST_IN_A_ROW = 40
"""Characters of one of them."""


def bar(job: TenantJob) -> str:
    """The numbers, and a bar where there is a total; an empty bar moves while a job runs whose total is unknown."""
    if not job.progress:
        return NOTHING
    done, total = job.progress["done"], job.progress["total"]
    if total:
        text = gettext("%(done)s of %(total)s") % {"done": localize(done), "total": localize(total)}
        return format_html(
            '<progress max="{}" value="{}" aria-label="{}"></progress> <bdi class="slots-number">{}</bdi>',
            total,
            min(done, total),
            gettext("progress"),
            text,
        )
    if total is None and not job.has_ended:
        return format_html(
            '<progress aria-label="{}"></progress> <bdi class="slots-number">{}</bdi>',
            gettext("progress"),
            localize(done),
        )
    return str(localize(done))


def statistics(job: TenantJob) -> str:
    """All of them, one a line."""
    lines = ((_title(name), _shown(name, value)) for name, value in job.stats.items())
    return format_html_join(SafeString("<br>"), "<bdi>{}</bdi>: <bdi>{}</bdi>", lines) or NOTHING


def bar_and_first_statistics(job: TenantJob) -> str:
    """For the list: short, however much a job reports."""
    first = list(job.stats.items())[:IN_A_ROW]
    texts = (Truncator(f"{_title(name)}: {_shown(name, value)}").chars(LONGEST_IN_A_ROW) for name, value in first)
    more = [("…",)] if len(job.stats) > IN_A_ROW else []
    figures = format_html_join(SafeString("<br>"), "<bdi>{}</bdi>", [*((text,) for text in texts), *more])
    shown = bar(job)
    if not figures or shown == NOTHING:
        return figures or shown
    return format_html("{}<br>{}", shown, figures)


def _title(name: str) -> str:
    return name.replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if is_hidden(name):
        return HIDDEN
    return NOTHING if value is None else str(localize(value))
