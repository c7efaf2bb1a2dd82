"""Which processes wait until what they have recorded is sent."""

from __future__ import annotations

import signal

import django_rq
import pytest
from django.test import override_settings
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenant_slots.contrib import opentelemetry
from tenant_slots.models import State
from tenant_slots.workers import TenantSimpleWorker
from tests.contrib import jobs
from tests.contrib.traces import ONLY_OTEL
from tests.factories import fresh, work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter) -> list[str]:
    """In a process that looks like a work-horse of a stock worker."""
    made: list[str] = []
    monkeypatch.setenv("RQ_EXECUTION_ID", "1")
    monkeypatch.setattr(opentelemetry, "_flush", lambda: made.append("flushed"))
    return made


def test_a_web_server_that_was_forked_waits_for_nothing_in_immediate_mode(flushes: list[str]) -> None:
    with override_settings(TENANT_SLOTS={**ONLY_OTEL, "IMMEDIATE": True}):
        assert fresh(jobs.succeeds.enqueue("acme")).state == State.FINISHED
    assert flushes == []


def test_a_worker_without_work_horses_waits_when_it_ends_and_not_after_each_job(flushes: list[str]) -> None:
    """As those of a pool, which were forked."""
    made = [jobs.succeeds.enqueue("acme") for _ in range(3)]
    queue = django_rq.get_queue("imports")
    TenantSimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")
    assert all(fresh(job).state == State.FINISHED for job in made)
    assert flushes == ["flushed"]


@pytest.mark.parametrize("way", ["enqueue", "plain RQ", "plain RQ without a tenant"])
def test_what_a_process_waits_for_is_not_in_the_time_of_its_job(
    monkeypatch: pytest.MonkeyPatch, flushes: list[str], way: str
) -> None:
    left: list[float] = []
    monkeypatch.setattr(opentelemetry, "_flush", lambda: left.append(signal.getitimer(signal.ITIMER_REAL)[0]))
    if way == "enqueue":
        jobs.succeeds.enqueue("acme")
    else:
        django_rq.get_queue("imports").enqueue(jobs.succeeds, "acme" if way == "plain RQ" else "")
    work()
    assert left == [0], "RQ's alarm is off"


def test_control_what_may_be_the_only_job_of_its_process_waits(flushes: list[str]) -> None:
    for _ in range(3):
        jobs.succeeds.enqueue("acme")
    work()
    assert flushes == ["flushed"] * 3
