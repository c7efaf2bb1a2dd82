"""What visitors send as headers of a trace keeps nobody from enqueueing, and no job from running."""

from __future__ import annotations

from typing import Any

import pytest
import sentry_sdk
from django.test import override_settings
from opentelemetry import baggage, context, propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenant_slots.contrib import tracing
from tenant_slots.models import State, TenantJob
from tests.contrib import jobs
from tests.contrib.traces import BOTH, ONLY_OTEL, ONLY_SENTRY, InMemory, named, request, sentry_on
from tests.factories import fresh, work

pytestmark = pytest.mark.django_db(transaction=True)

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
