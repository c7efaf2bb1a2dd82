"""A group of failures leads to its own jobs and to no others."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tenant_slots.models import State
from tests.factories import age, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

FAILURES = reverse("admin:tenant_slots_tenantjob_failures")


def test_a_group_leads_to_its_own_jobs_alone(boss: Client) -> None:
    row = tenant_queue()
    for error in ("", "KeyError", "shop.MyKeyError"):
        age(waiting_job(row, state=State.FAILED, attempt=1, error_class=error), ended_at=60)
    for group, _, query in boss.get(FAILURES).context["groups"]:
        shown = boss.get(f"{FAILURES}?{query}")
        assert [one.error_class for one, *_ in shown.context["groups"]] == [group.error_class]
    assert boss.get(f"{FAILURES}?group_task=%00").status_code == 200
