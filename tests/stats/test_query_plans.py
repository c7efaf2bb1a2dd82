"""The figures are read from indexes, however many jobs there are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Count
from django.test.utils import CaptureQueriesContext

from tenant_slots.db import clock
from tenant_slots.db.clock import minute_of
from tenant_slots.models import Stage, State, TenantJob, TenantQueue
from tenant_slots.statements import ADMITTED
from tenant_slots.stats import dependencies, metrics, minute_counts, percentiles, worker_time
from tenant_slots.stats.expressions import count_of, jobs_of_row, oldest_wait, ran_lately
from tenant_slots.stats.key_limits import jobs_below_key_limit
from tenant_slots.stats.limit_reasons import reason_of_limit
from tenant_slots.stats.positions import with_position
from tenant_slots.stats.tenant_queues import with_longest_wait, with_waiting
from tenant_slots.stats.tiles import sums_of_all
from tests.factories import TASK, many_waiting, tenant_queue
from tests.plans import explained, explained_sql, without

pytestmark = pytest.mark.django_db

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plans")

OF_WAITING_JOBS = re.compile("Index Only Scan using tenant_slots_(backlog|longest_wait|oldest_wait) ")
"""Which of them is the cheapest depends on how many jobs there are."""


def filled() -> TenantQueue:
    """One of 100 tenants with 40 jobs each, two of them waiting: so few that their index is the cheapest by far."""
    rows = [tenant_queue(f"tenant {number}") for number in range(100)]
    states = [State.WAITING, *[State.FINISHED] * 19]
    TenantJob.objects.bulk_create(
        TenantJob(tenant_queue=row, task=TASK, state=states[n % 20]) for n in range(40) for row in rows
    )
    connection.check_constraints()  # which wait for the end of the transaction, and keep out what follows
    with connection.cursor() as cursor:
        cursor.execute("REINDEX TABLE tenant_slots_tenantjob")  # what other tests have left makes indexes look dear
        cursor.execute("ANALYZE")
    return rows[7]


@on_postgresql
def test_waiting_jobs_are_counted_from_an_index_of_the_waiting_ones() -> None:
    filled()
    plan = explained(with_waiting(TenantQueue.objects.all()))
    assert OF_WAITING_JOBS.search(plan), plan


@on_postgresql
def test_the_metrics_count_waiting_jobs_from_an_index_of_the_waiting_ones() -> None:
    filled()
    with CaptureQueriesContext(connection) as asked:
        metrics.by_queue()
    with without("seqscan", "bitmapscan"):
        plan = explained_sql(asked[0]["sql"])
    assert OF_WAITING_JOBS.search(plan), plan


@on_postgresql
def test_the_tiles_read_count_and_longest_wait_of_all_from_indexes() -> None:
    filled()
    plan = explained(sums_of_all())
    assert OF_WAITING_JOBS.search(plan), plan
    assert "Index Scan using tenant_slots_oldest_wait" in plan, plan
    assert "Sort" not in plan, plan


@on_postgresql
@pytest.mark.parametrize("of_row", [jobs_of_row, lambda: jobs_of_row().jobs()], ids=["all", "without reservations"])
def test_the_longest_wait_of_a_row_is_the_first_of_an_index(of_row: Callable[[], Any]) -> None:
    filled()
    plan = explained(TenantQueue.objects.annotate(wait=oldest_wait(of_row())))
    assert "using tenant_slots_longest_wait" in plan, plan
    assert "Sort" not in plan, plan


@on_postgresql
def test_the_reason_of_a_limit_is_read_from_the_index_of_the_changes_of_its_row() -> None:
    plan = explained(TenantQueue.objects.annotate(reason=reason_of_limit()), sorts=False)
    assert plan.count("Index Scan Backward using tenant_slots_changes") == 2, plan


@on_postgresql
def test_worker_time_is_read_from_the_jobs_that_ended_in_the_last_hour_by_an_index_of_that_time() -> None:
    filled()
    jobs = ran_lately(TenantJob.objects.all(), worker_time.HOUR)
    plan = explained(jobs.order_by().values_list("tenant_queue_id").annotate(time=Count("pk")), bitmaps=True)
    assert re.search(r"Scan on tenant_slots_ended(_of_row)? .*\n *Index Cond: .*ended_at > ", plan), plan


@on_postgresql
def test_rows_are_sorted_by_worker_time_without_a_look_at_jobs() -> None:
    rows = worker_time.with_worker_time(TenantQueue.objects.all(), lambda: {1: 2.0})
    assert "tenantjob" not in explained(rows.order_by("-worker_time"))
    assert "tenantjob" not in str(rows.query), "nor where nobody sorts by it"


@on_postgresql
def test_rows_are_sorted_by_their_longest_wait_from_the_index_that_has_it() -> None:
    filled()
    plan = explained(with_longest_wait(TenantQueue.objects.all()).order_by("longest_wait"))
    assert "using tenant_slots_longest_wait" in plan, plan
    assert plan.count("Sort Key") == 1, plan  # of the rows, not of the jobs


@on_postgresql
def test_the_start_delay_to_sort_by_is_read_from_the_jobs_that_ended_in_that_time_by_an_index_of_it() -> None:
    filled()
    jobs = percentiles.first_starts(TenantJob.objects.order_by(), percentiles.WINDOW)
    plan = explained(jobs.values_list("tenant_queue_id", "started_at"), bitmaps=True)
    assert re.search(r"Scan on tenant_slots_ended(_of_row)? .*\n *Index Cond: .*ended_at > ", plan), plan


@on_postgresql
def test_rows_are_sorted_by_start_delay_without_a_look_at_jobs() -> None:
    rows = percentiles.with_start_delay(TenantQueue.objects.all(), lambda: {1: 2.0})
    assert "tenantjob" not in explained(rows.order_by("-delay_of_starts"))
    assert "tenantjob" not in str(rows.query), "nor where nobody sorts by it"


@on_postgresql
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_minute_is_counted_from_the_jobs_that_ended_since_and_those_that_run(place: int) -> None:
    filled()
    minute = minute_of(clock.now())
    asked = [minute_counts.ends(minute - 1, minute), *minute_counts.starts(minute - 1, minute)]
    plan = explained(asked[place])
    index = "tenant_slots_holding" if place == 1 else "tenant_slots_ended"
    assert f"using {index} " in plan, plan
    assert place == 1 or re.search(r"Index Cond: \(+ended_at >= ", plan), plan


@on_postgresql
@pytest.mark.parametrize("state", ["running", "queued"])
def test_slots_in_use_are_counted_from_the_index_of_the_jobs_that_hold_one(state: str) -> None:
    filled()
    plan = explained(TenantQueue.objects.annotate(count=count_of(getattr(jobs_of_row(), state)())))
    assert "using tenant_slots_holding" in plan, plan


@on_postgresql
def test_jobs_below_their_key_limit_are_counted_from_the_indexes_of_those_that_wait_and_that_hold_a_slot() -> None:
    filled()
    plan = explained(TenantQueue.objects.annotate(below=jobs_below_key_limit()))
    assert "Index Only Scan using tenant_slots_backlog" in plan, plan
    assert "using tenant_slots_holding" in plan, plan
    assert "Seq Scan on tenant_slots_tenantjob" not in plan, plan


@on_postgresql
def test_a_position_is_counted_from_ranges_of_the_index_of_the_backlog() -> None:
    row = filled()
    plan = explained(with_position(row.jobs.waiting().latest("pk")))
    ranges = [line for line in plan.splitlines() if "Index Cond" in line and "priority" in line]
    assert plan.count("using tenant_slots_backlog") == 2, plan
    assert len(ranges) == 2, plan


LONG_NAME = "q" * 100
"""With an RQ queue of this name the index of the backlog is a level higher, and so dearer to enter than others.

With a short name it takes some ten thousand jobs.
"""


def burst() -> TenantQueue:
    """A backlog that came after the last ANALYZE, which has seen no waiting job."""
    row = tenant_queue("a burst")
    TenantJob.objects.bulk_create(TenantJob(tenant_queue=row, task=TASK, state=State.FINISHED) for _ in range(1000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    many_waiting(row, 5000, rq_queue=LONG_NAME)
    return row


def plan_of_the_head(row: TenantQueue) -> str:
    plan: str = TenantJob.objects.filter(tenant_queue=row, rq_queue=LONG_NAME).backlog().only(*ADMITTED)[:2].explain()
    return plan


@on_postgresql
def test_the_head_of_a_backlog_that_was_never_analyzed_is_read_from_its_index() -> None:
    plan = plan_of_the_head(burst())
    assert "Index Scan using tenant_slots_backlog on" in plan, plan
    assert "Sort" not in plan, plan


@on_postgresql
def test_an_index_without_any_would_have_the_backlog_sorted() -> None:
    """The control of the above."""
    row = burst()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # an index is not made over what is still to be checked
        cursor.execute(
            "CREATE INDEX as_if_without_any ON tenant_slots_tenantjob"
            " (tenant_queue_id, GREATEST(enqueued_at, COALESCE(run_after, enqueued_at)))"
            f" WHERE stage = {Stage.WAITING:d}"
        )
    assert "Sort" in plan_of_the_head(row)


@on_postgresql
def test_the_jobs_behind_others_are_told_from_these_without_comparing_each_with_each() -> None:
    """An array that none of them is in is hashed by PostgreSQL 15 and later only."""
    filled()
    chosen = list(TenantJob.objects.values_list("pk", flat=True)[:1000])
    plan = explained(dependencies.behind(chosen))
    assert "<> ALL" not in plan, plan
    assert "SetOp Except" in plan, plan
