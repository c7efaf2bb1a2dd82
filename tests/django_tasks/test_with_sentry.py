"""A call of one of Django's Tasks that fails is one event of Sentry's, though Django logs it as an error too."""

from __future__ import annotations

import pytest

from tests.contrib.sentry_server import SentryServer, sentry_server
from tests.contrib.traces import PREFORK, SIMPLE
from tests.django_tasks import tasks
from tests.processes import Workers

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["sentry_server"]

LOGGERS = {"django.tasks", "django_tasks"}
"""Of Django, and of the backport."""


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK, SIMPLE])
def test_a_call_that_fails_is_told_once_in_every_worker(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    tasks.fail.enqueue("acme")
    tasks.exit_at_once.enqueue("acme")
    tasks.fail.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert sentry_server.errors() == ["ValueError", "SystemExit", "ValueError"]


def test_control_what_django_logs_of_a_call_that_nobody_has_told_of_is_an_event(
    workers: Workers, sentry_server: SentryServer
) -> None:
    """In a worker that sends what it has when it ends, as a work-horse may end before that."""
    workers.variables["TEST_TENANT_SLOTS"] = "{}"
    tasks.fail.enqueue("acme")
    assert workers.run("--burst", worker_class=SIMPLE).returncode == 0
    assert LOGGERS & {one.get("logger") for one in sentry_server.told}
