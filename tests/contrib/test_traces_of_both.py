"""OpenTelemetry and Sentry side by side: a job is in the trace of its request with each of them."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import django_rq
import pytest
import sentry_sdk
from django.test import override_settings
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenant_slots.models import State, TenantJob
from tests.contrib import jobs
from tests.contrib.traces import BOTH, InMemory, named, request, sentry_on
from tests.factories import fresh, tenant_queue, work
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

TEN_SECONDS = timedelta(seconds=10)


def test_a_plain_rq_job_without_a_tenant_is_traced_too(spans: InMemorySpanExporter) -> None:
    """It has no row, and so neither times nor a context."""
    with override_settings(TENANT_SLOTS=BOTH), sentry_on(InMemory()) as transport:
        queued = django_rq.get_queue("imports").enqueue(jobs.succeeds, "")
        work()
    assert queued.get_status(refresh=True) == "finished"
    assert named(spans, "tests.contrib.jobs.succeeds").attributes["tenant_slots.tenant"] == ""
    assert [one["transaction"] for one in transport.of("transaction")] == ["tests.contrib.jobs.succeeds"]


@pytest.mark.parametrize("kind", ["TenantWorker", "TenantPreforkWorker"])
def test_a_wait_a_failure_and_a_crash_are_one_trace(
    spans: InMemorySpanExporter, workers: Workers, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "spans"
    workers.variables |= {"SPANS": str(path), "TEST_TENANT_SLOTS": json.dumps(BOTH)}
    with override_settings(TENANT_SLOTS=BOTH), sentry_on(InMemory()):
        with request() as asked, sentry_sdk.start_transaction(name="request") as asked_sentry:
            row = tenant_queue(max_job=0)
            job = jobs.traced.enqueue("acme", str(tmp_path / "marks"))
        assert fresh(job).state == State.WAITING, "it waits, until somebody raises the limit"
        TenantJob.objects.filter(pk=job.pk).update(enqueued_at=job.enqueued_at - TEN_SECONDS)
        row.set_limit(1)
    workers.start(worker_class=f"tenant_slots.workers.{kind}")
    wait_until(lambda: fresh(job).state == State.FINISHED, timeout=60)

    def of(sdk: str, **facts: Any) -> list[dict[str, Any]]:
        told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [one for one in told if one["sdk"] == sdk and facts.items() <= one.items()]

    def runs() -> list[dict[str, Any]]:
        return of("opentelemetry", name=job.task)

    wait_until(lambda: len(runs()) == 2 and len(of("sentry", type="transaction")) == 2)
    assert [(run["attempt"], run["status"]) for run in runs()] == [(1, "ERROR"), (3, "UNSET")], "the second one died"
    assert {run["trace"] for run in runs()} == {f"{asked.get_span_context().trace_id:032x}"}
    assert {run["parent"] for run in runs()} == {f"{asked.get_span_context().span_id:016x}"}
    transactions = of("sentry", type="transaction")
    assert {one["name"] for one in transactions} == {job.task}
    assert {one["trace"] for one in transactions} == {asked_sentry.trace_id}
    waits = [one["wait"] for one in (*runs(), *transactions)]
    assert TEN_SECONDS.total_seconds() <= min(waits) <= max(waits) < 120, waits
    (event,) = of("sentry", type="event")
    assert (event["errors"], event["attempt"], event["trace"]) == (["ValueError"], "1", asked_sentry.trace_id)
    assert "SPANS" not in os.environ
