"""A project's code as type checkers see it. Each line that ends in two ignores must be an error to both of them.

mypy reports an ignore that is not needed (`warn_unused_ignores`), and so does pyright
(`reportUnnecessaryTypeIgnoreComment`), so that what is no error any more does not go unnoticed. Nothing here runs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import assert_type
from uuid import uuid4

from django.db import models
from rq import Retry

from tenant_slots import Reschedule, TenantBusy, Throttle, hold_slot, tenant_job
from tenant_slots.models import TenantJob, TenantQueue


@tenant_job("imports", tenant="shop", timeout=60, retry=Retry(max=3), unique_for=timedelta(hours=1))
def import_feed(shop: str, path: str, rows: int = 0) -> int:
    return len(shop) + len(path) + rows


@tenant_job("imports", tenant="shop", unique_for=timedelta(hours=1), unique_until="start")
def import_latest(shop: str) -> None: ...


@tenant_job("imports", tenant="shop", debounce=timedelta(seconds=5), max_wait=timedelta(minutes=1))
def index(shop: str) -> None: ...


def wrong_options() -> None:
    tenant_job("imports", tenant="shop", unique_until="begin")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tenant_job("imports", tenant="shop", debounce=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def tenant_of(shop: Shop, *args: object, **kwargs: object) -> str:
    return shop.name


@tenant_job("imports", tenant="shop", on_busy=Reschedule(30), throttle=[Throttle(100, timedelta(hours=1), "slow")])
async def notify(shop: str) -> None:
    raise TenantBusy(seconds=30)


class Shop(models.Model):
    name: models.CharField[str, str] = models.CharField(max_length=30)

    class Meta:
        app_label = "typing"

    def __str__(self) -> str:
        return self.name

    @tenant_job("imports", tenant=tenant_of)
    def close(self, reason: str) -> bool:
        return bool(reason)


def functions() -> None:
    assert_type(import_feed("acme", "a.csv"), int)
    assert_type(import_feed.enqueue("acme", "a.csv", rows=2), TenantJob)
    assert_type(import_feed.delay("acme", path="a.csv"), TenantJob)
    assert_type(import_feed.enqueue_many([(("acme", "a.csv"), {"rows": 2})]), list[TenantJob])
    assert_type(import_feed.using(priority=5, key="ann").enqueue("acme", "a.csv"), TenantJob)
    calls = (import_feed.call("acme", f"{n}.csv", rows=n) for n in range(3))
    assert_type(import_feed.enqueue_many(calls), list[TenantJob])
    import_feed.using(run_after=datetime.now(UTC), queue="slow", tenant=7)
    import_feed.using(tenant=uuid4())
    assert_type(index.using(debounce=timedelta(seconds=9), max_wait=timedelta(hours=1)).enqueue("acme"), TenantJob)
    index.using(debounce=9)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    import_feed(1, "a.csv")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    import_feed.enqueue(1, "a.csv")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    import_feed.enqueue("acme", "a.csv", "2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    import_feed.enqueue("acme")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    import_feed.delay("acme", "a.csv", row=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    import_feed.enqueue_many(["acme"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    import_feed.enqueue_many([import_feed.call(1, "a.csv")])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    import_feed.enqueue_many([index.call("acme")])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    import_feed.using(tenant=[7])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    import_feed.using(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    import_feed.using(urgent=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    import_feed.using(key="ann").enqueue(1, "a.csv")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def methods(shop: Shop) -> None:
    assert_type(shop.close("bankrupt"), bool)
    assert_type(shop.close.enqueue("bankrupt"), TenantJob)
    assert_type(shop.close.using(priority=1).enqueue(reason="bankrupt"), TenantJob)
    shop.close.enqueue(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(shop.close.enqueue_many([shop.close.call("bankrupt")]), list[TenantJob])
    shop.close.call(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    shop.close.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    shop.close(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def asynchronous(shop: Shop) -> None:
    assert_type(await import_feed.aenqueue("acme", "a.csv"), TenantJob)
    assert_type(await notify.aenqueue_many([(("acme",), {})]), list[TenantJob])
    assert_type(await notify.aenqueue_many([notify.call("acme")]), list[TenantJob])
    assert_type(await shop.close.aenqueue("bankrupt"), TenantJob)
    assert_type(await notify("acme"), None)
    await import_feed.aenqueue(1, "a.csv")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await notify.aenqueue_many([notify.call(2)])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await shop.close.aenqueue(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def rows(job: TenantJob, row: TenantQueue) -> None:
    assert_type(TenantJob.objects.waiting().first(), TenantJob | None)
    assert_type(TenantJob.objects.filter(task="shop.jobs.import_feed").waiting().count(), int)
    assert_type(TenantJob.objects.get(pk=1), TenantJob)
    assert_type(TenantQueue.objects.get(tenant="acme"), TenantQueue)
    assert_type(job.tenant_queue, TenantQueue)
    assert_type(job.cancel(), bool)
    row.set_limit(5, by="ann", reason="asked for it")
    row.set_rate(100, per=timedelta(minutes=1), burst=10)
    TenantJob.objects.wating()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    row.set_limit("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def reservations() -> None:
    with hold_slot("acme", "imports", timeout=5):
        pass
    hold_slot([], "imports")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
