"""Starting imports: the rows and the jobs belong together."""

from __future__ import annotations

from django.core.files.base import File
from django.db import transaction

from example_project.catalogue.jobs import import_catalog
from example_project.catalogue.models import Feed, Import, Shop
from tenant_slots.models import TenantJob


def upload(shop: Shop, file: File[bytes]) -> TenantJob:
    """Store a shop's file and enqueue its import."""
    with transaction.atomic():
        feed = Feed.objects.create(shop=shop, name=(file.name or "feed.csv")[-200:], file=file)
        return start_imports(shop, [(feed.name, str(feed.file.name))])[0]


def start_imports(shop: Shop, feeds: list[tuple[str, str]]) -> list[TenantJob]:
    """Enqueue the import of many feeds, given as name and path; all or none."""
    with transaction.atomic():
        rows = Import.objects.bulk_create([Import(shop=shop, name=name) for name, _ in feeds])
        jobs = import_catalog.enqueue_many(((shop.slug, path), {}) for _, path in feeds)
        for row, job in zip(rows, jobs, strict=True):
            row.job_uuid = job.uuid
        Import.objects.bulk_update(rows, ["job_uuid"], batch_size=200)
    return jobs
