from __future__ import annotations

from django.contrib import admin

from example_project.catalogue.models import Feed, Import, Membership, PartnerProduct, Product, Shop


class MembershipInline(admin.TabularInline):  # type: ignore[type-arg]
    model = Membership
    extra = 0


@admin.register(Shop)
class ShopAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "slug"]
    search_fields = ["name", "slug"]
    prepopulated_fields = {"slug": ["name"]}
    inlines = [MembershipInline]


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["title", "shop", "price", "currency", "availability", "updated_at"]
    list_filter = ["shop", "availability"]
    list_select_related = ["shop"]
    search_fields = ["title", "feed_id", "gtin"]


@admin.register(Feed)
class FeedAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "shop", "uploaded_at"]
    list_filter = ["shop"]
    list_select_related = ["shop"]


@admin.register(Import)
class ImportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["name", "shop", "job_uuid"]
    list_filter = ["shop"]
    list_select_related = ["shop"]


@admin.register(PartnerProduct)
class PartnerProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ["feed_id", "tenant", "received_at"]
    list_filter = ["tenant"]
    search_fields = ["feed_id"]
