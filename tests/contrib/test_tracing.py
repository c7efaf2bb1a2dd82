"""A job is told to OpenTelemetry and Sentry under its task's name, in the trace of whoever enqueued it."""

from __future__ import annotations

import contextvars
import gzip
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import django_rq
import pytest
import sentry_sdk
from django.db.models import JSONField, Value
from django.test import override_settings
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from sentry_sdk.consts import DEFAULT_OPTIONS
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.integrations.rq import RqIntegration
from sentry_sdk.transport import Transport

from tenant_slots.contrib import opentelemetry, sentry, tracing
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import State, TenantJob
from tenant_slots.tasks.context import IN_META
from tenant_slots.workers import TenantSimpleWorker, unobserved
from tests.contrib import jobs
from tests.factories import fresh, tenant_queue, waiting_job, work
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

BOTH = {
    "CAPTURE_CONTEXT": ["tenant_slots.contrib.opentelemetry.capture", "tenant_slots.contrib.sentry.capture"],
    "JOB_CONTEXT": ["tenant_slots.contrib.opentelemetry.job_context", "tenant_slots.contrib.sentry.job_context"],
}

TEN_SECONDS = timedelta(seconds=10)

ONLY_OTEL = {name: paths[:1] for name, paths in BOTH.items()}
ONLY_SENTRY = {name: paths[1:] for name, paths in BOTH.items()}


# --- OpenTelemetry ----------------------------------------------------------------------------------------------------

_exporter = InMemorySpanExporter()
"""One for all tests: a process has one provider, for good."""


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_exporter))
        trace.set_tracer_provider(provider)
    _exporter.clear()
    with override_settings(TENANT_SLOTS=ONLY_OTEL):
        yield _exporter


def named(exporter: InMemorySpanExporter, name: str) -> Any:
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def request() -> Any:
    return trace.get_tracer("tests").start_as_current_span("request")


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


# --- Sentry -----------------------------------------------------------------------------------------------------------


class InMemory(Transport):
    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.type or "", item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        return [payload for found, payload in self.items if found == kind]


@pytest.fixture(params=["with its RQ integration", "without"])
def sent(request: pytest.FixtureRequest) -> Iterator[InMemory]:
    with_rq = request.param != "without"
    with sentry_on(InMemory(), *([RqIntegration()] if with_rq else [])) as transport:
        assert (sentry_sdk.get_client().get_integration(RqIntegration) is not None) is with_rq
        with override_settings(TENANT_SLOTS=ONLY_SENTRY):
            yield transport


@contextmanager
def sentry_on(transport: InMemory, *integrations: Integration, **options: Any) -> Iterator[InMemory]:
    """Few integrations, as they patch this process for good; those that are on by themselves real workers have."""
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        traces_sample_rate=1.0,
        transport=transport,
        default_integrations=False,
        integrations=[DedupeIntegration(), LoggingIntegration(), *integrations],
        **options,
    )
    client = sentry_sdk.get_client()
    try:
        yield transport
    finally:
        sentry_sdk.get_global_scope().set_client(None)
        client.close(timeout=0)  # its threads, which would draw random numbers beside other tests, and end during them


def test_a_job_is_one_transaction_named_after_its_task_in_the_trace_of_the_request(sent: InMemory) -> None:
    with sentry_sdk.start_transaction(name="request", op="http.server") as asked:
        job = jobs.succeeds.enqueue("acme")
    work()
    transactions = {one["transaction"]: one for one in sent.of("transaction")}
    assert set(transactions) == {"request", job.task}
    run = transactions[job.task]
    assert run["contexts"]["trace"]["trace_id"] == asked.trace_id
    assert run["tags"]["tenant_slots.tenant"] == "acme"
    known = {key: value for key, value in run["contexts"]["trace"]["data"].items() if key.startswith("tenant_slots.")}
    assert known.pop("tenant_slots.wait") >= 0
    assert known == {
        "tenant_slots.task": job.task,
        "tenant_slots.tenant": "acme",
        "tenant_slots.queue": "imports",
        "tenant_slots.job": str(job.uuid),
        "tenant_slots.attempt": 1,
    }
    assert run["transaction_info"] == {"source": "task"}
    assert not sent.of("event")


def test_a_failure_is_one_event_with_the_right_stack_and_name(sent: InMemory) -> None:
    job = jobs.fails.enqueue("acme", secret="471100815")
    work()
    (event,) = sent.of("event")
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no such feed")
    assert error["stacktrace"]["frames"][-1]["function"] == "fails"
    assert event["transaction"] == job.task
    assert event["tags"]["tenant_slots.task"] == job.task
    assert event["contexts"]["tenant_slots"]["job"] == str(job.uuid)
    (run,) = sent.of("transaction")
    assert run["contexts"]["trace"]["status"] == "internal_error"
    assert run["contexts"]["trace"]["trace_id"] == event["contexts"]["trace"]["trace_id"]


def test_the_time_outs_of_a_task_are_one_issue(sent: InMemory) -> None:
    """sentry_sdk's integration for RQ groups them by the function that RQ calls, which is one for all tasks."""
    job = jobs.has_no_more_time.enqueue("acme")
    work()
    (event,) = sent.of("event")
    assert event["fingerprint"] == ["rq", "JobTimeoutException", job.task]


def test_a_fingerprint_that_a_job_gives_its_time_out_stays() -> None:
    with sentry_on(InMemory()) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        jobs.has_no_more_time.enqueue("acme", fingerprint=["by", "hand"])
        work()
    (event,) = sent.of("event")
    assert event["fingerprint"] == ["by", "hand"]


@pytest.mark.parametrize(
    ("task", "errors"), [(jobs.fails_twice, ["ValueError", "KeyError"]), (jobs.fails_unspeakably, ["ValueError"])]
)
def test_a_failure_is_told_once_whatever_is_told_or_raised_after_it(task: Any, errors: list[str]) -> None:
    """sentry_sdk drops an error that is the same object as the last one. What is not ours is told as ever."""
    queue = django_rq.get_queue("imports")
    with sentry_on(InMemory(), RqIntegration()) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        queue.enqueue(jobs.fails_in_plain_rq)
        work()
        plain = errors_in(sent)  # none with older versions of sentry_sdk, which do not know this class of workers
        task.enqueue("acme")
        queue.enqueue(jobs.fails_in_plain_rq)
        work()
    assert plain in ([], ["OSError"])
    assert errors_in(sent) == [*plain, *errors, *plain]


def errors_in(sent: InMemory) -> list[str]:
    return [event["exception"]["values"][-1]["type"] for event in sent.of("event")]


def test_a_sampler_of_the_project_is_given_the_job() -> None:
    def rate(known: dict[str, Any]) -> float:
        job = known.get("tenant_slots_job")
        return 0.0 if job is not None and job.tenant_queue.tenant == "chatty" else 1.0

    with sentry_on(InMemory(), traces_sampler=rate) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        for tenant in ("chatty", "acme"):
            jobs.succeeds.enqueue(tenant)
        work()
    assert [one["tags"]["tenant_slots.tenant"] for one in sent.of("transaction")] == ["acme"]


@pytest.mark.parametrize("task", [jobs.fails, jobs.fails_twice, jobs.fails_unspeakably])
def test_in_immediate_mode_a_failure_is_told_once_too(sent: InMemory, task: Any) -> None:
    """The log has it as well, and what ``on_failure`` raises is another failure."""
    with override_settings(TENANT_SLOTS={**ONLY_SENTRY, "IMMEDIATE": True}):
        task.enqueue("acme")
    assert errors_in(sent) == ["ValueError", *(["KeyError"] if task is jobs.fails_twice else [])]


@pytest.mark.parametrize("way", ["immediate", "synchronous"])
def test_a_plain_rq_job_has_its_transaction_whatever_runs_inside_of_it(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("CALLS_SYNCHRONOUSLY", "yes" if way == "synchronous" else "")
    settings = {**ONLY_SENTRY, "IMMEDIATE": way == "immediate"}
    queue = django_rq.get_queue("imports")
    with sentry_on(InMemory(), RqIntegration()) as sent, override_settings(TENANT_SLOTS=settings):
        queue.enqueue(os.getpid)
        work()
        control = [one["transaction"] for one in sent.of("transaction")]
        queue.enqueue(jobs.calls_one_of_ours)
        work()
    assert control in ([], ["posix.getpid"])  # none with older versions of sentry_sdk
    inside, *around = [one["transaction"] for one in sent.of("transaction")][len(control) :]
    assert inside == jobs.succeeds.tenant_task.path
    assert around == ["tests.contrib.jobs.calls_one_of_ours"] * len(control)


@pytest.mark.parametrize("settings", [{}, ONLY_SENTRY], ids=["control: without our context", "with it"])
def test_a_plain_rq_job_is_in_the_trace_that_sentrys_rq_integration_has_noted(settings: dict[str, Any]) -> None:
    """It brings no context of ours, unless the project puts it there."""
    with sentry_on(InMemory(), RqIntegration()) as sent, override_settings(TENANT_SLOTS=settings):
        with sentry_sdk.start_transaction(name="request", op="http.server") as asked:
            django_rq.get_queue("imports").enqueue(jobs.process, "acme")
        work()
    runs = [one for one in sent.of("transaction") if one["transaction"] != "request"]
    assert runs or not settings, "older versions of sentry_sdk do not know this class of workers by themselves"
    assert {one["contexts"]["trace"]["trace_id"] for one in runs} <= {asked.trace_id}


def test_a_plain_rq_job_that_brings_our_context_is_in_that_trace(sent: InMemory) -> None:
    with sentry_sdk.start_transaction(name="first") as first:
        meta = {IN_META: sentry.capture()}
    with sentry_sdk.start_transaction(name="second"):
        django_rq.get_queue("imports").enqueue(jobs.process, "acme", meta=meta)
    work()
    trace_of = {one["transaction"]: one["contexts"]["trace"]["trace_id"] for one in sent.of("transaction")}
    assert trace_of[jobs.process.tenant_task.path] == first.trace_id


@pytest.mark.parametrize("in_a_trace", [True, False])
@pytest.mark.parametrize("task", [jobs.succeeds_in_vain, jobs.fails_twice])
def test_an_error_of_a_callback_is_told_with_the_jobs_name_and_tags_in_the_trace_of_its_run(
    sent: InMemory, task: Any, in_a_trace: bool
) -> None:
    if in_a_trace:
        with sentry_sdk.start_transaction(name="request"):
            job = task.enqueue("acme")
    else:
        with override_settings(TENANT_SLOTS={}):
            job = task.enqueue("acme")
    work()
    (run,) = [one for one in sent.of("transaction") if one["transaction"] == job.task]
    (event,) = [one for one in sent.of("event") if one["exception"]["values"][-1]["type"] == "KeyError"]
    assert event["transaction"] == job.task
    assert event["tags"].items() >= {"tenant_slots.tenant": "acme", "tenant_slots.task": job.task}.items()
    assert event["contexts"]["trace"]["trace_id"] == run["contexts"]["trace"]["trace_id"]


def test_an_error_of_a_callback_is_told_once(sent: InMemory) -> None:
    jobs.succeeds_in_vain.enqueue("acme")
    work()
    assert errors_in(sent) == ["KeyError"]


def moved(job: TenantJob) -> None:
    """To where no worker finds it any more."""
    TenantJob.objects.filter(pk=job.pk).update(task="shop.nowhere.fails")


def spoilt(job: TenantJob) -> None:
    TenantJob.objects.filter(pk=job.pk).update(args=Value("none of ours", JSONField()))


def refused(job: TenantJob) -> None:
    TenantJob.objects.filter(pk=job.pk).update(context={"refused": True})


def had_its_retry(job: TenantJob) -> None:
    TenantJob.objects.filter(pk=job.pk).update(failures=1)


@contextmanager
def doorkeeper(job: TenantJob) -> Iterator[None]:
    """One of the project's contexts, after ours."""
    if job.context.get("refused"):
        raise PermissionError("not today")
    yield


@pytest.mark.parametrize(
    ("task", "happens", "error"),
    [
        (jobs.leaves, None, "SystemExit"),
        (jobs.gives_up, None, "CancelledError"),
        (jobs.asks_again, had_its_retry, "RetriesExceeded"),
        (jobs.asks_for_nonsense, None, "InvalidOption"),
        (jobs.succeeds, refused, "PermissionError"),
        (jobs.succeeds, moved, "UnknownJob"),
        (jobs.succeeds, spoilt, "UnreadableColumn"),
    ],
)
def test_whatever_ends_a_job_is_one_event_with_its_tags(sent: InMemory, task: Any, happens: Any, error: str) -> None:
    both = [*ONLY_SENTRY["JOB_CONTEXT"], f"{__name__}.doorkeeper"]
    with override_settings(TENANT_SLOTS={**ONLY_SENTRY, "JOB_CONTEXT": both, "UNKNOWN_TASK_WAIT": 0}):
        job = task.enqueue("acme")
        if happens is not None:
            happens(job)
        work()
    job.refresh_from_db()
    assert job.state == State.FAILED
    (event,) = sent.of("event")
    assert event["exception"]["values"][-1]["type"] == error
    assert event["tags"]["tenant_slots.tenant"] == "acme"
    assert event["tags"]["tenant_slots.task"] == event["transaction"] == job.task
    assert [one["transaction"] for one in sent.of("transaction")] == [job.task]


def test_a_job_that_waits_for_a_worker_that_knows_its_function_is_no_event(sent: InMemory) -> None:
    job = jobs.succeeds.enqueue("acme")
    moved(job)
    work()
    assert fresh(job).state == State.SCHEDULED
    assert sent.items == []


def test_a_delivery_in_which_nothing_runs_is_no_transaction(sent: InMemory) -> None:
    """A plain RQ job of a tenant without a slot comes again and again; the other one is of an attempt that is over."""
    row = tenant_queue(max_job=0)
    ended = waiting_job(row)
    queue = django_rq.get_queue("imports")
    queue.enqueue(jobs.succeeds, "acme")
    queue.enqueue("tenant_slots.run_job", str(ended.uuid), 7)
    work()
    assert TenantJob.objects.filter(state=State.WAITING).count() == 2
    assert sent.items == []


def test_a_busy_tenant_is_no_failed_transaction(sent: InMemory) -> None:
    failed, busy = jobs.fails.enqueue("acme"), jobs.busy.enqueue("other")
    work()
    status_of = {one["transaction"]: one["contexts"]["trace"].get("status") for one in sent.of("transaction")}
    assert status_of[failed.task] == "internal_error"
    assert status_of[busy.task] in (None, "ok")


def test_a_busy_tenant_is_no_event(sent: InMemory) -> None:
    job = jobs.busy.enqueue("acme")
    work()
    assert fresh(job).state == State.WAITING
    assert not sent.of("event")


def test_a_run_that_ends_with_its_worker_is_no_event(sent: InMemory) -> None:
    job = waiting_job(tenant_queue(), attempt=1)
    with pytest.raises(EndedAtOnce), sentry.job_context(job):
        raise EndedAtOnce
    assert [kind for kind, _ in sent.items] == ["transaction"]


def test_a_run_that_ends_with_its_worker_is_no_failed_span(spans: InMemorySpanExporter) -> None:
    job = waiting_job(tenant_queue(), attempt=1)
    with pytest.raises(EndedAtOnce), opentelemetry.job_context(job):
        raise EndedAtOnce
    span = named(spans, job.task)
    assert span.status.status_code == StatusCode.UNSET
    assert [event.name for event in span.events] == ["ended with its worker"]


def test_tags_of_one_job_are_not_those_of_the_next(sent: InMemory) -> None:
    jobs.succeeds.enqueue("acme")
    work()
    sentry_sdk.capture_message("between")
    (event,) = sent.of("event")
    assert not event.get("tags")


def test_a_failure_is_told_with_what_the_job_did_and_nothing_of_what_was_before(sent: InMemory) -> None:
    """A worker has its own work behind it, and other tenants' jobs."""
    sentry_sdk.add_breadcrumb(message="for another tenant")
    jobs.fails.enqueue("acme")
    work()
    sentry_sdk.capture_message("control")
    failure, control = ([crumb["message"] for crumb in event["breadcrumbs"]["values"]] for event in sent.of("event"))
    assert "read the feed" in failure
    assert "for another tenant" not in failure
    assert "for another tenant" in control


def test_where_sentry_is_off_nothing_is_kept_and_jobs_run() -> None:
    with override_settings(TENANT_SLOTS=ONLY_SENTRY):
        job = jobs.succeeds.enqueue("acme")
        work()
    assert sentry.capture() == {}
    assert (fresh(job).state, fresh(job).context) == (State.FINISHED, {})


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "traces.md"


def python_in(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.fixture
def streamed() -> Iterator[InMemory]:
    """Sentry as it sends spans as they end, and no transactions."""
    if not hasattr(sentry.traces, "start_span"):
        pytest.skip("this version of sentry_sdk streams no spans")
    with sentry_on(InMemory(), RqIntegration(), **streaming()) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        yield sent


def streaming() -> dict[str, Any]:
    """The options for it, which are among the experiments until they are Sentry's own."""
    own = {"trace_lifecycle": "stream", "ignore_spans": [{"name": "tenant_slots.run_job"}]}
    return own if "trace_lifecycle" in DEFAULT_OPTIONS else {"_experiments": own}


def streamed_spans(transport: InMemory) -> dict[str, dict[str, Any]]:
    sentry_sdk.flush()
    return {span["name"]: span for sent in transport.of("span") for span in sent["items"]}


@pytest.mark.filterwarnings("error:.*streaming mode")
def test_where_spans_are_streamed_a_run_is_one_in_the_trace_of_the_request(streamed: InMemory) -> None:
    with sentry_sdk.traces.start_span(name="request", parent_span=None) as asked:
        job = jobs.fails.enqueue("acme")
    work()
    spans = streamed_spans(streamed)
    assert set(spans) == {"request", job.task}
    run = spans[job.task]
    assert (run["trace_id"], run["parent_span_id"], run["is_segment"]) == (asked.trace_id, asked.span_id, True)
    assert run["status"] == "error"
    attributes = {name: value["value"] for name, value in run["attributes"].items()}
    assert (attributes["tenant_slots.tenant"], attributes["tenant_slots.attempt"]) == ("acme", 1)
    (event,) = streamed.of("event")
    assert (event["contexts"]["trace"]["trace_id"], event["transaction"]) == (asked.trace_id, job.task)


def test_where_spans_are_streamed_jobs_of_nobodys_request_have_a_trace_each(streamed: InMemory) -> None:
    jobs.succeeds.enqueue("acme")
    jobs.process.enqueue("acme")
    TenantJob.objects.update(context={})
    work()
    assert len({span["trace_id"] for span in streamed_spans(streamed).values()}) == 2


def test_where_spans_are_streamed_the_sampler_of_the_page_leaves_out_queries_of_nobodys_run(streamed: InMemory) -> None:
    """By streaming itself each is a segment, as the control says."""
    (code,) = [one for one in python_in(PAGE) if "is_query" in one]
    named: dict[str, Any] = {}
    exec(code.replace("0.1", "1"), named)  # noqa: S102 - from the manual

    def query(text: str) -> None:
        with sentry.traces.start_span(name=text, attributes={"sentry.op": "db"}):
            pass

    for name, options in (("of a sweep", {}), ("of another one", {"traces_sampler": named["traces_sampler"]})):
        sentry_sdk.get_client().options |= options
        sentry.traces.new_trace()
        query(name)
        with sentry.traces.start_span(name="request", attributes={"sentry.op": "http.server"}):
            query(f"beside {name}")
        sentry_sdk.get_current_scope().generate_propagation_context({})
    assert set(streamed_spans(streamed)) == {"of a sweep", "request", "beside of a sweep", "beside of another one"}


def test_where_sentry_knows_the_option_and_streams_nothing_a_run_is_a_transaction(
    sent: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sentry_sdk 2.52 to 2.54."""
    monkeypatch.setattr(sentry, "traces", ModuleType("sentry_sdk.traces"))
    monkeypatch.setattr(sentry, "has_span_streaming_enabled", lambda options: True, raising=False)
    job = jobs.succeeds.enqueue("acme")
    work()
    assert fresh(job).state == State.FINISHED
    assert [one["transaction"] for one in sent.of("transaction")] == [job.task]


def test_whatever_a_version_of_sentry_makes_of_streaming_no_job_fails_by_it() -> None:
    with sentry_on(InMemory(), **streaming()) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        job = jobs.succeeds.enqueue("acme")
        work()
        told = [*streamed_spans(sent), *(one["transaction"] for one in sent.of("transaction"))]
    assert (fresh(job).state, job.task in told) == (State.FINISHED, True)


def test_a_plain_rq_job_without_a_tenant_is_traced_too(spans: InMemorySpanExporter) -> None:
    """It has no row, and so neither times nor a context."""
    with override_settings(TENANT_SLOTS=BOTH), sentry_on(InMemory()) as transport:
        queued = django_rq.get_queue("imports").enqueue(jobs.succeeds, "")
        work()
    assert queued.get_status(refresh=True) == "finished"
    assert named(spans, "tests.contrib.jobs.succeeds").attributes["tenant_slots.tenant"] == ""
    assert [one["transaction"] for one in transport.of("transaction")] == ["tests.contrib.jobs.succeeds"]


# --- what visitors send -----------------------------------------------------------------------------------------------

TRACE = "0af7651916cd43dd8448eb211c80319c"
LONG = {"baggage": ",".join(f"sentry-{name}={'x' * 2000}" for name in "abc")}
BY_OTEL = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", **LONG}
BY_SENTRY = {"sentry-trace": f"{TRACE}-b7ad6b7169203331-1", **LONG}


@pytest.mark.usefixtures("spans")
@pytest.mark.parametrize(("most", "kept"), [(65536, {"baggage"}), (4096, set()), (150, set())])
def test_a_header_that_is_too_long_for_a_row_keeps_nobody_from_enqueueing(most: int, kept: set[str]) -> None:
    """Whoever sends the request says how long it is. The trace goes on without it."""
    token = context.attach(propagate.extract(BY_OTEL))
    try:
        with override_settings(TENANT_SLOTS={**ONLY_OTEL, "MAX_ARGS_BYTES": most}):
            by_otel = jobs.succeeds.enqueue("acme").context["opentelemetry"]
    finally:
        context.detach(token)
    assert by_otel.keys() == {"traceparent"} | kept
    assert TRACE in by_otel["traceparent"]
    small = override_settings(TENANT_SLOTS={**ONLY_SENTRY, "MAX_ARGS_BYTES": most})
    with small, sentry_on(InMemory()), sentry_sdk.start_transaction(sentry_sdk.continue_trace(BY_SENTRY)):
        by_sentry = jobs.succeeds.enqueue("acme").context["sentry"]
    assert by_sentry.keys() == {"sentry-trace"} | kept
    assert TRACE in by_sentry["sentry-trace"]


class HeaderForEachItem(TextMapPropagator):
    """As Jaeger's: what a visitor sends as baggage becomes as many headers as that has items."""

    fields: set[str] = set()

    def inject(self, carrier: Any, context: Any = None, setter: Any = None) -> None:
        carrier.update({f"uberctx-{name}": value for name, value in baggage.get_all(context).items()})

    def extract(self, carrier: Any, context: Any = None, getter: Any = None) -> Any:
        return context


def kept_of(items: dict[str, Any]) -> dict[str, str]:
    """The headers in a job's row, where a request has brought these items, each in a header of its own."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([HeaderForEachItem(), TraceContextTextMapPropagator()]))
    sent = context.get_current()
    for name, value in items.items():
        sent = baggage.set_baggage(name, value, sent)
    token = context.attach(sent)
    try:
        with request():
            kept: dict[str, str] = jobs.succeeds.enqueue("acme").context["opentelemetry"]
    finally:
        context.detach(token)
        propagate.set_global_textmap(before)
    return kept


@pytest.mark.usefixtures("spans")
def test_many_headers_that_are_too_long_together_keep_nobody_from_enqueueing() -> None:
    """The shortest ones are kept, among them the one that has the trace."""
    kept = kept_of({f"item{number}": "x" * (8000 if number else 10) for number in range(12)})
    assert kept.keys() == {"traceparent", "uberctx-item0", "uberctx-item1"}


@pytest.mark.usefixtures("spans")
@pytest.mark.parametrize(
    "items",
    [
        {f"k{number:03}": "v" * 38 for number in range(180)},
        {f"{letter * 4000}": "v" for letter in "abc"},
    ],
    ids=["many short ones", "long names"],
)
def test_no_headers_that_a_visitor_can_send_take_the_place_of_the_trace(items: dict[str, str]) -> None:
    kept = kept_of(items)
    assert "traceparent" in kept
    assert any(name.startswith("uberctx-") for name in kept), "and the others as far as there is room"


@pytest.mark.usefixtures("spans")
def test_a_header_that_is_no_text_keeps_nobody_from_enqueueing() -> None:
    """A project may have anything in its baggage, and a propagator of its own writes it as it is."""
    assert kept_of({"user": 7, "shop": "acme"}).keys() == {"traceparent", "uberctx-shop"}


@pytest.mark.usefixtures("spans")
@pytest.mark.parametrize("sent", ["us%00er=1", "user=a%00b"])
def test_a_header_that_no_database_takes_keeps_nobody_from_enqueueing(sent: str) -> None:
    """A propagator may read the one header that visitors send, and write one for each item, without its escapes."""
    items = baggage.get_all(W3CBaggagePropagator().extract({"baggage": f"{sent},shop=acme"}))
    assert kept_of({name: str(value) for name, value in items.items()}).keys() == {"traceparent", "uberctx-shop"}


def test_a_header_that_does_not_fit_leaves_the_room_to_the_others() -> None:
    """Also where it is one of the trace's own."""
    found = {"b3": "x" * 60, "x-b3": "x" * 80, "other": "y"}
    with override_settings(TENANT_SLOTS={"MAX_ARGS_BYTES": 150}):
        assert tracing.headers(found, ("b3", "x-b3")).keys() == {"b3", "other"}


@pytest.mark.parametrize(
    "kept",
    [
        "no headers",
        ["traceparent"],
        {"traceparent": 5, "sentry-trace": None, "baggage": ["a"]},
        {"traceparent": "00-zz", "tracestate": "=,=", "sentry-trace": "-", "baggage": "sentry-sample_rand=much,=,%"},
    ],
)
def test_a_job_runs_whatever_others_have_written_where_its_trace_is(spans: InMemorySpanExporter, kept: Any) -> None:
    """A plain RQ job of another program brings its own, and SQL may write any."""
    with override_settings(TENANT_SLOTS=BOTH), sentry_on(InMemory()) as transport:
        job = jobs.succeeds.enqueue("acme")
        TenantJob.objects.filter(pk=job.pk).update(context={"opentelemetry": kept, "sentry": kept})
        work()
    assert fresh(job).state == State.FINISHED
    assert named(spans, job.task).parent is None
    assert [one["transaction"] for one in transport.of("transaction")] == [job.task]


# --- who waits until what was recorded is sent ------------------------------------------------------------------------


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


# --- both, with real processes ----------------------------------------------------------------------------------------


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


PREFORK = "tenant_slots.workers.TenantPreforkWorker"
SIMPLE = "tenant_slots.workers.TenantSimpleWorker"


class SentryServer(ThreadingHTTPServer):
    """Notes what Sentry's own transport sends it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), TellsSentry)
        self.dsn = f"http://key@127.0.0.1:{self.server_port}/1"
        self.told: list[Any] = []
        self.answers = threading.Event()
        self.answers.set()

    def of(self, kind: str) -> list[Any]:
        return [one["transaction"] for one in self.told if one.get("type", "event") == kind and "transaction" in one]

    def errors(self) -> list[str]:
        """The class of each error that it was told of, or the logger of one that was only logged."""
        told = [one for one in self.told if one.get("level") == "error"]
        return [one["exception"]["values"][-1]["type"] if "exception" in one else one["logger"] for one in told]

    def logs(self) -> list[str]:
        return [one["body"] for told in self.told if "items" in told for one in told["items"]]


class TellsSentry(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        lines = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        server: Any = self.server
        server.told.extend(json.loads(line) for line in lines.splitlines())
        server.answers.wait(60)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def sentry_server(workers: Workers) -> Iterator[SentryServer]:
    """Workers send to it, and have Sentry from their start on, as one that a project has in its settings."""
    with SentryServer() as server:
        workers.variables |= {"SENTRY_DSN": server.dsn, "TEST_TENANT_SLOTS": json.dumps(ONLY_SENTRY)}
        workers.variables["TEST_EXCEPTION_HANDLERS"] = "tests.contrib.jobs.leaves_it_to_rq"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_thread_that_sends_to_sentry_is_no_reason_for_another_work_horse(
    workers: Workers, sentry_server: SentryServer
) -> None:
    made = [jobs.process.enqueue("acme") for _ in range(4)]
    assert workers.run("--burst", worker_class=PREFORK).returncode == 0
    assert len({fresh(job).result for job in made}) == 1
    assert sentry_server.of("transaction") == [job.task for job in made]


def test_what_a_worker_does_by_itself_is_not_observed_but_what_it_logs_and_what_it_runs_for_the_project() -> None:
    with sentry_on(InMemory()), sentry_sdk.new_scope():
        integrations = sentry_sdk.get_client().integrations
        integrations |= {"redis": LoggingIntegration(), "django": LoggingIntegration()}

        def observed() -> set[str]:
            return {name for name in integrations if sentry_sdk.get_client().get_integration(name)}

        everything = observed()
        unobserved.stop_observing()
        assert observed() == everything - {"redis", "django"}
        assert "logging" in observed()
        with unobserved.observed():
            assert observed() == everything
        assert observed() == everything - {"redis", "django"}
        unobserved.observe_again()
        assert observed() == everything


def test_what_a_work_horse_waits_for_when_it_parts_is_what_its_jobs_have_sent() -> None:
    """It has parted from the job's scope by then."""
    with sentry_on(InMemory()), sentry_sdk.new_scope():
        client = sentry_sdk.get_client()
        client.options["transport"] = InMemory  # a class, as where projects name none: each client makes one of its own
        unobserved.stop_observing()
        assert sentry_sdk.get_client() is not client
        assert sentry_sdk.get_client().transport is client.transport
        unobserved.observe_again()


def test_a_worker_sends_by_a_way_that_none_of_its_work_horses_takes() -> None:
    with sentry_on(InMemory()), sentry_sdk.new_scope():
        client = sentry_sdk.get_client()
        client.options["transport"] = InMemory
        before = client.transport
        unobserved.stop_observing(forks=True)
        assert sentry_sdk.get_client().transport is before, "what the project has told may not be sent yet"
        unobserved.observe_again()
        assert sentry_sdk.get_client() is client
        assert client.transport is not before


def test_nor_is_it_by_the_instrumentations_of_opentelemetry() -> None:
    def is_suppressed() -> bool:
        return bool(context.get_value("suppress_instrumentation"))

    def run() -> None:
        assert not is_suppressed()
        unobserved.stop_observing()
        assert is_suppressed()
        with unobserved.observed():
            assert not is_suppressed()
        assert is_suppressed()
        unobserved.observe_again()
        assert not is_suppressed()

    contextvars.copy_context().run(run)


def test_where_sentry_is_off_there_is_nothing_to_leave_out() -> None:
    contextvars.copy_context().run(unobserved.stop_observing)
    with unobserved.observed():
        unobserved.observe_again()
    assert not sentry_sdk.get_client().is_active()


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_the_queries_of_a_job_are_in_its_trace(workers: Workers, sentry_server: SentryServer, kind: str) -> None:
    for _ in range(2):
        jobs.counts.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    told = [one for one in sentry_server.told if "spans" in one]
    assert [sum("COUNT" in span["description"] for span in one["spans"]) for one in told] == [1, 1]


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK, SIMPLE, "rq.Worker"])
def test_each_failure_up_to_the_last_job_of_a_work_horse_reaches_sentry_once(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    job = jobs.process.enqueue("acme", "enough", leaves=True)
    jobs.process.enqueue("acme", "no such feed")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert (sentry_server.of("event"), sentry_server.of("transaction")) == ([job.task] * 2, [job.task] * 2)


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK, SIMPLE, "rq.Worker"])
def test_in_every_worker_a_failure_is_told_once_whatever_is_told_or_raised_after_it(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    jobs.fails_twice.enqueue("acme")
    jobs.fails_unspeakably.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert sentry_server.errors() == ["ValueError", "KeyError", "ValueError"]


@pytest.mark.parametrize(
    ("kind", "variables", "told"),
    [
        (PREFORK, {}, "OSError"),
        ("rq.Worker", {}, "OSError"),
        (PREFORK, {"SENTRY_WITHOUT_RQ": "yes"}, "rq.worker"),
        (SIMPLE, {"SENTRY_WITHOUT_RQ": "yes"}, "rq.worker"),
    ],
)
def test_a_plain_rq_job_that_fails_after_one_of_ours_inside_of_it_is_told_too(
    workers: Workers, sentry_server: SentryServer, kind: str, variables: dict[str, str], told: str
) -> None:
    """By the integration, or else by the log."""
    workers.variables |= {"TEST_TENANT_SLOTS": json.dumps({**ONLY_SENTRY, "IMMEDIATE": True}), **variables}
    django_rq.get_queue("imports").enqueue(jobs.fails_after_one_of_ours)
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert sentry_server.errors() == ["ValueError", told]


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_a_run_is_told_with_its_tenant_and_queue_whether_the_worker_has_it_from_rqs_list_or_took_it_itself(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    for _ in range(3):
        jobs.fails.enqueue("acme")
    in_list = django_rq.get_queue("imports").count
    assert workers.run("--burst", worker_class=kind).returncode == 0
    events = [one for one in sentry_server.told if "exception" in one]
    tags = [(one["tags"].get("tenant_slots.tenant"), one["tags"].get("tenant_slots.queue")) for one in events]
    assert tags == [("acme", "imports")] * 3
    assert in_list == 1, "control: the others are taken"


def test_without_its_rq_integration_sentry_is_told_of_plain_rq_jobs_by_the_log_as_ever(
    workers: Workers, sentry_server: SentryServer
) -> None:
    """And of ours once."""
    workers.variables["SENTRY_WITHOUT_RQ"] = "yes"
    queue = django_rq.get_queue("imports")
    queue.enqueue(jobs.fails_in_plain_rq)
    queue.enqueue(jobs.fails, "acme")
    queue.enqueue(jobs.fails_in_plain_rq)
    job = jobs.fails.enqueue("acme")
    assert workers.run("--burst", worker_class=SIMPLE).returncode == 0
    events = [one for one in sentry_server.told if one.get("level") == "error"]
    assert sorted(one.get("logger") or one["transaction"] for one in events) == ["rq.worker"] * 2 + [job.task] * 2


ENDS_ITS_PROCESS = """
@receiver(job_ended)
def ends_its_process(job, **kwargs):
    if not job.task.endswith("succeeds"):
        os._exit(1)
"""


ERROR_AT_ITS_START = """
import logging
logging.getLogger("shop").error("an old setting")
"""


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_what_a_worker_has_not_sent_yet_when_it_forks_is_sent_once(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    """The server answers no error of the worker before it has heard of a job of the last work-horse."""
    workers.variables["RECEIVER"] = "import os\nfrom django.dispatch import receiver\n" + (
        "from tenant_slots.signals import job_ended\n" + ENDS_ITS_PROCESS + 2 * ERROR_AT_ITS_START
    )
    for _ in range(3):
        jobs.process.enqueue("acme")
    last = jobs.succeeds.enqueue("acme")
    sentry_server.answers.clear()
    (worker,) = workers.start(worker_class=kind)
    wait_until(lambda: last.task in sentry_server.of("transaction"))
    sentry_server.answers.set()
    worker.terminate()
    assert worker.wait(30) == 0
    assert sentry_server.errors() == ["shop"] * 2 + ["tenant_slots"] * 3


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_what_a_job_tells_is_sent_while_its_work_horse_lives_whatever_its_worker_has_sent_before(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    workers.variables["RECEIVER"] = ERROR_AT_ITS_START
    workers.start(worker_class=kind)
    wait_until(lambda: sentry_server.errors() == ["shop"])
    job = jobs.succeeds.enqueue("acme")
    wait_until(lambda: sentry_server.of("transaction") == [job.task])


@pytest.mark.skipif("enable_logs" not in DEFAULT_OPTIONS, reason="sentry_sdk is older than its logs")
@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_what_is_logged_before_a_worker_begins_is_sent_once(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    """Sentry collects logs for five seconds, which is longer than this worker lives."""
    workers.variables |= {"SENTRY_LOGS": "yes", "RECEIVER": ERROR_AT_ITS_START}
    for _ in range(2):
        jobs.process.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert sentry_server.logs().count("an old setting") == 1


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_the_receiver_of_the_page_tells_of_a_job_whose_process_was_killed_and_of_no_other(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    (code,) = [one for one in python_in(PAGE) if "@receiver" in one]
    settings = {**ONLY_SENTRY, "MAX_CRASHES": 0}
    workers.variables |= {"RECEIVER": code, "TEST_TENANT_SLOTS": json.dumps(settings)}
    jobs.fails.enqueue("acme")
    jobs.succeeds.enqueue("acme")
    job = jobs.dies.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    errors = [one for one in sentry_server.told if one.get("level") == "error"]
    assert [one.get("message", "").partition(" failed: ")[0] for one in errors] == ["", str(fresh(job))]
