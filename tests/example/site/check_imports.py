"""Imports bring the products up to date, and changes reach the partner over HTTP."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.test import Client

from example_project.catalogue import partner
from example_project.catalogue.feeds import UnreadableFeed
from example_project.catalogue.jobs import import_catalog, sync_catalog
from example_project.catalogue.models import PartnerProduct, Product, Shop
from tenant_slots.models import TenantJob
from tenant_slots.running.progress import reporting

pytestmark = pytest.mark.django_db

HEADER = "id,title,link,availability,price\n"


def write_feed(directory: str | Path, name: str, *rows: str) -> str:
    path = Path(directory) / name
    path.write_text(HEADER + "\n".join(rows))
    return str(path)


def row(number: int, price: str = "12.00 EUR") -> str:
    return f"A{number},Lamp {number},https://shop.example/{number},in stock,{price}"


def test_a_shipped_feed_becomes_products_and_a_report() -> None:
    report = import_catalog("acme", path="garden_tools.csv")
    assert (report["rows_read"], report["rows_written"], report["rows_refused"]) == (230, 222, 8)
    assert report["refused"][1] == {"line": 49, "reason": "id is missing"}
    assert Product.objects.filter(shop__slug="acme").count() == 222


def test_a_second_import_updates_and_does_not_duplicate(tmp_path: Path) -> None:
    import_catalog("acme", path=write_feed(tmp_path, "a.csv", row(1), row(2)))
    import_catalog("acme", path=write_feed(tmp_path, "b.csv", row(2, "9.50 EUR"), row(3)))
    prices = dict(Product.objects.values_list("feed_id", "price"))
    assert prices == {"A1": Decimal("12.00"), "A2": Decimal("9.50"), "A3": Decimal("12.00")}


def test_two_shops_may_use_the_same_ids(tmp_path: Path) -> None:
    path = write_feed(tmp_path, "a.csv", row(1))
    import_catalog("acme", path=path)
    import_catalog("other", path=path)
    assert Product.objects.filter(feed_id="A1").count() == 2


def test_progress_ends_at_all_rows(acme: Shop) -> None:
    with reporting(TenantJob(pk=0, attempt=1)) as reporter:
        import_catalog("acme", path="garden_tools.csv")
        assert reporter.end() == {
            "progress": {"done": 230, "total": 230},
            "stats": {"rows_read": 230, "rows_written": 222, "rows_refused": 8},
        }


def test_a_file_that_is_not_a_feed_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\0\0")
    with pytest.raises(UnreadableFeed, match="not text"):
        import_catalog("acme", path=str(path))
    assert not Product.objects.exists()


def test_imports_enqueue_one_sync_between_them(django_capture_on_commit_callbacks: Any) -> None:
    import_catalog("acme", path="books.csv")
    import_catalog("acme", path="coffee.csv")
    assert [job.task for job in TenantJob.objects.all()] == [sync_catalog.tenant_task.path]


@pytest.mark.django_db(transaction=True)
def test_only_changes_are_sent_and_in_batches(live_server: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "PARTNER_URL", f"{live_server.url}/partner/")
    monkeypatch.setattr(partner, "BATCH", 2)
    import_catalog("acme", path=write_feed(tmp_path, "a.csv", *map(row, range(5))))
    assert sync_catalog("acme") == {"products_sent": 5, "batches": 3}
    assert PartnerProduct.objects.filter(tenant="acme").count() == 5
    assert sync_catalog("acme") == {"products_sent": 0, "batches": 0}
    import_catalog("acme", path=write_feed(tmp_path, "b.csv", row(1), row(3, "8.00 EUR")))
    assert sync_catalog("acme") == {"products_sent": 1, "batches": 1}
    assert PartnerProduct.objects.get(feed_id="A3").payload["price"] == "8.00 EUR"


def test_a_change_while_the_partner_answers_is_not_lost(monkeypatch: Any, tmp_path: Path) -> None:
    import_catalog("acme", path=write_feed(tmp_path, "a.csv", row(1)))

    def post(tenant: str, products: object) -> None:
        import_catalog("acme", path=write_feed(tmp_path, "b.csv", row(1, "8.00 EUR")))

    monkeypatch.setattr(partner, "post", post)
    sync_catalog("acme")
    assert [product.feed_id for product in Product.objects.changed()] == ["A1"]


@pytest.mark.parametrize(
    ("token", "body", "status"),
    [("wrong", '{"products": []}', 401), ("", "[", 400), ("", '{"products": [1]}', 400), ("", '{"products": []}', 200)],
)
def test_the_partner_takes_only_batches_with_its_token(token: str, body: str, status: int) -> None:
    response = Client(enforce_csrf_checks=True).post(
        "/partner/acme/products/",
        body,
        content_type="application/json",
        headers={"Authorization": f"Bearer {token or settings.PARTNER_TOKEN}"},
    )
    assert response.status_code == status


def test_the_example_has_no_missing_migration() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
