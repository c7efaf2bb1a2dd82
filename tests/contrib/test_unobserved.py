"""What a worker does by itself is not observed by OpenTelemetry and Sentry."""

from __future__ import annotations

import contextvars

import pytest
import sentry_sdk
from opentelemetry import context
from sentry_sdk.integrations.logging import LoggingIntegration

from tenant_slots.workers import unobserved
from tests.contrib.traces import InMemory, sentry_on

pytestmark = pytest.mark.django_db(transaction=True)


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
