"""The list of jobs by a state that few among a million are in: read by an index of these, not by their keys."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client, RequestFactory

from tenant_slots.models import State, TenantJob
from tests.admin.site import JOBS
from tests.factories import tenant_queue, waiting_job
from tests.plans import explained

pytestmark = pytest.mark.django_db

ERROR_CLASSES = {State.FAILED: "ValueError"}


def listed(client: Client, **query: str) -> list[int]:
    return [job.pk for job in client.get(JOBS, query).context["cl"].result_list]


@pytest.mark.parametrize("state", State.values)
@pytest.mark.parametrize("lookup", ["state", "state__exact"])
def test_each_state_has_its_jobs_the_latest_first(viewer: Client, state: str, lookup: str) -> None:
    row = tenant_queue()
    jobs = [
        waiting_job(row, state=one, error_class=ERROR_CLASSES.get(State(one))) for _ in range(2) for one in State.values
    ]
    assert listed(viewer, **{lookup: state}) == [job.pk for job in reversed(jobs) if job.state == state]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="how PostgreSQL plans")
@pytest.mark.parametrize(
    ("state", "index"), [("failed", "failed"), ("running", "holding"), ("queued", "holding"), ("finished", "job_pkey")]
)
def test_the_list_of_a_state_reads_its_index(boss: Client, state: str, index: str) -> None:
    request: Any = RequestFactory().get(JOBS, {"state__exact": state})
    request.user = boss.get(JOBS).context["user"]
    jobs = admin.site._registry[TenantJob].get_queryset(request).filter(state=state)[:100]
    assert f"tenant_slots_{'tenant' if index == 'job_pkey' else ''}{index}" in explained(jobs)
