"""Jobs that are traced, and exporters that write what was told to the file in SPANS, for tests with real workers."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import django_rq
import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from rq import Retry
from rq.job import Job
from rq.timeouts import JobTimeoutException
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.rq import RqIntegration
from sentry_sdk.transport import Transport

from tenant_slots import TenantBusy, tenant_job
from tenant_slots.models import TenantJob


def note(kind: str, **facts: Any) -> None:
    with Path(os.environ["SPANS"]).open("a") as file:
        file.write(json.dumps({"sdk": kind, **facts}) + "\n")


def wait_if_away(variable: str) -> None:
    """Until the test has put a file into the folder that the variable names; another one says that it was asked."""
    if folder := os.environ.get(variable):
        Path(folder, "asked").touch()
        while not Path(folder, "back").exists():
            time.sleep(0.01)


class ToFile(SpanExporter):
    def export(self, spans: Any) -> SpanExportResult:
        wait_if_away("COLLECTOR_IS_AWAY")
        for span in spans:
            note("opentelemetry", **told(span))
        return SpanExportResult.SUCCESS


def told(span: ReadableSpan) -> dict[str, Any]:
    assert span.context is not None
    return {
        "name": span.name,
        "trace": f"{span.context.trace_id:032x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "attempt": (span.attributes or {}).get("tenant_slots.attempt"),
        "wait": (span.attributes or {}).get("tenant_slots.wait"),
        "status": span.status.status_code.name,
    }


class EnvelopesToFile(Transport):
    def flush(self, timeout: float, callback: Any = None) -> None:
        wait_if_away("SENTRY_IS_AWAY")

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            payload = item.payload.json
            if payload and item.type in ("transaction", "event"):
                trace_id = payload["contexts"]["trace"]["trace_id"]
                attempt = payload.get("tags", {}).get("tenant_slots.attempt")
                values = payload.get("exception", {}).get("values", [])
                errors = [value["type"] for value in values]
                name = payload.get("transaction")
                known = payload["contexts"].get("tenant_slots") or {}  # of an error; of a transaction:
                wait = known.get("wait") or payload["contexts"]["trace"].get("data", {}).get("tenant_slots.wait")
                note("sentry", type=item.type, name=name, trace=trace_id, attempt=attempt, errors=errors, wait=wait)


if "SPANS" in os.environ:  # in worker processes
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)
    sentry_sdk.init(dsn="https://key@sentry.invalid/1", traces_sample_rate=1.0, transport=EnvelopesToFile)
if "SENTRY_DSN" in os.environ:  # in those too, with the transport that projects have
    without = [RqIntegration()] if "SENTRY_WITHOUT_RQ" in os.environ else []
    logs: Any = {"enable_logs": True} if "SENTRY_LOGS" in os.environ else {}
    sentry_sdk.init(traces_sample_rate=1.0, disabled_integrations=without, **logs)


@tenant_job("imports", tenant="tenant", retry=Retry(max=2))
def traced(tenant: str, marks: str) -> None:
    """Fails, dies, and succeeds."""
    runs = len(Path(marks).read_text()) if Path(marks).exists() else 0
    Path(marks).write_text("x" * (runs + 1))
    if runs == 0:
        raise ValueError("the first time")
    if runs == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@tenant_job("imports", tenant="tenant")
def fails(tenant: str, secret: str = "") -> None:
    sentry_sdk.add_breadcrumb(message="read the feed")
    raise ValueError("no such feed")


@tenant_job("imports", tenant="tenant")
def has_no_more_time(tenant: str, fingerprint: Any = None) -> None:
    if fingerprint:
        sentry_sdk.get_current_scope().fingerprint = fingerprint
    raise JobTimeoutException("its time is over")


@tenant_job("imports", tenant="tenant")
def dies(tenant: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@tenant_job("imports", tenant="tenant")
def leaves(tenant: str) -> None:
    sys.exit("enough")


@tenant_job("imports", tenant="tenant")
async def gives_up(tenant: str) -> None:
    raise CancelledError("nobody waits for it")


@tenant_job("imports", tenant="tenant")
def asks_again(tenant: str, most: int = 1) -> Retry:
    """Each time, so that the second one is too much."""
    return Retry(max=most)


@tenant_job("imports", tenant="tenant")
async def asks_for_nonsense(tenant: str) -> Retry:
    retry = Retry(max=1)
    retry.intervals = ["soon"]  # type: ignore[list-item]
    return retry


@tenant_job("imports", tenant="tenant")
def busy(tenant: str) -> None:
    raise TenantBusy("slow down", seconds=3600)


@tenant_job("imports", tenant="tenant")
async def slow(tenant: str) -> None:
    with trace.get_tracer("tests").start_as_current_span("inside"):
        pass


def after(job: TenantJob, result: object) -> None: ...


@tenant_job("imports", tenant="tenant", on_success=after)
def succeeds(tenant: str) -> int:
    with trace.get_tracer("tests").start_as_current_span("inside"):
        return 1


@tenant_job("imports", tenant="tenant")
def process(tenant: str, error: str = "", leaves: bool = False) -> int:
    """Which one it runs in."""
    if leaves:
        sys.exit(error)
    if error:
        raise ValueError(error)
    return os.getpid()


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no text")


@tenant_job("imports", tenant="tenant")
def mute(tenant: str) -> None:
    raise Mute


def cannot_clean_up(job: TenantJob, error: BaseException) -> None:
    raise KeyError("nothing to clean up")


@tenant_job("imports", tenant="tenant", on_failure=cannot_clean_up)
def fails_twice(tenant: str) -> None:
    raise ValueError("no such feed")


def cannot_tell(job: TenantJob, result: object) -> None:
    raise KeyError("nobody to tell")


@tenant_job("imports", tenant="tenant", on_success=cannot_tell)
def succeeds_in_vain(tenant: str) -> None: ...


@tenant_job("imports", tenant="tenant")
def fails_unspeakably(tenant: str) -> None:
    """With a text that RQ could not write, so that it is given another error."""
    raise ValueError(os.fsdecode(b"\xff"))


def calls_one_of_ours() -> None:
    """As the test says: on a synchronous queue, or in immediate mode."""
    if os.environ["CALLS_SYNCHRONOUSLY"]:
        django_rq.get_queue("imports", is_async=False).enqueue(succeeds, "acme")
    else:
        succeeds.enqueue("acme")


def fails_in_plain_rq() -> None:
    raise OSError("disk full")


def fails_after_one_of_ours() -> None:
    """In immediate mode."""
    fails.enqueue("acme")
    raise OSError("disk full")


receivers: dict[str, Any] = {"__name__": "shop.receivers"}
"""A module of the manual's; signals do not keep what they call."""

exec(os.environ.get("RECEIVER", ""), receivers)  # noqa: S102


def leaves_it_to_rq(job: Job, *error: Any) -> bool:
    """A handler of errors, whose module workers load at their start."""
    return True


@tenant_job("imports", tenant="tenant")
def counts(tenant: str) -> int:
    return TenantJob.objects.count()
