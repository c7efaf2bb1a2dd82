"""How many workers would have something to do: the same figures as the metrics, for what starts workers."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import reverse

from tenant_slots import slots
from tenant_slots.contrib.prometheus import TenantSlotsCollector
from tenant_slots.models import Kind, State, TenantQueue
from tenant_slots.stats import metrics
from tests.factories import another_process, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db

SAVEPOINT = 2
"""Statements for one in the transaction of a test, which no error is to break."""


def from_our_scaler(request: HttpRequest) -> bool:
    return request.headers.get("Authorization") == "Bearer ours"


OPEN = override_settings(TENANT_SLOTS={"MAY_VIEW_METRICS": "tests.test_autoscaling.from_our_scaler"})


def autoscaling(client: Client, scaler: str = "ours", **query: str) -> Any:
    return client.get(reverse("autoscaling"), query, headers={"Authorization": f"Bearer {scaler}"})


def queued_job(row: TenantQueue) -> None:
    waiting_job(row)
    assert len(slots.admit(row.pk, row.queue).jobs) == 1


def a_bit_of_everything() -> None:
    limited = tenant_queue("limited", max_job=4)
    running_job(limited, another_process()), queued_job(limited)
    for _ in range(5):
        waiting_job(limited)
    waiting_job(limited, state=State.SCHEDULED)
    waiting_job(tenant_queue("paused", paused=True))
    waiting_job(tenant_queue("other", queue="reports"))


def test_it_is_closed_by_default(client: Client) -> None:
    assert autoscaling(client).status_code == 404


@OPEN
def test_it_is_for_those_whom_the_project_allows(client: Client) -> None:
    assert autoscaling(client, "theirs").status_code == 404
    assert autoscaling(client).status_code == 200


@OPEN
def test_it_only_reads_and_is_not_kept(client: Client) -> None:
    assert client.head(reverse("autoscaling"), headers={"Authorization": "Bearer ours"}).status_code == 200
    assert client.post(reverse("autoscaling")).status_code == 405
    assert "no-store" in autoscaling(client)["Cache-Control"]


@OPEN
def test_a_worker_is_needed_for_each_job_that_runs_or_could(client: Client) -> None:
    a_bit_of_everything()
    answer = autoscaling(client).json()
    assert answer["queues"]["imports"] == {
        "workers_needed": 2 + 1 + 1,
        "runnable": 2,
        "held_back": 3 + 1,
        "queued": 1,
        "running": 1,
        "scheduled": 1,
    }
    assert answer["workers_needed"] == 4 + 1
    assert answer["queues"]["default"]["workers_needed"] == 0, "a queue without jobs is there all the same"


@OPEN
def test_queues_may_be_asked_for(client: Client) -> None:
    a_bit_of_everything()
    assert autoscaling(client, queue="reports").json()["workers_needed"] == 1
    both = autoscaling(client, queue="reports, imports,reports").json()
    assert (list(both["queues"]), both["workers_needed"]) == (["reports", "imports"], 5)
    assert autoscaling(client, queue=["reports", "imports"]).json() == both, "as ?queue=reports&queue=imports"


@OPEN
def test_a_queue_may_have_a_comma_in_its_name(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenant_slots.views.usable_queues", lambda: {"large, slow", "reports"})
    assert list(autoscaling(client, queue="large, slow").json()["queues"]) == ["large, slow"]
    assert list(autoscaling(client, queue=["reports", "large, slow"]).json()["queues"]) == ["reports", "large, slow"]
    assert autoscaling(client, queue="large, reports").json()["unknown"] == ["large"]


@OPEN
def test_a_queue_that_there_is_not_is_400(client: Client) -> None:
    """Else a typing error would scale to nothing."""
    response = autoscaling(client, queue="import")
    assert response.status_code == 400
    assert response.json()["unknown"] == ["import"]


@OPEN
def test_a_reservation_needs_no_worker(client: Client) -> None:
    row = tenant_queue(max_job=3)
    running_job(row, another_process(), kind=Kind.RESERVATION)
    waiting_job(row, kind=Kind.RESERVATION)
    assert autoscaling(client).json()["workers_needed"] == 0


@OPEN
def test_it_tells_what_the_metrics_tell(client: Client) -> None:
    a_bit_of_everything()
    answer = autoscaling(client).json()["queues"]
    families = {family.name: family.samples for family in TenantSlotsCollector().collect()}
    runnable = {sample.labels["queue"]: sample.value for sample in families["tenant_slots_jobs_runnable"]}
    assert {queue: figures["runnable"] for queue, figures in answer.items()} == runnable
    for sample in families["tenant_slots_jobs"]:
        if sample.labels["state"] != State.WAITING:
            assert answer[sample.labels["queue"]][sample.labels["state"]] == sample.value


@OPEN
def test_a_database_out_of_reach_is_503_and_not_nothing_to_do(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(metrics, "by_queue", away)
    assert autoscaling(client).status_code == 503


@OPEN
@pytest.mark.parametrize("tenants", [1, 20])
def test_it_makes_two_queries_however_many_tenants_there_are(
    client: Client, django_assert_num_queries: Any, tenants: int
) -> None:
    for number in range(tenants):
        waiting_job(tenant_queue(f"tenant {number}"))
        waiting_job(tenant_queue(f"tenant {number}", queue="reports"))
    with django_assert_num_queries(2 + SAVEPOINT):
        autoscaling(client)


@OPEN
@pytest.mark.parametrize("alias", ["default", "other"])
def test_it_is_called_where_no_transaction_can_be_begun(
    alias: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``ATOMIC_REQUESTS`` of any database, where Django begins one before it calls a view."""

    def away(*_: Any) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setitem(connections.settings, alias, {**connection.settings_dict, "ATOMIC_REQUESTS": True})
    monkeypatch.setattr(transaction.Atomic, "__enter__", away)
    monkeypatch.setattr(connection, "ensure_connection", away)
    assert autoscaling(client).status_code == 503
