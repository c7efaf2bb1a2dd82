"""How PostgreSQL stores what is written for every heartbeat and every job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import connection

from tenant_slots import slots
from tenant_slots.models import TenantJob
from tests.factories import many_waiting, owner, tenant_queue

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no heap-only updates"),
]

JOBS = 60


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


@pytest.fixture
def _running_jobs() -> None:
    row = tenant_queue(max_job=JOBS)
    many_waiting(row, JOBS)
    for job in slots.admit(row.pk):
        assert slots.start(job, owner())


@pytest.fixture
def _index_of_heartbeats() -> Iterator[None]:
    query("CREATE INDEX of_heartbeats ON tenant_slots_tenantjob (beat_at)")
    yield
    query("DROP INDEX of_heartbeats")


def test_no_index_has_what_a_heartbeat_writes() -> None:
    definitions = query("SELECT indexdef FROM pg_indexes WHERE tablename = 'tenant_slots_tenantjob'")
    assert len(definitions) > 5
    assert [definition for (definition,) in definitions if "beat_at" in str(definition)] == []


@pytest.mark.usefixtures("_running_jobs")
def test_heartbeats_write_no_index() -> None:
    """Those aside that find their page full: somebody's snapshot may keep old versions of rows for a moment."""
    updated, without_index = send_heartbeats()
    assert updated == 5 * JOBS
    assert without_index > 4 * JOBS


@pytest.mark.usefixtures("_running_jobs", "_index_of_heartbeats")
def test_control_with_an_index_of_their_times_every_heartbeat_writes_all_indexes() -> None:
    assert send_heartbeats() == (5 * JOBS, 0)


def test_the_room_for_updates_can_be_taken_back_and_made_again() -> None:
    def options() -> list[tuple[int, ...]]:
        return query("SELECT reloptions FROM pg_class WHERE relname = 'tenant_slots_tenantqueue'")

    made = options()
    assert "fillfactor=50" in str(made)
    call_command("migrate", "tenant_slots", "0001", verbosity=0)
    assert options() == [(None,)]
    call_command("migrate", "tenant_slots", verbosity=0)
    assert options() == made
