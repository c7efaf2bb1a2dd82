from django.contrib import admin
from django.urls import include, path

from tests.theme.site import ours_first, theirs_first

urlpatterns = [
    path("admin/", admin.site.urls),
    path("ours_first/", ours_first.urls),
    path("theirs_first/", theirs_first.urls),
    path("django-rq/", include("django_rq.urls")),
]
