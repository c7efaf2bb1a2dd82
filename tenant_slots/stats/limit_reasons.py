"""Why a limit was set, as far as the tenant queue's changes still say so."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, CharField, OuterRef, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce

from tenant_slots.models import KeptChange, LimitSource


def reason_of_limit() -> Case:
    """Of the override, or of who has set the limit that holds now; "" for a default, and where none was given."""
    changes = KeptChange.objects.filter(tenant_queue=OuterRef("pk"), what="limit")
    of_override = changes.filter(until=OuterRef("override_until"), by=OuterRef("override_by"))
    limit = Cast(OuterRef("max_job"), CharField())
    of_limit = changes.filter(until=None, new=limit, by=OuterRef("limit_set_by"))
    return Case(
        When(override_until__isnull=False, then=_last_reason(of_override)),
        When(limit_source=LimitSource.SET, then=_last_reason(of_limit)),
        default=Value(""),
        output_field=TextField(),
    )


def _last_reason(changes: Any) -> Coalesce:
    return Coalesce(Subquery(changes.order_by("-pk").values("reason")[:1]), Value(""))
