"""The partner: what we send it, and its side of the wire, which in this project is a view."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import quote, urljoin

from django.conf import settings
from django.utils import timezone

from example_project.catalogue.models import PartnerProduct, Product, Shop
from tenant_slots import report_progress

BATCH = 100
"""Products per request."""


def send_changes(shop: Shop) -> dict[str, int]:
    """Send the changed products of a shop; returns how many in how many batches.

    No transaction is open while the partner answers. A product that changes meanwhile counts as changed still,
    because what is noted is the digest that was sent.

    Raises:
        OSError: the partner cannot be reached or refuses a batch. Batches before it stay sent.
    """
    sent = batches = last = 0
    changed = Product.objects.changed().filter(shop=shop).order_by("pk")
    total = changed.count()
    while batch := list(changed.filter(pk__gt=last)[:BATCH]):
        post(shop.slug, [payload(product) for product in batch])
        _mark_sent(batch)
        sent, batches, last = sent + len(batch), batches + 1, batch[-1].pk
        report_progress(sent, total, products_sent=sent, batches=batches)
    return {"products_sent": sent, "batches": batches}


def payload(product: Product) -> dict[str, Any]:
    return {
        "id": product.feed_id,
        "title": product.title,
        "description": product.description,
        "link": product.link,
        "image_link": product.image_link,
        "availability": product.availability,
        "price": f"{product.price} {product.currency}",
        "brand": product.brand,
        "gtin": product.gtin,
    }


def post(tenant: str, products: list[dict[str, Any]]) -> None:
    url = urljoin(settings.PARTNER_URL, f"{quote(tenant, safe='')}/products/")
    if not url.startswith(("http://", "https://")):
        raise OSError(f"PARTNER_URL is not a web address: {settings.PARTNER_URL}")
    request = urllib.request.Request(  # noqa: S310  the scheme is checked above
        url,
        data=json.dumps({"products": products}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {settings.PARTNER_TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=settings.PARTNER_TIMEOUT) as response:  # noqa: S310
        response.read()


def receive(tenant: str, products: list[dict[str, Any]]) -> int:
    """The partner's side: store what came.

    Raises:
        KeyError, TypeError, ValueError: it is not a list of products.
    """
    now = timezone.now()
    rows = {
        str(product["id"]): PartnerProduct(tenant=tenant, feed_id=str(product["id"]), payload=product, received_at=now)
        for product in products
    }
    PartnerProduct.objects.bulk_create(
        [rows[feed_id] for feed_id in sorted(rows)],
        update_conflicts=True,
        unique_fields=["tenant", "feed_id"],
        update_fields=["payload", "received_at"],
    )
    return len(rows)


def _mark_sent(products: list[Product]) -> None:
    for product in products:
        product.synced_digest = product.digest
    Product.objects.bulk_update(products, ["synced_digest"])
