"""Shops, their feeds and their products. A shop's slug is its tenant key."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F


class Shop(models.Model):
    slug = models.SlugField(max_length=50, unique=True)
    name = models.CharField(max_length=200)

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """The shop that a user works for."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="membership")
    shop = models.ForeignKey(Shop, models.CASCADE, related_name="memberships")

    def __str__(self) -> str:
        return f"{self.user} of {self.shop}"


def feed_path(feed: Feed, filename: str) -> str:
    return f"feeds/{feed.shop.slug}/{filename}"


class Feed(models.Model):
    """A file that a shop uploaded."""

    shop = models.ForeignKey(Shop, models.CASCADE, related_name="feeds")
    name = models.CharField(max_length=200, help_text="The name of the file as it was uploaded.")
    file = models.FileField(upload_to=feed_path, max_length=300)
    uploaded_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Import(models.Model):
    """What one import of a feed was called."""

    shop = models.ForeignKey(Shop, models.CASCADE, related_name="imports")
    name = models.CharField(max_length=200)
    job_uuid = models.UUIDField(
        null=True, unique=True, help_text="The TenantJob. No foreign key: jobs are pruned, imports stay."
    )

    def __str__(self) -> str:
        return self.name


class Availability(models.TextChoices):
    IN_STOCK = "in_stock", "in stock"
    OUT_OF_STOCK = "out_of_stock", "out of stock"
    PREORDER = "preorder", "preorder"
    BACKORDER = "backorder", "backorder"


class ProductQuerySet(models.QuerySet["Product"]):
    def changed(self) -> ProductQuerySet:
        """Products that the partner does not have as they are now."""
        return self.exclude(synced_digest=F("digest"))


class Product(models.Model):
    shop = models.ForeignKey(Shop, models.CASCADE, related_name="products")
    feed_id = models.CharField("id in the feed", max_length=100)
    title = models.CharField(max_length=300)
    description = models.TextField(blank=True)
    link = models.URLField(max_length=1000)
    image_link = models.URLField(max_length=1000, blank=True)
    availability = models.CharField(max_length=12, choices=Availability)
    price = models.DecimalField(max_digits=12, decimal_places=2)
    currency = models.CharField(max_length=3)
    brand = models.CharField(max_length=100, blank=True)
    gtin = models.CharField("GTIN", max_length=14, blank=True)
    condition = models.CharField(max_length=20, blank=True)
    product_type = models.CharField(max_length=300, blank=True)
    digest = models.CharField(max_length=64, editable=False)
    synced_digest = models.CharField(
        max_length=64, default="", editable=False, help_text="The digest of what the partner was last sent."
    )
    updated_at = models.DateTimeField(auto_now=True)

    objects = ProductQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["shop", "feed_id"], name="catalogue_product_unique")]

    def __str__(self) -> str:
        return self.title


class PartnerProduct(models.Model):
    """What the partner's side received. The partner knows tenants by name only."""

    tenant = models.CharField(max_length=255)
    feed_id = models.CharField(max_length=100)
    payload: models.JSONField[Any, Any] = models.JSONField()
    received_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "feed_id"], name="catalogue_partner_product_unique")]

    def __str__(self) -> str:
        return f"{self.feed_id} of {self.tenant}"
