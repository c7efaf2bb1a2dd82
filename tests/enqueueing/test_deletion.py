"""A job that is deleted gives its slot back in the same transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.signals import pre_delete

from tenant_slots import dispatch
from tenant_slots.exceptions import NotRetryable
from tenant_slots.models import State, TenantJob, TenantJobQuerySet, TenantQueue
from tests import jobs
from tests.factories import admit, another_process, counters_match, fresh, in_rq, running_job, tenant_queue, waiting_job
from tests.history import History
from tests.processes import Workers, somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import meanwhile
from tests.test_receivers import heard

pytestmark = pytest.mark.django_db(transaction=True)


def by_itself(job: TenantJob) -> object:
    return job.delete()


def by_queryset(job: TenantJob) -> object:
    return TenantJob.objects.filter(pk=job.pk).delete()


def by_the_row_that_it_belongs_to(job: TenantJob) -> object:
    return job.tenant_queue.jobs.filter(pk=job.pk).delete()


WAYS = pytest.mark.parametrize("delete", [by_itself, by_queryset, by_the_row_that_it_belongs_to])


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[TenantJob]:
    """The jobs whose worker was asked to stop."""
    asked: list[TenantJob] = []
    monkeypatch.setattr(dispatch, "stop", asked.append)
    return asked


@WAYS
def test_a_queued_job_leaves_rq_and_its_slot_goes_to_the_next(delete: Callable[[TenantJob], object]) -> None:
    first, second = (jobs.record.enqueue("acme", name, "nowhere") for name in "ab")
    assert (fresh(first).state, in_rq()) == (State.QUEUED, 1)
    label = TenantJob._meta.label
    assert delete(first) == (1, {label: 1})
    assert (fresh(second).state, in_rq()) == (State.QUEUED, 1)
    assert counters_match()


@WAYS
def test_a_running_job_is_stopped(delete: Callable[[TenantJob], object], stopped: list[TenantJob]) -> None:
    job = running_job(tenant_queue(), another_process())
    pk = job.pk
    delete(job)
    assert [one.tenant_queue.tenant for one in stopped] == ["acme"]
    assert not TenantJob.objects.filter(pk=pk).exists()
    assert counters_match()


def test_jobs_of_many_tenants_and_states_go_together(stopped: list[TenantJob]) -> None:
    rows = [tenant_queue(f"tenant {number}", max_job=2) for number in range(3)]
    for row in rows:
        running_job(row, another_process())
        for state in (State.WAITING, State.WAITING, State.SCHEDULED, State.FINISHED):
            waiting_job(row, state=state)
        admit(row)
    kept = waiting_job(rows[0], key="kept")
    assert TenantJob.objects.exclude(key="kept").delete()[0] == 15
    assert len(stopped) == 3
    assert (fresh(kept).state, TenantJob.objects.count()) == (State.QUEUED, 1)
    assert counters_match()


def test_a_rollback_takes_the_slot_back(stopped: list[TenantJob]) -> None:
    job = running_job(tenant_queue(), another_process())
    with transaction.atomic():
        by_queryset(job)
        assert TenantQueue.objects.get().current_job == 0
        transaction.set_rollback(True)
    assert fresh(job).state == State.RUNNING
    assert counters_match()
    assert stopped == []


def test_ended_jobs_lock_nobody(django_assert_num_queries: Any) -> None:
    row = tenant_queue()
    for _ in range(3):
        waiting_job(row, state=State.FINISHED)
    # One looks for those that have not ended, one forgets for which others they waited; PostgreSQL is told of a level.
    with django_assert_num_queries(6 if connection.vendor == "postgresql" else 5):
        assert TenantJob.objects.all().delete()[0] == 3


@pytest.mark.parametrize("refused", [lambda: TenantJob.objects.all()[:1], lambda: TenantJob.objects.values("pk")])
def test_what_django_refuses_to_delete_changes_nothing(refused: Callable[[], Any]) -> None:
    running_job(tenant_queue(), another_process())
    with pytest.raises(TypeError):
        refused().delete()
    assert counters_match()
    assert TenantJob.objects.count() == 1


def test_control_a_deletion_by_sql_leaves_the_counter_to_the_sweep() -> None:
    job = running_job(tenant_queue(), another_process())
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM tenant_slots_tenantjob WHERE id = %s", [job.pk])
    assert not counters_match()


def test_one_in_a_state_that_somebody_has_made_up_can_be_deleted() -> None:
    job = waiting_job(tenant_queue(), state="parked")
    by_itself(job)
    assert not TenantJob.objects.exists()


def test_one_whose_tenant_queue_somebody_has_taken_away_can_be_deleted() -> None:
    """As by the shell of SQLite, which keeps to no foreign key, or from a backup that was restored in part."""
    job = waiting_job(tenant_queue())
    with without_foreign_keys() as cursor:
        cursor.execute("DELETE FROM tenant_slots_tenantqueue")
    deletion = meanwhile(partial(by_itself, job), errors := [])
    deletion.join(20)
    with without_foreign_keys() as cursor:  # which ends a deletion that looks again and again
        cursor.execute("DELETE FROM tenant_slots_tenantjob")
        assert cursor.rowcount == 0
    assert errors == []


@contextmanager
def without_foreign_keys() -> Iterator[Any]:
    off, on = (
        ("SET session_replication_role = replica", "SET session_replication_role = DEFAULT")
        if connection.vendor == "postgresql"
        else ("PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = ON")
    )
    with connection.cursor() as cursor:
        cursor.execute(off)
        yield cursor
        cursor.execute(on)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_job_that_is_admitted_meanwhile_gives_back_what_it_has_just_got() -> None:
    row = tenant_queue()
    job = waiting_job(row)
    errors: list[Exception] = []
    with transaction.atomic():
        admit(row)
        deletion = meanwhile(partial(by_queryset, job), errors)
        wait_until(somebody_waits_for_a_lock)
    deletion.join(20)
    assert errors == []
    assert not TenantJob.objects.exists()
    assert counters_match()


@WAYS
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_one_that_had_ended_and_is_retried_meanwhile_leaves_no_slot_behind(
    delete: Callable[[TenantJob], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes ended jobs locks no tenant queue, for which a retry and an admission would wait."""
    job, errors = waiting_job(tenant_queue(), state=State.FAILED), list[Exception]()
    looked = TenantJobQuerySet.defer

    def retry_and_admit() -> None:
        fresh(job).retry()
        admit(job.tenant_queue)

    def look_for_slots(*arguments: Any) -> Any:
        monkeypatch.setattr(TenantJobQuerySet, "defer", looked)
        meanwhile(retry_and_admit, errors).join()
        return looked(*arguments)

    monkeypatch.setattr(TenantJobQuerySet, "defer", look_for_slots)
    delete(job)
    assert errors == []
    assert counters_match()


@WAYS
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_nor_does_one_that_is_retried_while_receivers_hear_of_its_deletion(
    delete: Callable[[TenantJob], object],
) -> None:
    """Django has read it by then, and deletes what it has read."""
    job, errors, threads = waiting_job(tenant_queue(), state=State.FAILED), list[Exception](), list[Thread]()

    def retry_and_admit() -> None:
        fresh(job).retry()
        admit(job.tenant_queue)

    def hear(sender: Any, **_: Any) -> None:
        if sender is TenantJob:
            threads.append(meanwhile(retry_and_admit, errors))
            wait_until(lambda: somebody_waits_for_a_lock() or not threads[0].is_alive())

    with heard(pre_delete, hear):
        delete(job)
    threads[0].join(20)
    assert [type(error) for error in errors] == [NotRetryable], "it was deleted"
    assert counters_match()


def test_the_process_of_a_deleted_job_ends_and_the_next_job_runs(
    workers: Workers, history: History, tmp_path: Any
) -> None:
    workers.start(1)
    job = jobs.wait_for_file.enqueue("acme", "long", history.path, str(tmp_path / "never"))
    after = jobs.record.enqueue("acme", "after", history.path)
    wait_until(lambda: "long" in history.started())
    wait_until(lambda: fresh(job).state == State.RUNNING)
    job.delete()
    wait_until(lambda: fresh(after).state == State.FINISHED)
    assert TenantQueue.objects.get().current_job == 0
