"""What tests of OpenTelemetry and Sentry share: the settings, and where what they were told is to be found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

BOTH = {
    "CAPTURE_CONTEXT": ["tenant_slots.contrib.opentelemetry.capture", "tenant_slots.contrib.sentry.capture"],
    "JOB_CONTEXT": ["tenant_slots.contrib.opentelemetry.job_context", "tenant_slots.contrib.sentry.job_context"],
}
ONLY_OTEL = {name: paths[:1] for name, paths in BOTH.items()}
ONLY_SENTRY = {name: paths[1:] for name, paths in BOTH.items()}
PREFORK = "tenant_slots.workers.TenantPreforkWorker"
SIMPLE = "tenant_slots.workers.TenantSimpleWorker"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "traces.md"


def python_in(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


def named(exporter: InMemorySpanExporter, name: str) -> Any:
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def request() -> Any:
    return trace.get_tracer("tests").start_as_current_span("request")


class InMemory(Transport):
    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.type or "", item.payload.json) for item in envelope.items]

    def of(self, kind: str) -> list[Any]:
        return [payload for found, payload in self.items if found == kind]


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


def errors_in(sent: InMemory) -> list[str]:
    return [event["exception"]["values"][-1]["type"] for event in sent.of("event")]
