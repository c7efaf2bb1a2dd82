"""Sentry: a job is a transaction named after its task, in the trace of whoever enqueued it; a failure is one event.

It goes with sentry_sdk's own integration for RQ, which is on by itself and names every job of ours after the function
that RQ calls: what that one would send for the same run is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import LogRecord
from typing import Any

import sentry_sdk
from rq import get_current_job
from rq.job import Job
from rq.timeouts import JobTimeoutException
from sentry_sdk.scope import add_global_event_processor, global_event_processors
from sentry_sdk.utils import event_from_exception

from tenant_slots import parting
from tenant_slots.contrib import tracing
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import TenantJob
from tenant_slots.running.here import HAS_RAISED
from tenant_slots.tasks import context
from tenant_slots.tasks.tenant_busy import TenantBusy

try:
    from sentry_sdk import traces
    from sentry_sdk.tracing_utils import has_span_streaming_enabled
except ImportError:  # older than that spans can be streamed
    traces = None  # type: ignore[assignment]

KEY = "sentry"

OF_RQ = "queue.task.rq"
"""The operation of the transactions of sentry_sdk's integration."""

OPERATION = "queue.process"
ORIGIN = "auto.queue.tenant_slots"

TAGS = ("task", "tenant", "queue", "attempt")

IN_META_OF_RQ = "_sentry_trace_headers"
"""Where that integration notes the trace of whoever enqueued a plain RQ job (sentry_sdk 2.12 to 2.75)."""

NO_FAILURES = (TenantBusy, EndedAtOnce)

TIME_OUT = ["rq", "JobTimeoutException"]
"""How that integration has time-outs of RQ grouped, before the function that RQ calls: which is one for all of ours."""


_told: ContextVar[TenantJob | None] = ContextVar("tenant_slots_told_sentry", default=None)
"""The job whose failure is the last one that is an event by now."""

_last_run: ContextVar[tuple[TenantJob, str] | None] = ContextVar("tenant_slots_last_run_in_sentry", default=None)
"""The job that has run here last, and its run in its trace, which a job that brings no trace has begun."""

_told_rq_id: ContextVar[str | None] = ContextVar("tenant_slots_told_sentry_rq_id", default=None)
"""The RQ job that has brought such a job, the last one that did."""

_ids_told: deque[str] = deque(maxlen=1000)
"""Of such jobs, the last ones: Django's log of a Task hears of their end later, and in another context."""

LOGGERS_OF_TASKS = ("django.tasks", "django_tasks")
"""Django's and the backport's, which note as an error that a call has failed."""


def capture() -> dict[str, Any]:
    """For ``CAPTURE_CONTEXT``: the headers that continue the current trace. Nothing where Sentry is off."""
    if not sentry_sdk.get_client().is_active():
        return {}
    found = {"sentry-trace": sentry_sdk.get_traceparent() or "", "baggage": sentry_sdk.get_baggage() or ""}
    return {KEY: tracing.headers(found, ("sentry-trace",))}


@contextmanager
def job_context(job: TenantJob) -> Iterator[None]:
    """For ``JOB_CONTEXT``: the transaction, with the job's tags on all that is sent meanwhile."""
    if not sentry_sdk.get_client().is_active():
        yield
        return
    span = _segment if _are_spans_streamed() else _transaction
    around = sentry_sdk.get_current_scope()
    failed = True
    try:
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()  # of what the process did before, for others
            known = tracing.attributes_of(job)
            _tell_of(known, scope)
            if tracing.is_run(job):
                put_back = None
                with span(job, {f"tenant_slots.{name}": value for name, value in known.items()}):
                    try:
                        with _captured(job, around):
                            yield
                    except NO_FAILURES as error:  # which the transaction would take for a failure
                        put_back = error
                if put_back is not None:
                    raise put_back
            else:
                with _beside_run(job):
                    yield
        failed = False
    except NO_FAILURES:
        failed = False
        raise
    finally:
        parting.before_parting(_flush, soon=failed)


def _flush() -> None:
    sentry_sdk.flush(parting.SECONDS_TO_GRANT)


def _tell_of(known: dict[str, Any], scope: sentry_sdk.Scope) -> None:
    """Of the transaction, all that is known are the attributes; to write these down twice took it a tenth longer."""
    for name in TAGS:
        if name in known:
            scope.set_tag(f"tenant_slots.{name}", str(known[name]))

    def with_context(event: Any, hint: Any) -> Any:
        if event.get("type") != "transaction":
            event.setdefault("contexts", {})["tenant_slots"] = known
        return event

    scope.add_event_processor(with_context)
    sentry_sdk.get_current_scope().add_event_processor(_with_time_outs_by(known.get("task")))  # after that of RQ


def _with_time_outs_by(task: Any) -> Any:
    """They come wherever the function was just then: by their stacks each would be an issue of its own."""

    def grouped(event: Any, hint: Any) -> Any:
        kind, *_ = hint.get("exc_info") or (None,)
        if kind is not None and issubclass(kind, JobTimeoutException) and _is_grouped_by_rq(event):
            event["fingerprint"] = [*TIME_OUT, str(task)]
        return event

    return grouped


def _is_grouped_by_rq(event: Any) -> bool:
    """Or not yet; but by none that the project has given it."""
    return list(event.get("fingerprint") or TIME_OUT)[:2] == TIME_OUT


@contextmanager
def _transaction(job: TenantJob, attributes: dict[str, Any]) -> Iterator[None]:
    sentry_sdk.get_current_scope().span = None  # this scope is the job's
    transaction = sentry_sdk.continue_trace(_headers_of(job), op=OPERATION, name=job.task, source="task", origin=ORIGIN)
    with sentry_sdk.start_transaction(transaction, custom_sampling_context=_for_sampler(job)) as span:
        for name, value in attributes.items():
            span.set_data(name, value)
        _note_run(job)
        yield


def _headers_of(job: TenantJob) -> dict[str, str]:
    """A plain RQ job brings those of sentry_sdk's integration, unless the project has put ours into its meta."""
    rq_job = get_current_job()
    if (headers := tracing.headers_of(job, KEY)) or rq_job is None or rq_job.id != job.rq_job_id:
        return headers
    return tracing.texts_in(rq_job.meta.get(IN_META_OF_RQ))


def _note_run(job: TenantJob) -> None:
    _last_run.set((job, sentry_sdk.get_traceparent() or ""))


@contextmanager
def _beside_run(job: TenantJob) -> Iterator[None]:
    """What is called for a job besides its function, such as ``on_success``: no transaction, but its errors are told
    under the job's name, in the trace of its run where it has had one here.
    """
    run = _last_run.get()
    headers = {"sentry-trace": run[1]} if run is not None and run[0] == job else _headers_of(job)
    scope = sentry_sdk.get_current_scope()
    scope.span = None
    scope.set_transaction_name(job.task, source="task")
    for each in (scope, sentry_sdk.get_isolation_scope()):
        each.generate_propagation_context(headers)
    try:
        yield
    except NO_FAILURES:
        raise
    except BaseException as error:
        _tell(error)
        raise


def _drop_around() -> None:
    """Of the RQ job that has brought one of ours, and not of one that has it run inside of itself."""
    around, rq_job = sentry_sdk.get_current_scope().transaction, get_current_job()
    if around is not None and rq_job is not None and (around.op, around.name) == (OF_RQ, rq_job.func_name):
        around.sampled = False


setattr(job_context, context.AFTER_DELIVERY, _drop_around)


def _are_spans_streamed() -> bool:
    """Whether the project has each span sent as it ends, in newer versions, which know no transactions then.

    sentry_sdk 2.52 to 2.54 have the option, and nothing yet that starts a span: they send transactions as before.
    """
    return hasattr(traces, "start_span") and has_span_streaming_enabled(sentry_sdk.get_client().options)


@contextmanager
def _segment(job: TenantJob, attributes: dict[str, Any]) -> Iterator[None]:
    """What a transaction is where spans are streamed."""
    own = {"sentry.op": OPERATION, "sentry.origin": ORIGIN, "sentry.segment.name.source": "task"}
    if headers := _headers_of(job):
        traces.continue_trace(headers)
    else:
        traces.new_trace()
    scope = sentry_sdk.get_current_scope()
    scope.set_custom_sampling_context(_for_sampler(job))
    scope.span = None  # or the name would be that of the span around
    scope.set_transaction_name(job.task, source="task")  # of events, which no span names in older versions
    with traces.start_span(name=job.task, attributes=own | attributes, parent_span=None):
        _note_run(job)
        yield


def _for_sampler(job: TenantJob) -> dict[str, Any]:
    return {"tenant_slots_job": job}


@contextmanager
def _captured(job: TenantJob, around: sentry_sdk.Scope) -> Iterator[None]:
    """A failure, also by ``sys.exit()``, but no `TenantBusy`, nor a run that goes on elsewhere."""
    try:
        yield
    except NO_FAILURES:
        raise
    except BaseException as error:
        _tell(error)
        delivery = _delivery_of(job)
        _note_as_told(job, delivery)
        _drop_what_rq_raises(delivery, around)
        _drop_what_is_logged()
        raise


def _tell(error: BaseException) -> None:
    options = sentry_sdk.get_client().options
    mechanism = {"type": "tenant_slots", "handled": False}
    event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
    sentry_sdk.capture_event(event, hint)


def _delivery_of(job: TenantJob) -> Job | None:
    """The RQ job that has brought it. One inside of which it runs, in immediate mode, may fail by itself."""
    rq_job = get_current_job()
    return rq_job if rq_job is not None and rq_job.id == job.last_rq_id else None


def _note_as_told(job: TenantJob, delivery: Job | None) -> None:
    _told.set(job)
    _ids_told.append(str(job.uuid))
    if delivery is not None:
        _told_rq_id.set(delivery.id)


def _drop_what_rq_raises(delivery: Job | None, around: sentry_sdk.Scope) -> None:
    """sentry_sdk's integration tells the failure once more, in its scope around the RQ job.

    Sentry would drop that itself only where it is the same object as the last error that was told: not when a callback
    or a receiver has raised since, or RQ is given another error as it could not write this one.
    """
    if delivery is None or sentry_sdk.get_client().get_integration("rq") is None:
        return  # the scope is not for this job alone

    def drop(event: Any, hint: Any) -> Any:
        is_again = _mechanism_of(event) == "rq" and _rq_job_of(event) == delivery.id
        return None if is_again else event

    around.add_event_processor(drop)


def _drop_what_is_logged() -> None:
    """RQ logs the failure after the job, so does Django that of a Task, and so do we in immediate mode: Sentry makes an
    event of each such record.

    Ignoring the logger, as sentry_sdk's integration does, would hide the failures of the project's plain RQ jobs where
    the project has switched that integration off.
    """
    if _unless_told not in global_event_processors:
        add_global_event_processor(_unless_told)


def _unless_told(event: Any, hint: Any) -> Any:
    record = hint.get("log_record")
    return None if record is not None and _is_told(record) else event


def _is_told(record: LogRecord) -> bool:
    if record.name == "rq.worker":
        return _told_rq_id.get() is not None and getattr(record, "job_id", None) == _told_rq_id.get()
    about = record.args[0] if isinstance(record.args, tuple) and record.args else None
    if record.name in LOGGERS_OF_TASKS:
        return about in _ids_told
    return record.msg == HAS_RAISED and about is _told.get()


def _mechanism_of(event: Any) -> Any:
    errors = (event.get("exception") or {}).get("values") or [{}]
    return (errors[-1].get("mechanism") or {}).get("type")


def _rq_job_of(event: Any) -> Any:
    """By what the integration has added: a job that RQ runs inside of another one has the scope of that one.

    It adds nothing where a work-horse of ours calls the function, in a context that is for this job alone.
    """
    return event.get("extra", {}).get("rq-job", {}).get("job_id") or _told_rq_id.get()
