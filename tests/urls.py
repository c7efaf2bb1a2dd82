from django.contrib import admin
from django.urls import include, path

from tenant_slots.views import job_status

urlpatterns = [
    path("admin/", admin.site.urls),
    path("django-rq/", include("django_rq.urls")),
    path("jobs/<uuid:uuid>/status/", job_status, name="job_status"),
]
