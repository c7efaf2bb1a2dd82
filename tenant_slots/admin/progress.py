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
    """The numbers, with a bar where there is one."""
    attributes, numbers = measured(job)
    if attributes is None:
        return numbers
    pairs = ((name, value) for name, value in attributes.items() if value is not None)
    shown = format_html_join("", ' {}="{}"', [*pairs, ("aria-label", gettext("progress"))])
    return format_html('<progress{}></progress> <bdi class="slots-number">{}</bdi>', shown, numbers)


def measured(job: TenantJob) -> tuple[dict[str, str | None] | None, str]:
    """The attributes of the bar, and the numbers.

    There is a bar where there is a total, and one without attributes, which moves, while a job runs whose total is
    unknown.
    """
    if not job.progress:
        return None, NOTHING
    done, total = job.progress["done"], job.progress["total"]
    if total:
        text = gettext("%(done)s of %(total)s") % {"done": localize(done), "total": localize(total)}
        return {"max": str(total), "value": str(min(done, total))}, text
    return ({"max": None, "value": None} if total is None and not job.has_ended else None), str(localize(done))


def statistics(job: TenantJob) -> str:
    """All of them, one a line."""
    lines = ((_title(name), _shown(name, value)) for name, value in job.stats.items())
    return format_html_join(SafeString("<br>"), "<bdi>{}</bdi>: <bdi>{}</bdi>", lines) or NOTHING


def first_statistics(job: TenantJob) -> list[str]:
    """For the list: short, however much a job reports."""
    first = list(job.stats.items())[:IN_A_ROW]
    texts = [Truncator(f"{_title(name)}: {_shown(name, value)}").chars(LONGEST_IN_A_ROW) for name, value in first]
    return [*texts, "…"] if len(job.stats) > IN_A_ROW else texts


def _title(name: str) -> str:
    return name.replace("_", " ")


def _shown(name: str, value: Any) -> str:
    if is_hidden(name):
        return HIDDEN
    return NOTHING if value is None else str(localize(value))
