"""Rows as CSV, streamed."""

from __future__ import annotations

import csv
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote_plus

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import QuerySet
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext_lazy as _

from tenant_slots.admin import audit
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.stats import rows

QUEUE_FIELDS = (
    "tenant", "queue", "state", "current_job", "max_job", "share", "rate", "running", "queued", "waiting",
    "oldest_wait", "start_delay", "worker_seconds", "failed", "paused", "limit_source",
    "limit_set_by", "limit_reason", "override_until", "override_by", "limit_before_override", "resume_at",
    "rests_until", "rest_reason",
)  # fmt: skip

JOB_FIELDS = (
    "uuid", "task", "tenant_queue__tenant", "tenant_queue__queue", "state", "attempt", "failures", "crashes",
    "interruptions", "deferrals", "priority", "enqueued_at", "run_after", "admitted_at", "started_at", "ended_at",
    "worker",
)  # fmt: skip
"""Neither arguments nor results nor errors: a file leaves the reach of permissions."""

ROWS_AT_ONCE = 500

FORMULA = re.compile(r"(?:^|(?<=[;\n])|(?<=\r)(?!\n))(?=\s*[=+\-@\t\r])")
"""Where one begins: in the text, in a part of it that a spreadsheet with semicolons splits off, or in a line of it."""

Lines = Callable[[QuerySet[Any]], Iterator[Any]]
Plans = Callable[[Collection[str]], Mapping[str, str]]


class Echo:
    """A file that hands back what is written to it."""

    def write(self, text: str) -> str:
        return text


def stream(
    model_admin: Any, request: HttpRequest, fields: tuple[str, ...], objects: QuerySet[Any], lines: Lines
) -> StreamingHttpResponse:
    """The objects as CSV, and an entry that says who has taken how many of which.

    Raises:
        PermissionDenied: the viewer may not export.
    """
    if not model_admin.has_export_permission(request):
        raise PermissionDenied
    query = unquote_plus(request.META.get("QUERY_STRING", ""))
    audit.note_all(model_admin, request, _("exported as CSV"), str(objects.order_by().count()), query)
    writer = csv.writer(Echo(), quoting=csv.QUOTE_ALL)
    texts = (writer.writerow(list(map(harmless, line))) for line in chain([fields], lines(objects)))
    content = _awaitable(texts) if isinstance(request, ASGIRequest) else texts
    name = model_admin.opts.model_name
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return StreamingHttpResponse(content, content_type="text/csv; charset=utf-8", headers=headers)


async def _awaitable(texts: Iterator[str]) -> AsyncIterator[str]:
    """Some lines at once: of what cannot be awaited Django makes a list of all of them."""
    while part := await sync_to_async(_joined)(texts):
        yield part


def _joined(texts: Iterator[str]) -> str:
    return "".join(islice(texts, ROWS_AT_ONCE))


def queue_lines(queues: QuerySet[TenantQueue], plans_of: Plans) -> Iterator[list[Any]]:
    """`QUEUE_FIELDS` and the plan. Read part by part: ten thousand at once would be a load of memory."""
    pks = list(queues.order_by("tenant", "queue").values_list("pk", flat=True))
    for start in range(0, len(pks), ROWS_AT_ONCE):
        part = pks[start : start + ROWS_AT_ONCE]
        found, measured = TenantQueue.objects.in_bulk(part), rows.measured(part)
        plans = plans_of({row.tenant for row in found.values()})
        for pk in part:
            if (row := found.get(pk)) and (live := measured.get(pk)):
                figures = (getattr(live, name) if hasattr(live, name) else getattr(row, name) for name in QUEUE_FIELDS)
                yield [*figures, plans.get(row.tenant, "")]


def job_lines(jobs: QuerySet[TenantJob]) -> Iterator[Any]:
    """`JOB_FIELDS`, of the latest first. Read part by part and not by a cursor: behind a pooler there is none, and
    Django then fetches a million before the first line.
    """
    left = jobs
    while part := list(left.order_by("-pk").values_list(*JOB_FIELDS, "pk")[:ROWS_AT_ONCE]):
        yield from (line[:-1] for line in part)
        left = jobs.filter(pk__lt=part[-1][-1])


def harmless(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe before it, wherever it might begin a cell."""
    if isinstance(value, str):
        return FORMULA.sub("'", value)
    return "" if value is None else value
