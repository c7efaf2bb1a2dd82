"""Many new rows at once: the same as Django's bulk_create would store."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from tenant_slots.db import copying
from tenant_slots.models import KeptChange
from tests.factories import tenant_queue
from tests.policies import policy

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


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no policies")
@pytest.mark.django_db(transaction=True)
def test_rows_are_stored_another_way_where_policies_decide_about_them() -> None:
    row = tenant_queue()
    limit = {"tenant_queue_id": row.pk, "at": row.created_at, "what": "limit"}
    given = [{**limit, "new": str(at)} for at in range(copying.COPY_FROM)]
    with policy(KeptChange, "true") as role:
        assert copying.may_copy(KeptChange, "default"), "the control: whom no policy concerns"
        with connection.cursor() as cursor:
            cursor.execute(f"SET ROLE {role}")
        copying.insert(KeptChange, given, "default")
        assert KeptChange.objects.count() == copying.COPY_FROM


def test_nothing_is_stored_for_no_rows() -> None:
    copying.insert(KeptChange, [], "default")
    assert not KeptChange.objects.exists()
