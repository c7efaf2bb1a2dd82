"""The page that deletes one tenant queue is that of the action on many."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from tenant_slots.admin import actions
from tenant_slots.admin.bases import QueueConcern
from tenant_slots.admin.pages import address
from tenant_slots.admin.queue_deletion import DELETE


class Deletion(QueueConcern):
    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """It counts the jobs that go with the row, of which there may be a million, and takes a reason."""
        row = self.get_object(request, unquote(object_id))
        if not self.has_delete_permission(request, row):
            raise PermissionDenied
        if row is None:
            return super().delete_view(request, object_id, extra_context)  # which says so
        answer = actions.run(self, request, self.get_queryset(request).filter(pk=row.pk), DELETE)
        return answer or HttpResponseRedirect(address(self, "changelist"))
