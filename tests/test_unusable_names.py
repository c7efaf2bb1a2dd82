"""A key of RQ_QUEUES that no row can have as its queue: it is named, and the queues beside it are served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import Client, override_settings
from django.urls import reverse

from tenant_slots.contrib.prometheus import TenantSlotsCollector
from tenant_slots.enqueueing import on_busy
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import doctor
from tests import jobs
from tests.admin.site import change_page
from tests.factories import age, fresh, owner, running_job, tenant_queue, waiting_job
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = {"long": "x" * 101, "number": 5, "none": None, "NUL": "a\0b", "surrogate": "a\ud800b"}

PAGES = [
    reverse(f"admin:tenant_slots_tenantqueue_{name}") for name in ("changelist", "overview", "workers", "live", "add")
]


@pytest.fixture(autouse=True, params=NAMES.values(), ids=NAMES)
def _beside_others(request: pytest.FixtureRequest) -> Iterator[None]:
    with override_settings(RQ_QUEUES={request.param: settings.RQ_QUEUES["imports"], **settings.RQ_QUEUES}):
        yield


def test_a_sweep_does_all_its_steps_for_the_others() -> None:
    running_job(tenant_queue("busy"), owner())
    due = waiting_job(tenant_queue("due"), state=State.SCHEDULED)
    age(due, run_after=60)
    assert (sweep_now().failed, fresh(due).state) == ([], State.QUEUED)


def test_the_doctor_asks_all_that_it_asks_of_the_others() -> None:
    waiting_job(tenant_queue())
    kinds = {one.kind for one in doctor.findings()}
    assert {"redis", "no worker"} <= kinds
    assert "check failed" not in kinds


def test_a_job_that_finds_no_free_slot_is_asked_what_to_do() -> None:
    row = tenant_queue()
    waiting_job(row), waiting_job(row)
    TenantJob.objects.update(task=jobs.only_now.tenant_task.path)
    first, second = TenantJob.objects.order_by("pk")
    on_busy.turn_away(row.pk, [first, second])
    assert (fresh(first).state, fresh(second).state) == (State.WAITING, State.CANCELED)


def test_pages_show_the_others(boss: Client) -> None:
    row = waiting_job(tenant_queue(), rq_queue="reports").tenant_queue
    for url in PAGES:
        assert "reports" in boss.get(url).content.decode(), url
    assert "imports" in boss.get(change_page(row)).content.decode()


def test_metrics_tell_of_the_others() -> None:
    waiting_job(tenant_queue())
    samples = [sample for metric in TenantSlotsCollector().collect() for sample in metric.samples]
    assert {"imports", "reports"} <= {sample.labels.get("queue") for sample in samples}
    assert [sample.value for sample in samples if sample.name == "tenant_slots_database_up"] == [1]
