"""Where what this process tells OpenTelemetry and Sentry is to be found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sentry_sdk
from django.test import override_settings
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.integrations.rq import RqIntegration

from tests.contrib.sentry_server import sentry_server
from tests.contrib.traces import ONLY_OTEL, ONLY_SENTRY, InMemory, sentry_on

__all__ = ["sentry_server"]

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


@pytest.fixture(params=["with its RQ integration", "without"])
def sent(request: pytest.FixtureRequest) -> Iterator[InMemory]:
    with_rq = request.param != "without"
    with sentry_on(InMemory(), *([RqIntegration()] if with_rq else [])) as transport:
        assert (sentry_sdk.get_client().get_integration(RqIntegration) is not None) is with_rq
        with override_settings(TENANT_SLOTS=ONLY_SENTRY):
            yield transport
