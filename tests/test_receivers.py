"""A tenant queue with jobs that have not ended cannot be deleted."""

from __future__ import annotations

import pytest

from tenant_slots.exceptions import TenantQueueInUse
from tenant_slots.models import TenantJob, TenantQueue
from tests import jobs
from tests.factories import work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_row_with_jobs_cannot_be_deleted() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    jobs.add.enqueue(1, 2, tenant="acme")
    with pytest.raises(TenantQueueInUse, match=r"1 jobs hold its slots and 1 wait"):
        TenantQueue.objects.get().delete()
    with pytest.raises(TenantQueueInUse):
        TenantQueue.objects.all().delete()
    assert TenantJob.objects.count() == 2


def test_a_row_whose_jobs_have_ended_can_be_deleted_with_them() -> None:
    jobs.add.enqueue(1, 2, tenant="acme")
    work()
    TenantQueue.objects.get().delete()
    assert not TenantJob.objects.exists()
