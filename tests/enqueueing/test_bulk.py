"""Many jobs enqueued in one call."""

from __future__ import annotations

import pytest

from tenant_slots.models import TenantJob
from tests import jobs
from tests.factories import fresh, in_rq, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_enqueue_many_keeps_the_order_and_serves_every_tenant() -> None:
    calls = [((n, 0), {"tenant": f"t{n % 2}"}) for n in range(6)]
    stored = jobs.add.enqueue_many(calls)
    assert [job.args[0] for job in stored] == list(range(6))
    assert in_rq("reports") == 2
    work()
    assert list(TenantJob.objects.order_by("pk").values_list("result", flat=True)) == list(range(6))


def test_enqueue_many_of_nothing_is_nothing() -> None:
    assert jobs.add.enqueue_many([]) == []


def test_many_jobs_at_once_are_stored_like_single_ones() -> None:
    """On PostgreSQL they go another way, which must leave the same rows."""
    job = jobs.add.using(priority=3, key="user-7").enqueue(0, 1, tenant="acme")
    stored = jobs.add.using(priority=3, key="user-7").enqueue_many([((n, 1), {"tenant": "acme"}) for n in range(150)])
    names = [field.attname for field in TenantJob._meta.concrete_fields]
    own = {"id", "uuid", "args", "enqueued_at", "state", "stage", "attempt", "admitted_at"}
    assert [j.args[0] for j in TenantJob.objects.order_by("pk")[1:]] == list(range(150))
    assert [j.pk for j in stored] == sorted(j.pk for j in stored)
    last = TenantJob.objects.get(pk=stored[-1].pk)
    fresh(job)
    assert {n: getattr(last, n) for n in names if n not in own} == {n: getattr(job, n) for n in names if n not in own}
    assert last.enqueued_at == stored[-1].enqueued_at >= job.enqueued_at
    stored[-1].refresh_from_db()
