"""How PostgreSQL stores what is written for every heartbeat and every job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from tenant_slots import slots, statements
from tenant_slots.models import ENDED, HOLDING, UNTIL_START, Stage, State, TenantJob
from tests.factories import admit, many_waiting, owner, tenant_queue, waiting_job

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no heap-only updates"),
]

JOBS = 2
"""All versions of so few rows fit into one page, so that nothing depends on whose snapshot keeps old ones."""


def query(sql: str) -> list[tuple[int, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


def updates(table: str) -> tuple[int, int]:
    """Of all, and of those that wrote no index."""
    query("SELECT pg_stat_force_next_flush()")
    ((updated, without_index),) = query(
        f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_all_tables WHERE relname = '{table}'"  # noqa: S608
    )
    return updated, without_index


def send_heartbeats() -> tuple[int, int]:
    """How many updates they were, and how many wrote no index."""
    before = updates("tenant_slots_tenantjob")
    for _ in range(5):
        for pk, token in TenantJob.objects.values_list("pk", "token"):
            assert slots.beat(pk, token)
    after = updates("tenant_slots_tenantjob")
    return after[0] - before[0], after[1] - before[1]


def start_all_admitted(digest: str = "") -> tuple[int, int]:
    """How many updates the starts of jobs were, and how many wrote no index."""
    row = tenant_queue(max_job=JOBS)
    for number in range(JOBS):
        waiting_job(row, unique_key=digest and f"{digest}{number}")
    admitted = admit(row)
    before = updates("tenant_slots_tenantjob")
    for job in admitted:
        assert slots.start(job, owner())
    after = updates("tenant_slots_tenantjob")
    return after[0] - before[0], after[1] - before[1]


@pytest.fixture(autouse=True)
def _empty_pages() -> None:
    """What earlier tests rolled back still takes room."""
    query("TRUNCATE tenant_slots_tenantqueue CASCADE")


@pytest.fixture
def _running_jobs() -> None:
    row = tenant_queue(max_job=JOBS)
    many_waiting(row, JOBS)
    for job in admit(row):
        assert slots.start(job, owner())


@pytest.fixture
def _index_by_state() -> Iterator[None]:
    query("CREATE INDEX by_state ON tenant_slots_tenantjob (id) WHERE state = 'running'")
    yield
    query("DROP INDEX by_state")


@pytest.fixture
def _index_of_heartbeats() -> Iterator[None]:
    query("CREATE INDEX of_heartbeats ON tenant_slots_tenantjob (beat_at)")
    yield
    query("DROP INDEX of_heartbeats")


def test_no_index_has_what_a_start_or_a_heartbeat_writes() -> None:
    definitions = query("SELECT indexdef FROM pg_indexes WHERE tablename = 'tenant_slots_tenantjob'")
    assert len(definitions) > 5
    written = ("beat_at", "started_at", "token", "(state", " state")
    assert [definition for (definition,) in definitions if any(name in str(definition) for name in written)] == []


@pytest.mark.usefixtures("_running_jobs")
def test_heartbeats_write_no_index() -> None:
    assert send_heartbeats() == (5 * JOBS, 5 * JOBS)


@pytest.mark.usefixtures("_running_jobs", "_index_of_heartbeats")
def test_control_with_an_index_of_their_times_every_heartbeat_writes_all_indexes() -> None:
    assert send_heartbeats() == (5 * JOBS, 0)


def test_starts_write_no_index() -> None:
    assert start_all_admitted() == (JOBS, JOBS)


def test_starts_of_jobs_that_are_unique_until_their_end_write_none_either() -> None:
    assert start_all_admitted("digest") == (JOBS, JOBS)


def test_control_starts_that_take_a_digest_away_write_the_indexes() -> None:
    assert start_all_admitted(UNTIL_START) == (JOBS, 0)


@pytest.mark.usefixtures("_index_by_state")
def test_control_with_an_index_by_state_every_start_writes_all_indexes() -> None:
    assert start_all_admitted() == (JOBS, 0)


def plan_of(sql: str, parameters: Sequence[Any]) -> str:
    """As of statistics from a moment at which the tenant had a backlog and nothing in its slots."""
    many_waiting(tenant_queue(), 2000)
    query("ANALYZE tenant_slots_tenantjob")
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}", parameters)
        return "\n".join(line for (line,) in cursor.fetchall())


@pytest.mark.parametrize("name", ["CLAIM", "START", "BEAT"])
def test_a_statement_about_one_job_reads_the_index_of_the_primary_key(name: str) -> None:
    """Another one may seem small enough to be read. Behind an old snapshot it has all the jobs that were ever in it."""
    values = {"pk": 1, "attempt": 1, **owner().as_fields()}
    plan = plan_of(*getattr(statements, name).bound(connection, values))
    assert "using tenant_slots_tenantjob_pkey" in plan, plan


def test_control_one_that_asks_for_the_stage_reads_the_index_of_the_jobs_in_slots() -> None:
    plan = plan_of(*TenantJob.objects.queued().filter(pk=1, attempt=1).query.sql_with_params())
    assert "using tenant_slots_holding" in plan, plan


@pytest.mark.parametrize("state", State.values)
def test_the_stage_of_a_job_follows_its_state(state: str) -> None:
    job = waiting_job(tenant_queue(), state=state)
    groups = {
        Stage.SCHEDULED: [State.SCHEDULED],
        Stage.WAITING: [State.WAITING],
        Stage.HOLDING: HOLDING,
        Stage.ENDED: ENDED,
    }
    assert state in groups[TenantJob.objects.get(pk=job.pk).stage]


def test_the_room_for_updates_can_be_taken_back_and_made_again() -> None:
    def options() -> list[tuple[int, ...]]:
        return query("SELECT reloptions FROM pg_class WHERE relname = 'tenant_slots_tenantqueue'")

    made = options()
    assert "fillfactor=50" in str(made)
    call_command("migrate", "tenant_slots", "0001", verbosity=0)
    assert options() == [(None,)]
    call_command("migrate", "tenant_slots", verbosity=0)
    assert options() == made
