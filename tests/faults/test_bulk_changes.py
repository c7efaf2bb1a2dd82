"""Whoever carries out a bulk change dies in the middle: it goes on, nothing is done twice, and all is counted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection, transaction
from django.test import Client

from tenant_slots.admin import actions
from tenant_slots.admin.bulk import chunks
from tenant_slots.models import BulkChange, BulkChunk, KeptChange, State, TenantJob, TenantQueue
from tests.admin.bulk_changes import came_of, many_jobs, many_queues, report_of, started
from tests.admin.site import JOBS, QUEUES
from tests.factories import counters_match, fresh
from tests.faults.conftest import FaultWorkers
from tests.processes import somebody_waits_for_a_lock, wait_until

pytestmark = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    monkeypatch.setattr(chunks, "QUEUES_PER_CHUNK", 4)
    monkeypatch.setattr(chunks, "JOBS_PER_CHUNK", 4)


@contextmanager
def reached_by(workers: FaultWorkers, row: TenantQueue) -> Iterator[None]:
    """A worker that is started here has come to this tenant queue, and waits for it in the block.

    Not by a lock of ours, which ends when its process stands still for half a lease: a worker may take longer to start.
    """
    with transaction.atomic():
        TenantQueue.objects.select_for_update().get(pk=row.pk)
        workers.start()
        wait_until(somebody_waits_for_a_lock)
        yield


def kill(workers: FaultWorkers, change: BulkChange, whom: str) -> None:
    if whom == "worker":
        workers.kill(0)
    else:
        os.kill(work_horse_of(change), signal.SIGKILL)


def work_horse_of(change: BulkChange) -> int:
    """Of a job that has just begun it is in the row from the first heartbeat on; 0 would be the process group of us."""
    wait_until(lambda: TenantJob.objects.get(uuid=change.job).horse)
    horse: int = TenantJob.objects.get(uuid=change.job).horse
    return horse


def wait_for_end(change: BulkChange) -> None:
    wait_until(lambda: fresh(change).ended_at is not None, message="nobody has gone on with it")
    assert not BulkChunk.objects.exists()


@pytest.mark.parametrize("whom", ["worker", "work-horse"])
def test_i4_limits_that_are_set_when_the_process_is_killed(workers: FaultWorkers, boss: Client, whom: str) -> None:
    rows = many_queues(12)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5", reason="sale")
    with reached_by(workers, rows[6]):
        before = [row.pk for row in rows if fresh(row).max_job == 5]
        assert before == [row.pk for row in rows[:6]]
        kill(workers, change, whom)
    if whom == "worker":
        workers.start()
    wait_for_end(change)
    assert {(fresh(row).max_job, row.version) for row in rows} == {(5, 1)}
    assert came_of(change) == {"done": 12}
    assert report_of(boss, change) == ["It is done.", "12 of 12", "The limits of 12 tenant queues were set."]
    assert sorted(KeptChange.objects.values_list("tenant_queue", flat=True)) == sorted(row.pk for row in rows)
    assert sorted(LogEntry.objects.values_list("object_id", flat=True)) == sorted(str(row.pk) for row in rows)


@pytest.mark.parametrize("whom", ["worker", "work-horse"])
def test_i4_jobs_that_are_canceled_when_the_process_is_killed(workers: FaultWorkers, boss: Client, whom: str) -> None:
    rows = many_queues(3, max_job=0)
    jobs = [job for row in rows for job in many_jobs(row, 4)]
    change = started(boss, JOBS, "cancel", jobs, reason="wrong feed")
    with reached_by(workers, rows[1]):
        assert [fresh(job).state for job in jobs] == [State.CANCELED] * 4 + [State.WAITING] * 8
        kill(workers, change, whom)
    if whom == "worker":
        workers.start()
    wait_for_end(change)
    assert {fresh(job).state for job in jobs} == {State.CANCELED}
    assert came_of(change) == {"done": 12}
    assert sorted(LogEntry.objects.values_list("object_id", flat=True)) == sorted(str(job.pk) for job in jobs)
    assert counters_match()


def test_control_what_is_not_stored_with_the_rows_is_done_twice(workers: FaultWorkers, boss: Client) -> None:
    """What the tests above would see if the chunks were written by themselves: then the first four rows come again."""
    rows = many_queues(3, max_job=0)
    jobs = [job for row in rows for job in many_jobs(row, 4)]
    change = started(boss, JOBS, "cancel", jobs)
    before: list[dict[str, Any]] = list(BulkChunk.objects.order_by("pk").values("pk", "left", "outcomes", "step"))
    with reached_by(workers, rows[1]):
        workers.kill(0)
        for chunk in before:
            BulkChunk.objects.filter(pk=chunk.pop("pk")).update(**chunk)
    workers.start()
    wait_for_end(change)
    assert came_of(change) == {"done": 8, "ended": 4}
