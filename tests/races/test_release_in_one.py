"""A release that has no other consequence is one statement: what it finds, and what it leaves to more than one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from tenant_slots import locks, slots, transitions
from tenant_slots.db.compiled import Compiled, Statement
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.releases import Release
from tenant_slots.signals import job_ended
from tenant_slots.statements import FREE
from tests.factories import counters_match, fresh, owner, running_job, tenant_queue, waiting_job
from tests.processes import somebody_waits_for_a_lock, wait_until
from tests.processes import test_database_url as database_url

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite takes one statement at a time"),
]

DOOR = 42
"""Of an advisory lock, which whoever releases waits for before it locks the row."""


class Slowly(Statement):
    """A statement that has looked at the table before it waits."""

    def __init__(self, statement: Statement) -> None:
        super().__init__(statement._build)

    def _compile(self, alias: str) -> Compiled:
        compiled = super()._compile(alias)
        sql = compiled.sql.replace(" FROM ", f" FROM pg_advisory_lock_shared({DOOR}), ", 1)
        return replace(
            compiled, sql=sql.replace("FOR NO KEY UPDATE", 'FOR NO KEY UPDATE OF "tenant_slots_tenantqueue"')
        )


@contextmanager
def door_closed() -> Iterator[None]:
    with psycopg.connect(database_url(), autocommit=True) as session:
        session.execute("SELECT pg_advisory_lock(%s)", [DOOR])
        yield


def running(row: TenantQueue | None = None) -> TenantJob:
    """A job as whoever runs it has it, with its tenant queue."""
    job = running_job(row or tenant_queue(), owner())
    assert job.tenant_queue.current_job
    return job


def statements_of(job: TenantJob) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        assert slots.release(job, state=State.FINISHED)
    return [query["sql"] for query in queries if query["sql"] not in ("BEGIN", "COMMIT")]


def test_what_others_commit_between_its_look_and_its_lock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL locks the row as it is by then, and updates that one."""
    monkeypatch.setattr(locks, "FREE", Slowly(FREE))
    row = tenant_queue(max_job=5)
    job = running(row)
    released: list[Release] = []

    def release() -> None:
        try:
            released.append(slots.release(job, state=State.FINISHED))
        finally:
            connection.close()

    thread = Thread(target=release)
    with door_closed():
        thread.start()
        wait_until(somebody_waits_for_a_lock)
        running_job(row, owner())
        TenantQueue.objects.filter(pk=row.pk).update(max_job=F("max_job") + 1)
    thread.join(20)
    assert released == [Release(State.FINISHED)]
    assert (fresh(row).current_job, fresh(row).max_job) == (1, 6)
    assert counters_match()


def test_it_is_one_statement() -> None:
    job = running()
    assert len(statements_of(job)) == 1
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)


def test_control_where_somebody_has_the_row_it_is_more() -> None:
    job = running()
    locks._note_sought(job.tenant_queue_id)
    assert len(statements_of(job)) > 1
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)


def test_whoever_has_lost_the_run_gives_back_nothing() -> None:
    job = running()
    TenantJob.objects.filter(pk=job.pk).update(token=job.token + 1)
    assert not slots.release(job, state=State.FINISHED)
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.RUNNING, 1)


def test_a_job_that_is_to_be_canceled_has_not_finished() -> None:
    job = running()
    TenantJob.objects.filter(pk=job.pk).update(cancel_requested_at=job.enqueued_at)
    assert slots.release(job, state=State.FINISHED).state == State.CANCELED
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.CANCELED, 0)


def test_a_counter_that_was_wrong_is_not_lowered_below_0() -> None:
    job = running()
    TenantQueue.objects.update(current_job=0)
    assert slots.release(job, state=State.FINISHED)
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)


def test_that_others_wait_for_its_end_is_said() -> None:
    job = running()
    TenantJob.objects.filter(pk=job.pk).update(awaited=True)
    assert slots.release(job, state=State.FINISHED) == Release(State.FINISHED, is_awaited=True)


def test_it_is_undone_with_the_callers_transaction() -> None:
    job = running()
    with transaction.atomic():
        assert slots.release(job, state=State.FINISHED)
        transaction.set_rollback(True)
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.RUNNING, 1)


def test_it_is_done_where_the_server_binds_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    connection.close()
    job = running()
    assert len(statements_of(job)) > 1
    assert (fresh(job).state, fresh(job.tenant_queue).current_job) == (State.FINISHED, 0)
    connection.close()


def test_what_a_receiver_saves_of_the_tenant_queue_undoes_no_change_that_came_meanwhile() -> None:
    job = running()
    TenantQueue.objects.get(pk=job.tenant_queue_id).pause()
    seen: list[bool] = []

    def raise_share(job: TenantJob, **_: Any) -> None:
        seen.append(job.tenant_queue.paused)
        job.tenant_queue.share = 2
        job.tenant_queue.save()

    job_ended.connect(raise_share)
    try:
        assert transitions.release(job, state=State.FINISHED)
    finally:
        job_ended.disconnect(raise_share)
    assert seen == [True]
    assert (fresh(job.tenant_queue).paused, fresh(job.tenant_queue).share) == (True, 2)


def test_whoever_is_told_of_the_end_needs_no_query_for_its_names(django_assert_num_queries: Any) -> None:
    job = running(tenant_queue("umbrella"))
    assert slots.release(job, state=State.FINISHED)
    with django_assert_num_queries(0):
        assert (job.tenant_queue.tenant, job.tenant_queue.queue) == ("umbrella", "imports")


def run_sql(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize("table", ["tenant_slots_tenantjob", "tenant_slots_tenantqueue"])
def test_the_project_may_have_a_rule_on_either_table(table: str, step_by_step: set[str]) -> None:
    jobs = [running(tenant_queue(max_job=2)), running(tenant_queue("umbrella"))]
    run_sql(
        "CREATE TABLE audit (id bigint)",
        f"CREATE RULE audited AS ON UPDATE TO {table} DO ALSO INSERT INTO audit VALUES (OLD.id)",  # noqa: S608 - a name
    )
    try:
        assert all(slots.release(job, state=State.FINISHED) for job in jobs)
    finally:
        run_sql(f"DROP RULE audited ON {table}", "DROP TABLE audit")
    assert step_by_step == {"default"}, "once is enough to know"
    assert counters_match()


def test_the_project_may_have_a_trigger_that_writes_the_tenant_queue_of_a_job(step_by_step: set[str]) -> None:
    job = running()
    run_sql(
        "CREATE FUNCTION noted() RETURNS trigger AS $$ BEGIN UPDATE tenant_slots_tenantqueue SET max_waiting = 5 "
        "WHERE id = NEW.tenant_queue_id; RETURN NEW; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER noted BEFORE UPDATE ON tenant_slots_tenantjob FOR EACH ROW EXECUTE FUNCTION noted()",
    )
    try:
        assert slots.release(job, state=State.FINISHED)
    finally:
        run_sql("DROP TRIGGER noted ON tenant_slots_tenantjob", "DROP FUNCTION noted")
    assert (step_by_step, fresh(job.tenant_queue).max_waiting) == ({"default"}, 5)
    assert counters_match()


def test_any_other_error_is_one(step_by_step: set[str]) -> None:
    job = running()
    run_sql(
        "CREATE FUNCTION refused() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'no'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER refused BEFORE UPDATE ON tenant_slots_tenantjob FOR EACH ROW EXECUTE FUNCTION refused()",
    )
    try:
        with pytest.raises(DatabaseError, match="no"):
            slots.release(job, state=State.FINISHED)
    finally:
        run_sql("DROP TRIGGER refused ON tenant_slots_tenantjob", "DROP FUNCTION refused")
    assert step_by_step == set()
    assert (fresh(job).state, counters_match()) == (State.RUNNING, True)


def test_that_somebody_has_the_row_is_counted_once_for_each_release() -> None:
    row = tenant_queue(max_job=3)
    jobs = [running(row) for _ in range(3)]
    locks._note_sought(row.pk)
    left = []
    for job in jobs:
        assert slots.release(job, state=State.FINISHED)
        left.append(locks._sought[row.pk])
    assert left == [locks.SOUGHT_FOR - 1, locks.SOUGHT_FOR - 2, locks.SOUGHT_FOR - 3]


def test_the_tenant_goes_on() -> None:
    row = tenant_queue()
    job, successor = running(row), waiting_job(row)
    assert slots.release(job, state=State.FINISHED)
    assert slots.admit_and_start(row.pk, "imports", owner(), lambda chosen: None).started == successor
    assert counters_match()
