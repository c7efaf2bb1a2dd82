"""Where Sentry streams spans as they end, a run is one of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import sentry_sdk
from django.test import override_settings
from sentry_sdk.consts import DEFAULT_OPTIONS
from sentry_sdk.integrations.rq import RqIntegration

from tenant_slots.contrib import sentry
from tenant_slots.models import State, TenantJob
from tests.contrib import jobs
from tests.contrib.traces import ONLY_SENTRY, PAGE, InMemory, python_in, sentry_on
from tests.factories import fresh, work

pytestmark = pytest.mark.django_db(transaction=True)


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
