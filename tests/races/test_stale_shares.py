"""The order of tenants divides by the share that the database has, whoever has read another one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from redis.exceptions import ConnectionError as RedisConnectionError

from tenant_slots import fair_order, limits, many_limits
from tenant_slots.models import TenantQueue
from tenant_slots.repair import findings
from tests import jobs
from tests.factories import another_process, in_thread, redis_forgets, running_job, tenant_queue, waiting_job
from tests.order_records import records
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
    pytest.mark.usefixtures("no_workers"),
]

BULK = "imports_bulk"


@pytest.fixture(autouse=True)
def nothing_in_redis() -> None:
    redis_forgets()


def by_itself(row: TenantQueue, share: int) -> None:
    TenantQueue.objects.get(pk=row.pk).set_share(share)


def with_others(row: TenantQueue, share: int) -> None:
    one = many_limits.edited(TenantQueue.objects.get(pk=row.pk), limits.setting("share", share), "", "")
    assert many_limits.write(one)
    many_limits.follow([one])


CHANGES = pytest.mark.parametrize("change", [by_itself, with_others])


def share_in_order(row: TenantQueue, rq_queue: str = "imports") -> int:
    return records(row.pk)[rq_queue].share


def enqueued_around(change: Callable[[], object]) -> None:
    """In a transaction that has read the share before."""
    with transaction.atomic():
        jobs.fail.enqueue("acme")
        in_thread(change)


@CHANGES
@pytest.mark.parametrize(("before", "after"), [(1, 9), (9, 1)])
def test_what_a_transaction_has_read_before_a_change_does_not_replace_it(
    change: Callable[[TenantQueue, int], None], before: int, after: int
) -> None:
    row = tenant_queue(share=before)
    jobs.fail.enqueue("acme")
    enqueued_around(lambda: change(row, after))
    assert share_in_order(row) == after


def test_nor_where_the_order_has_not_known_the_tenant() -> None:
    row = tenant_queue()
    enqueued_around(lambda: by_itself(row, 9))
    assert share_in_order(row) == 9


def test_control_a_share_that_is_not_known_is_the_one_that_an_enqueue_brings_along() -> None:
    row = tenant_queue(share=9)
    fair_order.freed(fair_order.Freed(row.pk, 1.0, "imports"))
    assert share_in_order(row) == 0
    jobs.fail.enqueue("acme")
    assert share_in_order(row) == 9


def untold(row: TenantQueue, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is away for a moment."""

    def away(*_: Any) -> None:
        raise RedisConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(fair_order, "_ask", away)
        by_itself(row, share)
    assert share_in_order(row) == row.share != share


def waits(row: TenantQueue) -> None:
    waiting_job(row)
    fair_order.offer("imports", [(row.pk, row.share)])


def waits_in_an_overflow_queue(row: TenantQueue) -> None:
    waits(row)
    waiting_job(row, rq_queue=BULK)
    fair_order.offer(BULK, [(row.pk, row.share)])


def has_left_the_order_unseen(row: TenantQueue) -> None:
    waits(row)
    turn, _ = fair_order.take("rq:worker:one", ["imports"], waits=False)
    assert isinstance(turn, fair_order.Turn)
    fair_order.drop(turn, is_full=False)


def is_full(row: TenantQueue) -> None:
    waits(row)
    running_job(row, another_process())


@pytest.mark.parametrize("state", [waits, waits_in_an_overflow_queue, has_left_the_order_unseen, is_full])
def test_a_sweep_tells_a_change_that_could_not_be_told(
    state: Callable[[TenantQueue], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue()
    state(row)
    untold(row, 9, monkeypatch)
    sweep_now()
    assert {record.share for record in records(row.pk).values()} == {9}


def test_a_sweep_tells_all_that_could_not_be_told_and_asks_the_database_twice_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for those that wait, once for those that run something. Redis is asked for a few at a time."""
    monkeypatch.setattr(fair_order, "TENANTS_PER_CALL", 2)
    rows = [tenant_queue(f"{queue}{number}", queue=queue) for queue in ("imports", "reports") for number in range(3)]
    for row in rows:
        waiting_job(row)
        fair_order.offer(row.queue, [(row.pk, 1)])
        if row.tenant.endswith("2"):
            running_job(row, another_process())
    TenantQueue.objects.update(share=9)
    with CaptureQueriesContext(connection) as queries:
        sweep_now()
    assert {share_in_order(row, row.queue) for row in rows} == {9}
    asked = [query["sql"] for query in queries if '"share" FROM' in query["sql"] and "ANY(" in query["sql"]]
    assert len(asked) == 2


def test_a_change_that_is_told_while_a_sweep_has_read_the_share_before_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = tenant_queue()
    waits(row)
    found = findings.with_work(set())
    by_itself(row, 9)
    monkeypatch.setattr(findings, "with_work", lambda names: found)
    sweep_now()
    assert share_in_order(row) == 9


def test_so_does_one_that_is_told_when_the_sweep_has_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()
    waits(row)
    untold(row, 5, monkeypatch)
    correct = fair_order.correct_shares

    def changed_before(rq_queue: str, tenants: Any) -> None:
        by_itself(row, 9)
        correct(rq_queue, tenants)
        monkeypatch.setattr(fair_order, "correct_shares", correct)

    monkeypatch.setattr(fair_order, "correct_shares", changed_before)
    sweep_now()
    assert share_in_order(row) == 9


def test_a_tenant_that_is_offered_by_a_sweep_keeps_the_share_that_was_told_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = tenant_queue()
    has_left_the_order_unseen(row)
    ask = findings.stranded_among

    def changed_before(found: Any) -> Any:
        for rq_queue, rows in ask(found):
            by_itself(row, 9)
            yield rq_queue, rows

    monkeypatch.setattr(findings, "stranded_among", changed_before)
    sweep_now()
    assert share_in_order(row) == 9
