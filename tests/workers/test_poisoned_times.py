"""A waiting job with a time that SQL from outside has put out of the calendar runs as any other and holds up nobody."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest
from django.db import DataError, connection

from tenant_slots import statements
from tenant_slots.db import compiled
from tenant_slots.models import State, TenantJob
from tenant_slots.models.fields import Moment
from tenant_slots.running import here
from tenant_slots.workers import TenantPreforkWorker, TenantWorker
from tests import jobs
from tests.factories import counters_match, fresh, redis_forgets, tenant_queue, waiting_job
from tests.repair.test_poisoned_rows import TIMES, write

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite keeps what it is given, as text"),
]

COLUMNS = [field.name for field in TenantJob._meta.concrete_fields if isinstance(field, Moment)]

AT_THE_END_OF_POSTGRESQL = "294276-12-31T00:00:00+00"


def poisoned_and_well(columns: list[str]) -> list[TenantJob]:
    """Of each tenant a job with such a time, and one behind it. Those."""
    well = []
    for column in columns:
        for value in TIMES:
            row = tenant_queue(f"{column} {value}")
            write(waiting_job(row), column, value)
            well.append(waiting_job(row))
    redis_forgets()
    return well


def burst(worker_class: type[TenantWorker] | type[TenantPreforkWorker]) -> None:
    queues = [django_rq.get_queue("imports")]
    worker_class(queues, connection=django_rq.get_connection("imports")).work(burst=True, logging_level="ERROR")


def run_here() -> None:
    turns = here.Turns()
    while here.run_next("here", turns):
        pass


WAYS = {
    "prefork": lambda: burst(TenantPreforkWorker),
    "forks": lambda: burst(TenantWorker),
    "here": run_here,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_jobs_of_its_tenant_run_all_the_same(way: str) -> None:
    well = poisoned_and_well(COLUMNS)
    WAYS[way]()
    assert {fresh(job).state for job in well} == {State.FINISHED}
    assert not TenantJob.objects.not_ended().exists()
    assert counters_match()


def test_control_the_driver_loads_no_such_time_from_what_an_update_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_read_back", lambda alias, read: ", ".join(read.columns))
    monkeypatch.setattr(statements.CLAIM_AND_START, "_by_alias", {})
    poisoned_and_well(["enqueued_at"])
    with pytest.raises(DataError):
        run_here()


@pytest.mark.parametrize("task", [jobs.index_shop, jobs.index_shop_patiently], ids=lambda task: task.__name__)
@pytest.mark.parametrize("value", [*TIMES, AT_THE_END_OF_POSTGRESQL])
def test_a_call_that_is_debounced_moves_such_a_job_and_gives_it_back(value: str, task: Any) -> None:
    job = task.enqueue("acme", version=1)
    for column in COLUMNS:
        write(job, column, value)
    assert task.enqueue("acme", version=2) == job
    assert fresh(job).kwargs == {"version": 2}
