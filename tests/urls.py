from django.contrib import admin
from django.urls import include, path

from tenant_slots.contrib.prometheus import metrics
from tenant_slots.views import autoscaling, health, job_status
from tests.theme.site import ours_first, theirs_first

urlpatterns = [
    path("admin/", admin.site.urls),
    path("ours_first/", ours_first.urls),
    path("theirs_first/", theirs_first.urls),
    path("django-rq/", include("django_rq.urls")),
    path("jobs/<uuid:uuid>/status/", job_status, name="job_status"),
    path("health/", health, name="health"),
    path("autoscaling/", autoscaling, name="autoscaling"),
    path("metrics/", metrics, name="metrics"),
]
