"""The list of jobs by a state that few among a million are in: read by an index of these, not by their keys."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Value
from django.test import Client
from django.utils import timezone

from tenant_slots.admin.lists import MOST_COUNTED
from tenant_slots.models import State, TenantJob
from tests.admin.site import JOBS
from tests.factories import many_waiting, tenant_queue, waiting_job
from tests.plans import explained

pytestmark = pytest.mark.django_db

SPREAD = ExpressionWrapper(
    Value(timezone.now()) + ExpressionWrapper(F("pk") * timedelta(seconds=1), DurationField()), DateTimeField()
)
"""A time of its own for each job."""

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
    ("query", "index"),
    [
        ({}, "tenantjob_pkey"),
        ({"state__exact": "scheduled"}, "scheduled"),
        ({"state__exact": "waiting"}, "oldest_wait"),
        ({"state__exact": "queued"}, "holding"),
        ({"state__exact": "running"}, "holding"),
        ({"state__exact": "finished"}, "ended"),
        ({"state__exact": "failed"}, "failed"),
        ({"state__exact": "canceled"}, "canceled"),
        ({"state__exact": "waiting", "tenant": "acme"}, "longest_wait"),
        ({"state__exact": "canceled", "tenant": "acme"}, "canceled"),
    ],
)
def test_the_list_reads_an_index_of_its_jobs_and_counts_by_it(boss: Client, query: dict[str, str], index: str) -> None:
    """In the order of the index, but for the few that hold a slot: what is sorted is all read."""
    row = tenant_queue("acme")
    for state in State.values:
        many_waiting(row, 300, state=state, error_class=ERROR_CLASSES.get(State(state)))
    TenantJob.objects.update(run_after=SPREAD, ended_at=SPREAD)
    many_waiting(tenant_queue("beta"), 3000)
    jobs = boss.get(JOBS, query).context["cl"].queryset
    for shown in (jobs[:10], jobs[:MOST_COUNTED].values("pk")):
        plan = explained(shown, sorts=False)
        assert re.search(rf"using tenant_slots_{index}\b", plan), plan
        assert index == "holding" or "->  Sort" not in plan, plan
