"""Many new rows at once: the same as Django's bulk_create would store."""

from __future__ import annotations

from typing import Any

import pytest

from tenant_slots.db import copying
from tenant_slots.models import KeptChange
from tests.factories import tenant_queue

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("number", [1, copying.COPY_FROM - 1, copying.COPY_FROM, 50])
def test_rows_come_back_as_they_were_given(number: int) -> None:
    row = tenant_queue()
    texts = ["plain", "tab\tline\nfeed\\N", "\\N", "", "“ü”"]
    given: list[dict[str, Any]] = [
        {
            "tenant_queue_id": row.pk,
            "at": row.created_at,
            "what": "limit",
            "old": None if at % 2 else "1",
            "new": str(at),
            "until": None,
            "by": "boss",
            "reason": texts[at % len(texts)],
        }
        for at in range(number)
    ]
    copying.insert(KeptChange, given, "default")
    stored = KeptChange.objects.order_by("pk").values(*given[0])
    assert list(stored) == given


def test_nothing_is_stored_for_no_rows() -> None:
    copying.insert(KeptChange, [], "default")
    assert not KeptChange.objects.exists()
