"""The page of the history that Django's admin links to, with what the database keeps of changes by commands and code.

Django's own knows of staff alone, has each entry in the language of whoever made it, and times without a zone.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from tenant_slots.admin import audit
from tenant_slots.admin.bases import AnyConcern

MOST_LISTED = 500
"""Changes on the page, the latest ones."""


class HistoryPage(AnyConcern):
    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        response = super().history_view(request, object_id, {"media": self.media, **(extra_context or {})})
        context = getattr(response, "context_data", None)
        if context:
            lines = audit.whole_history_of(context["object"], MOST_LISTED)
            context |= {"slots_history": lines, "most": MOST_LISTED if len(lines) == MOST_LISTED else 0}
        return response
