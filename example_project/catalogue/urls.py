from __future__ import annotations

from django.urls import path

from example_project.catalogue import partner_views, views
from tenant_slots.views import job_status

app_name = "catalogue"

urlpatterns = [
    path("", views.home, name="home"),
    path("products/", views.products, name="products"),
    path("jobs/<uuid:uuid>/", views.job, name="job"),
    path("jobs/<uuid:uuid>/status/", job_status, name="status"),
    path("jobs/<uuid:uuid>/cancel/", views.cancel, name="cancel"),
    path("partner/<str:tenant>/products/", partner_views.products, name="partner_products"),
]
