"""A trigger of the project refuses the start or the end of a tenant's jobs: no worker ends, and no other is held up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from tenant_slots.models import State, TenantJob, TenantQueue
from tests import jobs
from tests.factories import counters_match, fresh, tenant_queue
from tests.history import History
from tests.processes import Workers, wait_until
from tests.refusals import RAISED, refused

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the trigger is PostgreSQL's"),
]

CLASSES = [
    "tenant_slots.workers.TenantPreforkWorker",
    "tenant_slots.workers.TenantWorker",
    "tenant_slots.workers.TenantSimpleWorker",
    "rq.Worker",
]

CONSTRAINED = "a constraint in place of the trigger"

EACH_ERROR = [(CLASSES[0], "undefined_table"), *((name, RAISED) for name in CLASSES)]


@pytest.mark.parametrize(("worker_class", "as_error"), EACH_ERROR)
def test_a_start_that_is_refused_holds_up_no_other_tenant(
    worker_class: str, as_error: str, history: History, workers: Workers
) -> None:
    poisoned, _ = tenant_queue("poisoned", max_job=0), tenant_queue("well", max_job=2)
    spoilt = jobs.record.enqueue("poisoned", "spoilt", history.path)
    holds_slot = f"NEW.tenant_queue_id = {poisoned.pk} AND NEW.state IN ('queued', 'running')"
    with refused(holds_slot, as_error):
        poisoned.set_limit(1)
        (worker,) = workers.start(worker_class=worker_class)
        for nth in range(3):
            jobs.record.enqueue("well", f"well-{nth}", history.path)
        wait_until(lambda: history.started() == ["well-0", "well-1", "well-2"], timeout=15)
        assert worker.poll() is None
        assert fresh(spoilt).state == State.SCHEDULED, "it is tried again later"


@pytest.mark.parametrize("worker_class", CLASSES)
def test_a_job_in_rqs_list_whose_start_is_refused_fails_alone(
    worker_class: str, history: History, workers: Workers
) -> None:
    poisoned, _ = tenant_queue("poisoned", max_job=1), tenant_queue("well", max_job=2)
    spoilt = jobs.record.enqueue("poisoned", "spoilt", history.path)
    assert fresh(spoilt).state == State.QUEUED, "nobody waits for it, so it was admitted ahead of who comes"
    with refused(f"NEW.tenant_queue_id = {poisoned.pk} AND NEW.state = 'running'"):
        (worker,) = workers.start(worker_class=worker_class)
        others = [jobs.record.enqueue("well", f"{nth}", history.path) for nth in range(3)]
        wait_until(lambda: all(fresh(job).state == State.FINISHED for job in others), timeout=15)
        wait_until(lambda: fresh(spoilt).state == State.FAILED, timeout=15)
        assert worker.poll() is None
    assert counters_match()


@contextmanager
def constrained(row: TenantQueue) -> Iterator[None]:
    """A constraint lets none of its jobs finish."""
    table = TenantJob._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT never CHECK (state <> 'finished' OR tenant_queue_id <> {row.pk})"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT never")


@pytest.mark.parametrize(
    ("worker_class", "as_error"), [*EACH_ERROR[:-1], *((name, CONSTRAINED) for name in CLASSES[:-1])]
)
def test_an_end_that_is_refused_ends_no_worker_and_holds_up_no_other_end(
    worker_class: str, as_error: str, history: History, workers: Workers
) -> None:
    poisoned, _ = tenant_queue("poisoned", max_job=1), tenant_queue("well", max_job=1)
    its_end = f"NEW.tenant_queue_id = {poisoned.pk} AND NEW.state = 'finished'"
    with constrained(poisoned) if as_error == CONSTRAINED else refused(its_end, as_error):
        spoilt = jobs.record.enqueue("poisoned", "spoilt", history.path)
        (worker,) = workers.start(worker_class=worker_class)
        wait_until(lambda: history.started() == ["spoilt"], timeout=15)
        others = [jobs.record.enqueue("well", f"{nth}", history.path) for nth in range(3)]
        wait_until(lambda: all(fresh(job).state == State.FINISHED for job in others), timeout=15)
        assert worker.poll() is None
        assert (fresh(spoilt).state, spoilt.attempt) == (State.RUNNING, 1)
    wait_until(lambda: fresh(spoilt).state == State.FINISHED, timeout=20)
    assert spoilt.attempt == 1, "its end was kept until the database took it"
    assert counters_match()
