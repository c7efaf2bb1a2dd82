"""The shop's background jobs. Both take slots of the queue ``imports``: a shop's sync waits like its imports."""

from __future__ import annotations

from typing import Any

from rq import Retry

from example_project.catalogue import imports, partner
from example_project.catalogue.models import Product, Shop
from tenant_slots import tenant_job
from tenant_slots.models import TenantJob


@tenant_job("imports", tenant="tenant_id")
def import_catalog(tenant_id: str, path: str) -> dict[str, Any]:
    """Bring a shop's products up to date with a feed.

    Args:
        tenant_id: the shop's slug.
        path: the feed, relative to the uploaded files or to the feeds that come with this project.

    Returns:
        The report: how many rows were read, written and refused, and the refused ones with line and reason.
    """
    shop, _ = Shop.objects.get_or_create(slug=tenant_id, defaults={"name": tenant_id})
    report = imports.import_feed(shop, path)
    if Product.objects.changed().filter(shop=shop).exists() and not _is_in_line(sync_catalog.tenant_task.path, shop):
        sync_catalog.enqueue(tenant_id=tenant_id)
    return report


@tenant_job("imports", tenant="tenant_id", retry=Retry(max=3, interval=[5, 30, 120]))
def sync_catalog(tenant_id: str) -> dict[str, int]:
    """Send a shop's changed products to the partner; returns how many in how many batches."""
    return partner.send_changes(Shop.objects.get(slug=tenant_id))


def _is_in_line(task: str, shop: Shop) -> bool:
    """A sync that has not begun yet will see what is committed by now; one that runs may have passed it."""
    jobs = TenantJob.objects.not_started().filter(task=task, tenant_queue__tenant=shop.slug)
    in_line: bool = jobs.exists()
    return in_line
