"""A tenant queue is deleted with its ended jobs, and never while it has others."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from tenant_slots.admin.bases import QueueConcern
from tenant_slots.admin.pages import address
from tenant_slots.exceptions import TenantQueueInUse
from tenant_slots.models import TenantJob


class Deletion(QueueConcern):
    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Counts the jobs that go with their row instead of listing them: there may be a million."""
        jobs = TenantJob.objects.filter(tenant_queue__in=[row.pk for row in objs]).count()
        counts = {self.opts.verbose_name_plural: len(objs), TenantJob._meta.verbose_name_plural: jobs}
        lacking = {str(self.opts.verbose_name) for row in objs if not self.has_delete_permission(request, row)}
        return [str(row) for row in objs], counts, lacking, []

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        try:
            return super().delete_view(request, object_id, extra_context)
        except TenantQueueInUse as error:
            self.message_user(request, in_use(error), messages.ERROR)
            return HttpResponseRedirect(address(self, "change", object_id))


def in_use(error: TenantQueueInUse) -> str:
    """The error in the viewer's language."""
    return gettext(
        "%(row)s cannot be deleted: %(holding)s jobs hold its slots and %(waiting)s wait. Let them end first."
    ) % {"row": error.tenant_queue, "holding": error.holding, "waiting": error.waiting}
