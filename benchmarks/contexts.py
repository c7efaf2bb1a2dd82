"""What a job may be run in: settings by name, for the process that enqueues and for the workers alike, and a scrape.

Exporters take what they are told and drop it: what a collector or a network costs is not ours to measure.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

CONTRIB = "tenant_slots.contrib"


def _of(module: str) -> dict[str, list[str]]:
    return {
        "CAPTURE_CONTEXT": [f"{CONTRIB}.{module}.capture"],
        "JOB_CONTEXT": [f"{CONTRIB}.{module}.job_context"],
    }


SENTRY_ALONE = "sentry alone"
"""Switched on, and no context of ours: its integrations make a span of each query and of each command to Redis."""

SETTINGS = {
    "": {},
    "context": _of("localization"),
    "opentelemetry": _of("opentelemetry"),
    "sentry": _of("sentry"),
    SENTRY_ALONE: {},
    "metrics": {},
}
"""Of TENANT_SLOTS."""


def switch_on(name: str) -> None:
    """In this process, for good. Loading a package belongs to no job, so it is loaded here."""
    if name == "opentelemetry":
        _switch_on_opentelemetry()
    elif name in ("sentry", SENTRY_ALONE):
        _switch_on_sentry()


def _switch_on_opentelemetry() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Dropping(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(Dropping()))
        trace.set_tracer_provider(provider)


def _switch_on_sentry() -> None:
    import sentry_sdk
    from sentry_sdk.envelope import Envelope
    from sentry_sdk.transport import Transport

    class Dropping(Transport):
        def capture_envelope(self, envelope: Envelope) -> None: ...

    sentry_sdk.init(dsn="https://key@sentry.invalid/1", traces_sample_rate=1.0, transport=Dropping)


@contextmanager
def request(name: str) -> Iterator[None]:
    """Around the enqueueing of jobs, in which all of them are to go on."""
    if name == "opentelemetry":
        from opentelemetry import trace

        with trace.get_tracer("benchmarks").start_as_current_span("request"):
            yield
    elif name == "sentry":
        import sentry_sdk

        with sentry_sdk.start_transaction(name="request"):
            yield
    else:
        yield


@contextmanager
def scraped(name: str) -> Iterator[None]:
    """With metrics: another process asks for all of them each second."""
    if name != "metrics":
        yield
        return
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scraper"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as scraper:
        if scraper.stdout is None or not scraper.stdout.readline():
            raise SystemExit("the metrics cannot be asked for")
        try:
            yield
        finally:
            scraper.terminate()
