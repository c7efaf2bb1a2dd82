"""OpenTelemetry: the trace of whoever enqueued a job goes on in it, however long it waited, in each of its runs.

The context goes with the job's row, so it is the same wherever the job is pushed from, after a crash and a FLUSHALL.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from tenant_slots import parting
from tenant_slots.contrib import tracing
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import TenantJob
from tenant_slots.tasks.tenant_busy import TenantBusy

KEY = "opentelemetry"


def capture() -> dict[str, Any]:
    """For ``CAPTURE_CONTEXT``: what the project's propagator says of the current span. Nothing outside of a trace."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    kept = tracing.headers(carrier, propagate.get_global_textmap().fields)
    return {KEY: kept} if kept else {}


@contextmanager
def job_context(job: TenantJob) -> Iterator[None]:
    """For ``JOB_CONTEXT``: a span named after the task, as a child of what was captured."""
    token = context.attach(propagate.extract(tracing.headers_of(job, KEY), context=Context()))
    try:
        if tracing.is_run(job):
            with _span(job):
                yield
        else:
            yield
    finally:
        context.detach(token)


@contextmanager
def _span(job: TenantJob) -> Iterator[None]:
    tracer = _tracer(trace.get_tracer_provider())
    attributes = {f"tenant_slots.{name}": value for name, value in tracing.attributes_of(job).items()}
    attributes |= {"messaging.system": "tenant_slots", "messaging.operation.type": "process"}
    failed = False
    try:
        with tracer.start_as_current_span(
            job.task,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except TenantBusy:
                span.add_event("tenant busy")
                raise
            except EndedAtOnce:  # no failure: it goes on elsewhere
                span.add_event("ended with its worker")
                raise
            except BaseException as error:
                failed = True
                _record(error, span)
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise
    finally:
        parting.before_parting(_flush, soon=failed)


@lru_cache(maxsize=1)
def _tracer(provider: TracerProvider) -> Tracer:
    """To make it takes the SDK longer than a span does (1.45)."""
    return provider.get_tracer("tenant_slots")


_tracer(trace.get_tracer_provider())  # before a worker forks: the work-horses of one job each would all make it anew


def _record(error: BaseException, span: Span) -> None:
    """The SDK asks an error for its text. One that has none, and raises instead, is still what the job fails with."""
    try:
        span.record_exception(error)
    except Exception:
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        stack = "".join(traceback.format_tb(error.__traceback__))
        span.add_event("exception", {"exception.type": kind, "exception.stacktrace": stack})


def _flush() -> None:
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        flush(int(parting.SECONDS_TO_GRANT * 1000))
