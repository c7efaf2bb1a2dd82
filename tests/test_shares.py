"""The share of a tenant queue: who may have which, what a new row gets, and who is told of a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import override_settings

from tenant_slots import fair_order, signals, tenants
from tenant_slots.exceptions import InvalidSetting, InvalidShare, StaleVersion
from tenant_slots.fair_order import Turn
from tenant_slots.models import Change, State, TenantQueue
from tests import jobs
from tests.factories import fresh, redis_forgets, tenant_queue, waiting_job
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


def share_of(tenant: str, queue: str) -> Any:
    assert tenant, "a project's callable is not asked for calls without a tenant"
    return {"big": 7, "odd": "many"}.get(tenant, 2)


def test_a_change_is_stored_versioned_and_told() -> None:
    row, told = tenant_queue(), []

    def receive(*, change: Change, **_: Any) -> None:
        told.append(change)

    signals.limit_changed.connect(receive)
    try:
        assert row.set_share(5, by="anna", reason="gold", version=0) == [Change("share", 1, 5, "anna", "gold", None)]
        assert row.set_share(5) == []
    finally:
        signals.limit_changed.disconnect(receive)
    assert told == [Change("share", 1, 5, "anna", "gold", None)]
    assert (row.share, fresh(row).share, row.version, row.limit_set_by) == (5, 5, 1, "")


def test_a_change_by_somebody_who_has_not_seen_the_last_one_is_refused() -> None:
    row = tenant_queue()
    row.set_limit(4)
    with pytest.raises(StaleVersion):
        row.set_share(5, version=0)
    assert fresh(row).share == 1


@pytest.mark.parametrize("value", [0, -1, 1001, True, "2", 1.5, None])
def test_a_share_is_a_whole_number_from_1_to_1000(value: Any) -> None:
    row = tenant_queue()
    with pytest.raises(InvalidShare, match="on queue 'imports': give an integer from 1 to 1000"):
        row.set_share(value)
    assert fresh(row).version == 0


@pytest.mark.parametrize("share", [0, 1001])
def test_the_database_refuses_another_share(share: int) -> None:
    row = tenant_queue()
    with pytest.raises(IntegrityError), transaction.atomic():
        TenantQueue.objects.filter(pk=row.pk).update(share=share)
    assert TenantQueue.objects.filter(pk=row.pk).update(share=1000) == 1


def test_a_row_that_was_inserted_with_sql_has_share_1() -> None:
    table = connection.ops.quote_name(TenantQueue._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (tenant, queue, max_job, current_job, paused, created_at)"  # noqa: S608 - our table
            " VALUES ('acme', 'imports', 7, 0, %s, CURRENT_TIMESTAMP)",
            [False],
        )
    assert TenantQueue.objects.get().share == 1


def test_a_change_of_the_share_offers_the_free_slots() -> None:
    row = tenant_queue(max_job=1)
    job = waiting_job(row)
    row.set_share(2)
    assert fresh(job).state == State.QUEUED


@pytest.mark.parametrize(
    ("default", "expected"), [(5, 5), ({"reports": 4}, 1), ({"imports": 4}, 4), ("tests.test_shares.share_of", 7)]
)
def test_a_new_row_gets_a_number_or_one_per_queue_or_a_callables_answer(default: Any, expected: int) -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_SHARE": default}):
        assert tenants.tenant_queue_for("big", "imports").share == expected
    assert tenants.tenant_queue_for("later", "imports").share == 1


def test_calls_without_a_tenant_have_the_share_of_all_but_no_callables() -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_SHARE": 9}):
        assert tenants.tenant_queue_for(tenants.NO_TENANT, "imports").share == 9
    with override_settings(TENANT_SLOTS={"DEFAULT_SHARE": "tests.test_shares.share_of"}):
        assert tenants.tenant_queue_for(tenants.NO_TENANT, "reports").share == 1


def test_a_callable_that_gives_no_share_or_is_not_there_is_named_and_no_row_is_made() -> None:
    odd = override_settings(TENANT_SLOTS={"DEFAULT_SHARE": "tests.test_shares.share_of"})
    with odd, pytest.raises(InvalidShare, match="'many'"):
        tenants.tenant_queue_for("odd", "imports")
    missing = override_settings(TENANT_SLOTS={"DEFAULT_SHARE": "tests.nowhere.share"})
    with missing, pytest.raises(InvalidSetting, match="DEFAULT_SHARE"):
        tenants.tenant_queue_for("acme", "imports")
    assert not TenantQueue.objects.exists()


def turns_of(number: int) -> Counter[int]:
    """Whose turn it is so many times, where no job has ended yet."""
    found = (fair_order.take("rq:worker:one of ours", ["imports"], waits=False)[0] for _ in range(number))
    return Counter(turn.tenant_queue_id for turn in found if isinstance(turn, Turn))


def by_enqueue(big: TenantQueue, small: TenantQueue) -> None:
    big.set_share(3)
    redis_forgets()
    jobs.fail.enqueue_many([((row.tenant, "feed"), {}) for row in (big, small)])


def by_change(big: TenantQueue, small: TenantQueue) -> None:
    jobs.fail.enqueue_many([((row.tenant, "feed"), {}) for row in (big, small)])
    big.set_share(3)


def by_sweep(big: TenantQueue, small: TenantQueue) -> None:
    by_change(big, small)
    redis_forgets()
    sweep_now()


@pytest.mark.parametrize("way", [by_enqueue, by_change, by_sweep])
def test_the_order_of_tenants_knows_the_share(way: Callable[[TenantQueue, TenantQueue], None]) -> None:
    redis_forgets()
    big, small = tenant_queue("big"), tenant_queue("small")
    way(big, small)
    assert turns_of(8) == {big.pk: 6, small.pk: 2}
