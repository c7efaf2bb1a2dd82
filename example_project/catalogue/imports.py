"""Importing a feed: read, validate, write in batches, and tell how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from example_project.catalogue import feeds
from example_project.catalogue.models import Product, Shop
from example_project.catalogue.validation import Item
from tenant_slots import report_progress

BATCH = 250
"""Rows per transaction: long enough to be cheap, short enough that nobody waits long for SQLite's write lock."""

MOST_REFUSALS = 200
"""How many refused rows a report lists; it counts all."""

WRITTEN = [field.name for field in fields(Item) if field.name != "feed_id"] + ["digest", "updated_at"]


def import_feed(shop: Shop, path: str) -> dict[str, Any]:
    """Upsert every valid row of a feed; returns the report.

    Raises:
        UnreadableFeed: the file as a whole is no feed; nothing was written.
        FileNotFoundError: there is no such file.
    """
    feed = feeds.parse(find(path).read_bytes())
    written = 0
    _tell(feed, written)
    for batch in _batches(feed.items):
        with transaction.atomic():
            write(shop, batch)
        written += len(batch)
        _tell(feed, written)
    return _report(feed)


def find(path: str) -> Path:
    """The feed of a path: an uploaded one, else one that comes with the project."""
    for directory in (Path(settings.MEDIA_ROOT), feeds.SHIPPED):
        if (directory / path).is_file():
            return directory / path
    raise FileNotFoundError(f"there is no feed {path!r}")


def write(shop: Shop, items: list[Item]) -> None:
    """Insert new products and update known ones. Sorted, so that two imports lock rows in one order."""
    now = timezone.now()
    products = [
        Product(shop=shop, digest=item.digest, updated_at=now, **asdict(item))
        for item in sorted(items, key=lambda item: item.feed_id)
    ]
    Product.objects.bulk_create(
        products, update_conflicts=True, unique_fields=["shop", "feed_id"], update_fields=WRITTEN
    )


def _batches(items: list[Item]) -> Iterator[list[Item]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def _tell(feed: feeds.ParsedFeed, written: int) -> None:
    refused = len(feed.refusals)
    report_progress(written + refused, feed.rows, rows_read=feed.rows, rows_written=written, rows_refused=refused)


def _report(feed: feeds.ParsedFeed) -> dict[str, Any]:
    return {
        "rows_read": feed.rows,
        "rows_written": len(feed.items),
        "rows_refused": len(feed.refusals),
        "refused": [asdict(refusal) for refusal in feed.refusals[:MOST_REFUSALS]],
        "encoding": feed.encoding,
        "delimiter": feed.delimiter,
    }
