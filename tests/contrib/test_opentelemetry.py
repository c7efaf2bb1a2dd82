"""A job is a span of OpenTelemetry under its task's name, in the trace of whoever enqueued it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import django_rq
import pytest
from opentelemetry import propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenant_slots.contrib import opentelemetry
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import State, TenantJob
from tests.contrib import jobs
from tests.contrib.traces import named, request
from tests.factories import fresh, tenant_queue, waiting_job, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_span_named_after_the_task_is_a_child_of_the_request(spans: InMemorySpanExporter) -> None:
    with request():
        job = jobs.succeeds.enqueue("acme")
    work()
    run, asked = named(spans, job.task), named(spans, "request")
    assert (run.parent.span_id, run.context.trace_id) == (asked.context.span_id, asked.context.trace_id)
    assert run.kind is SpanKind.CONSUMER
    known = {name.removeprefix("tenant_slots."): value for name, value in run.attributes.items()}
    assert (known["tenant"], known["queue"], known["attempt"]) == ("acme", "imports", 1)
    assert known["job"] == str(job.uuid)
    assert 0 <= known["wait"] < 60
    assert named(spans, "inside").parent.span_id == run.context.span_id, "what the job does is below it"


@pytest.mark.parametrize("task", [jobs.succeeds, jobs.slow])
def test_a_job_has_one_span_async_or_not_whatever_is_called_besides(spans: InMemorySpanExporter, task: Any) -> None:
    job = task.enqueue("acme")
    work()
    assert fresh(job).state == State.FINISHED
    assert named(spans, "inside").parent.span_id == named(spans, job.task).context.span_id


def test_a_failure_is_an_error_with_its_stack_and_a_busy_tenant_is_none(spans: InMemorySpanExporter) -> None:
    failed, busy = jobs.fails.enqueue("acme"), jobs.busy.enqueue("other")
    work()
    error = named(spans, failed.task)
    assert error.status.status_code.name == "ERROR"
    (event,) = error.events
    assert "no such feed" in event.attributes["exception.stacktrace"]
    assert "in fails" in event.attributes["exception.stacktrace"]
    assert named(spans, busy.task).status.status_code.name == "UNSET"
    assert not any("exception" in one.name for one in named(spans, busy.task).events)


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_that_asks_for_one_too_many_is_a_failure(spans: InMemorySpanExporter, plain: bool) -> None:
    if plain:
        django_rq.get_queue("imports").enqueue(jobs.asks_again, "acme")
    else:
        jobs.asks_again.enqueue("acme")
    work()
    first, second = [span for span in spans.get_finished_spans() if span.name == jobs.asks_again.tenant_task.path]
    assert (first.status.status_code.name, second.status.status_code.name) == ("UNSET", "ERROR")
    (event,) = second.events
    assert "RetriesExceeded" in (event.attributes or {})["exception.type"]
    assert TenantJob.objects.latest("pk").state == State.FAILED


def test_a_job_fails_with_its_own_error_also_where_that_has_no_text(spans: InMemorySpanExporter) -> None:
    job = jobs.mute.enqueue("acme")
    work()
    assert fresh(job).error_class == "tests.contrib.jobs.Mute"
    (event,) = named(spans, job.task).events
    assert event.attributes["exception.type"] == "tests.contrib.jobs.Mute"
    assert "in mute" in event.attributes["exception.stacktrace"]


def test_jobs_run_where_the_project_passes_no_context_on(spans: InMemorySpanExporter) -> None:
    """``OTEL_PROPAGATORS=none``."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([]))
    try:
        with request():
            job = jobs.succeeds.enqueue("acme")
        work()
    finally:
        propagate.set_global_textmap(before)
    assert (fresh(job).state, job.context) == (State.FINISHED, {})
    assert named(spans, job.task).parent is None


def test_nothing_of_what_is_around_a_worker_is_in_its_jobs_traces(spans: InMemorySpanExporter) -> None:
    """Whatever the order in which the project's propagators read what was kept."""
    before = propagate.get_global_textmap()
    orders = [W3CBaggagePropagator(), TraceContextTextMapPropagator()]
    propagate.set_global_textmap(CompositePropagator(orders))
    try:
        job = jobs.succeeds.enqueue("acme")
        with request():
            work()
    finally:
        propagate.set_global_textmap(before)
    assert named(spans, job.task).parent is None


def test_the_tracer_is_made_once_and_by_whoever_provides_it_now(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A work-horse has it from its worker, which has read the settings before it forked."""
    made: list[str] = []

    class Counting(TracerProvider):
        def get_tracer(self, name: str, *args: Any, **kwargs: Any) -> Any:
            made.append(name)
            return super().get_tracer(name, *args, **kwargs)

    provider = Counting()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    enqueued = [jobs.succeeds.enqueue("acme") for _ in range(2)]
    work()
    assert made.count("tenant_slots") == 1
    assert [span.name for span in spans.get_finished_spans()].count(enqueued[0].task) == 2


def test_without_a_trace_nothing_is_kept_and_the_span_is_a_root(spans: InMemorySpanExporter) -> None:
    job = jobs.succeeds.enqueue("acme")
    assert fresh(job).context == {}
    work()
    assert named(spans, job.task).parent is None


def test_no_span_has_an_argument(spans: InMemorySpanExporter) -> None:
    with request():
        jobs.fails.enqueue("acme", secret="471100815")
    work()
    assert "471100815" not in "".join(span.to_json() for span in spans.get_finished_spans())


@pytest.mark.usefixtures("spans")
def test_a_wait_is_counted_from_when_the_job_could_start() -> None:
    job = waiting_job(tenant_queue(), attempt=1)
    job.enqueued_at -= timedelta(hours=2)
    job.run_after = job.enqueued_at + timedelta(hours=1)
    assert round(opentelemetry.tracing.attributes_of(job)["wait"], -2) == 3600
    assert opentelemetry.tracing.attributes_of(TenantJob(task="shop.jobs.plain"))["task"] == "shop.jobs.plain"


def test_a_run_that_ends_with_its_worker_is_no_failed_span(spans: InMemorySpanExporter) -> None:
    job = waiting_job(tenant_queue(), attempt=1)
    with pytest.raises(EndedAtOnce), opentelemetry.job_context(job):
        raise EndedAtOnce
    span = named(spans, job.task)
    assert span.status.status_code == StatusCode.UNSET
    assert [event.name for event in span.events] == ["ended with its worker"]
