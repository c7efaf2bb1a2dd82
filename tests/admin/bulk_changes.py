"""Bulk changes as staff make them: confirmed in the admin, carried out by a worker, read on their page."""

from __future__ import annotations

from html import unescape
from typing import Any

from django.test import Client
from django.urls import reverse

from tenant_slots.admin.bulk.run import outcomes, run_bulk_change
from tenant_slots.db.transactions import waiting_at_most
from tenant_slots.models import BulkChange, TenantJob, TenantQueue
from tests.admin.site import asked
from tests.factories import tenant_queue, waiting_job, work


def many_queues(number: int, **values: Any) -> list[TenantQueue]:
    return [tenant_queue(f"tenant {at:03}", **values) for at in range(number)]


def many_jobs(row: TenantQueue, number: int, **values: Any) -> list[TenantJob]:
    return [waiting_job(row, **values) for _ in range(number)]


def confirm(client: Client, url: str, action: str, rows: list[Any], **data: Any) -> Any:
    """The answer to the page in between, which is not followed."""
    _, sent = asked(client, url, action, *rows)
    return client.post(url, {**sent, **data})


def started(client: Client, url: str, action: str, rows: list[Any], **data: Any) -> BulkChange:
    """A bulk change that a worker has still to carry out."""
    response = confirm(client, url, action, rows, **data)
    change = BulkChange.objects.latest("pk")
    assert response.status_code == 302
    assert response["Location"] == page_of(change)
    return change


def carried_out(change: BulkChange, *queues: str) -> BulkChange:
    work(*queues)
    change.refresh_from_db()
    assert change.ended_at is not None, TenantJob.objects.get(uuid=change.job).error
    assert not change.chunks.exists()
    return change


def run_impatiently(change: BulkChange) -> None:
    """Without a worker, and without waiting for whoever holds a row."""
    with waiting_at_most(0.1):
        run_bulk_change(change.pk)


def page_of(change: BulkChange, page: str = "bulk_change") -> str:
    model = change.model.partition(".")[2]
    return reverse(f"admin:tenant_slots_{model}_{page}", args=[change.pk])


def report_of(client: Client, change: BulkChange) -> list[str]:
    """The lines of the report that say something, and its state first."""
    answer = client.get(page_of(change, "bulk_live"))
    cells = answer.json()["cells"]
    lines = [cell["text"] for place, cell in cells.items() if place.startswith("bulk.line.") and cell["text"]]
    return [cells["bulk.state"]["text"], cells["bulk.numbers"]["text"], *lines]


def problems_of(client: Client, change: BulkChange) -> str:
    return str(client.get(page_of(change, "bulk_live")).json()["cells"]["bulk.problems"]["text"])


def came_of(change: BulkChange) -> dict[str, int]:
    return dict(outcomes(BulkChange.objects.get(pk=change.pk)))


def text_of(response: Any) -> str:
    return unescape(response.content.decode())
