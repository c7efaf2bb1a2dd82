"""A limit per concurrency key: no user takes all slots of a tenant, and none loses a position in the backlog."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import django_rq
import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from tenant_slots import concurrency_keys, exceptions, slots, tenant_job, waiting_keys
from tenant_slots.locks import AS_INDEXED, locked
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import findings
from tests import jobs
from tests.factories import (
    TASK,
    admit,
    counters_match,
    damage_found,
    fresh,
    many_waiting,
    owner,
    release_then_admit,
    tenant_queue,
    waiting_job,
    work,
)
from tests.plans import analyze, empty_files, explained, explained_sql, without

pytestmark = pytest.mark.django_db


def keys(admitted: list[TenantJob]) -> list[str]:
    found = dict(TenantJob.objects.values_list("pk", "key"))
    return [found[job.pk] for job in admitted]


def test_a_user_at_the_limit_is_passed_over_and_others_go_on() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    for key in ("ann", "ann", "ann", "bob", "ann", "cid"):
        waiting_job(row, key=key)
    assert keys(admit(row)) == ["ann", "bob", "cid"]
    assert fresh(row).current_job == 3


def test_a_user_who_was_passed_over_keeps_the_position() -> None:
    row = tenant_queue(max_job=2, max_job_per_key=1)
    first, second, _, later = (waiting_job(row, key=key) for key in ("ann", "ann", "bob", "cid"))
    running = admit(row)
    assert running[0].pk == first.pk
    assert [job.pk for job in release_then_admit(running[0], state=State.FINISHED)] == [second.pk]
    assert fresh(later).state == State.WAITING


def test_jobs_without_a_concurrency_key_have_no_limit_of_their_own() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    for _ in range(4):
        waiting_job(row)
    assert len(admit(row)) == 3


def test_without_a_limit_per_key_one_user_may_take_all_slots() -> None:
    row = tenant_queue(max_job=3)
    for _ in range(4):
        waiting_job(row, key="ann")
    assert len(admit(row)) == 3


def test_free_slots_stay_free_and_nobody_is_stranded_when_only_users_at_their_limit_wait() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    for _ in range(4):
        waiting_job(row, key="ann")
    assert len(admit(row)) == 1
    assert list(findings.stranded()) == []
    assert damage_found() == []


def test_a_job_of_another_user_beside_a_free_slot_is_stranded() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    waiting_job(row, key="ann")
    admit(row)
    waiting_job(row, key="ann")
    waiting_job(row, key="bob")
    assert list(findings.stranded()) == [("imports", row.pk)]


def test_two_queries_find_the_stranded_however_many_tenants_have_users_at_the_limit() -> None:
    """The first one is for the overflow queues in which anybody waits."""
    for number in range(5):
        row = tenant_queue(f"tenant {number}", max_job=3, max_job_per_key=1)
        for _ in range(2):
            waiting_job(row, key="ann")
        admit(row)
    with CaptureQueriesContext(connection) as queries:
        assert list(findings.stranded()) == []
    assert len(queries) == 2


@pytest.mark.django_db(transaction=True)
def test_raising_the_limit_per_key_lets_waiting_jobs_in() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    jobs.for_user.enqueue_many([(("acme", "ann"), {})] * 4)
    assert TenantJob.objects.queued().count() == 1
    row.refresh_from_db()
    row.max_job_per_key = 2
    row.save()
    assert TenantJob.objects.queued().count() == 2
    row.max_job_per_key = None
    row.save()
    assert TenantJob.objects.queued().count() == 3


def test_a_lowered_limit_per_key_keeps_back_as_many_queued_jobs_as_are_too_many() -> None:
    row = tenant_queue(max_job=5, max_job_per_key=5)
    for _ in range(3):
        waiting_job(row, key="ann")
    first, second, third = admit(row)
    row.set_max_job_per_key(1)
    for job in (first, second):
        assert not slots.start(job, owner())
        assert slots.release(job, states=(State.QUEUED,), state=State.WAITING)
    assert slots.start(third, owner())
    assert counters_match()


@pytest.mark.parametrize(
    ("key", "others"), [("ann", "bob"), ("", "")], ids=["other users' jobs", "jobs without a concurrency key"]
)
def test_a_lowered_limit_per_key_keeps_no_job_of_others_from_starting(key: str, others: str) -> None:
    row = tenant_queue(max_job=5, max_job_per_key=5)
    waiting_job(row, key=key), waiting_job(row, key=others), waiting_job(row, key=others)
    waiting_job(tenant_queue("another"), key=key)
    (job, *_), _ = admit(row), admit(TenantQueue.objects.get(tenant="another"))
    row.set_max_job_per_key(1)
    assert slots.start(job, owner())


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
@pytest.mark.parametrize("per_key", [None, 2])
def test_at_a_start_the_jobs_of_its_key_that_hold_a_slot_are_counted_only_where_it_has_a_limit(
    per_key: int | None,
) -> None:
    row = tenant_queue(max_job=5, max_job_per_key=per_key)
    many_waiting(row, 500, key="ann", state=State.FINISHED)
    waiting_job(row, key="ann")
    (job,) = admit(row)
    with CaptureQueriesContext(connection) as queries:
        assert slots.start(job, owner())
    analyze()
    with without("seqscan", "bitmapscan"):
        plan = explained_sql(f"ANALYZE {queries[-1]['sql']}")
    (look,) = re.findall(r'(?i)Scan using \w+ on tenant_slots_tenantjob "?v0"? .*', plan)
    assert ("never executed" in look) is (per_key is None)


def test_why_a_job_is_passed_over_can_be_asked() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    waiting_job(row, key="ann")
    admit(row)
    assert concurrency_keys.is_passed_over(waiting_job(row, key="ann"))
    assert not concurrency_keys.is_passed_over(waiting_job(row, key="bob"))
    assert not concurrency_keys.is_passed_over(waiting_job(row))


@pytest.mark.parametrize(("user", "key"), [("ann", "ann"), (7, "7"), (None, "")])
def test_the_decorator_takes_the_key_from_an_argument(user: Any, key: str) -> None:
    assert jobs.for_user.enqueue("acme", user).key == key


def test_a_key_given_with_the_call_overrides_the_decorators() -> None:
    assert jobs.for_user.using(key="bob").enqueue("acme", "ann").key == "bob"


@pytest.mark.django_db(transaction=True)
def test_a_plain_rq_job_counts_for_its_user_too() -> None:
    tenant_queue(max_job=2, max_job_per_key=1)
    jobs.for_user.enqueue("acme", "ann")
    for user in ("ann", "bob"):
        django_rq.get_queue("reports").enqueue(jobs.for_user, "acme", user)
    work("reports")
    assert dict(TenantJob.objects.exclude(rq_job_id="").values_list("key", "state")) == {
        "ann": State.WAITING,
        "bob": State.FINISHED,
    }


@pytest.mark.parametrize("user", [1.5, True, "x" * 256])
def test_an_invalid_key_is_refused_and_nothing_is_stored(user: Any) -> None:
    with pytest.raises(exceptions.InvalidKey):
        jobs.for_user.enqueue("acme", user)
    assert not TenantJob.objects.exists()


def test_a_key_from_a_missing_argument_is_refused_at_import() -> None:
    with pytest.raises(exceptions.ImproperJob, match="no argument 'userr' to take the key from"):
        tenant_job("imports", tenant="tenant", key="userr")(jobs.record.tenant_task.function)


def test_a_limit_per_key_of_zero_would_be_a_pause_and_is_refused() -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        tenant_queue(max_job_per_key=0)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
@pytest.mark.django_db(transaction=True)
def test_jobs_that_are_passed_over_are_read_from_the_index_of_the_backlog() -> None:
    row, others = tenant_queue(max_job=2, max_job_per_key=1), tenant_queue("others")
    many_waiting(row, 3000, key="ann")
    many_waiting(others, 20000, key="ann")
    backlog = row.jobs.backlog().filter(rq_queue="").exclude(key__in=["ann"])
    plan = explained(backlog.values_list("pk", "key")[:1], sorts=False)
    assert "Index Only Scan using tenant_slots_backlog" in plan, plan
    assert "Sort" not in plan


def waiting_in_blocks(row: TenantQueue, keys: int, jobs_of_each: int) -> None:
    for number in range(keys):
        many_waiting(row, jobs_of_each, key=f"key {number:03}")


def pages_read(action: Callable[[], object]) -> int:
    """How many pages PostgreSQL reads for the queries of something, as in a transaction of ours."""
    with CaptureQueriesContext(connection) as queries:
        action()
    with connection.cursor() as cursor:
        for setting in AS_INDEXED:
            cursor.execute(setting)
        plans = []
        for query in queries.captured_queries:
            if not query["sql"].startswith("DECLARE"):
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query['sql']}")
                plans += [plan["Plan"] for plan in cursor.fetchone()[0]]
    return sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)


def pages_for_the_last_key(jobs_of_each: int, slots: int) -> int:
    """For those who are next where all keys but the last one are at their cap, with a table that was never analyzed."""
    row = tenant_queue(f"{jobs_of_each} jobs", max_job=100, max_job_per_key=1)
    waiting_in_blocks(row, 10, jobs_of_each)
    firsts = [row.jobs.filter(key=f"key {number:03}").earliest("pk").pk for number in range(9)]
    TenantJob.objects.filter(pk__in=firsts).update(state=State.RUNNING)
    assert len(concurrency_keys.heads(row, slots, "")) == 1
    return pages_read(lambda: concurrency_keys.heads(row, slots, ""))


def analyzed_when(seen: str) -> None:
    """PostgreSQL has looked at the table: without a row, or with those of another tenant."""
    empty_files()
    if seen != "nothing":
        many_waiting(tenant_queue("another"), 1000)
    if seen == "history":
        TenantJob.objects.update(state=State.FINISHED)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenant_slots_tenantjob")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
@pytest.mark.parametrize("slots", [2, 100])
@pytest.mark.parametrize("seen", ["nothing", "history", "backlog"])
def test_how_many_jobs_are_passed_over_does_not_count(slots: int, seen: str) -> None:
    """Whatever statistics there are of a table to which the jobs came later."""
    analyzed_when(seen)
    few, many = (pages_for_the_last_key(jobs_of_each, slots) for jobs_of_each in (300, 1500))
    assert many < few * 1.5


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's settings")
@pytest.mark.django_db(transaction=True)
def test_our_transactions_read_backlogs_as_they_are_indexed() -> None:
    def settings() -> list[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('enable_sort'), current_setting('jit')")
            return list(cursor.fetchone())

    row, before = tenant_queue(), settings()
    with locked(row.pk):
        assert settings() == ["off", "off"]
    assert settings() == before != ["off", "off"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
@pytest.mark.parametrize("seen", ["nothing", "history", "backlog"])
def test_the_count_of_pages_sees_a_walk_along_the_backlog(monkeypatch: pytest.MonkeyPatch, seen: str) -> None:
    analyzed_when(seen)
    monkeypatch.setattr(concurrency_keys, "NEAR", 1_000_000)
    few, many = (pages_for_the_last_key(jobs_of_each, 2) for jobs_of_each in (300, 1500))
    assert many > few * 3


def test_blocks_of_keys_are_looked_at_once_and_not_once_per_key() -> None:
    row = tenant_queue(max_job=100, max_job_per_key=1)
    waiting_in_blocks(row, 40, 20)
    with CaptureQueriesContext(connection) as queries:
        assert len(concurrency_keys.heads(row, 100, "")) == 40
    assert len(queries) <= 5


def test_a_backlog_of_too_many_keys_is_walked_along_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_keys, "MOST_KEYS", 10)
    row = tenant_queue(max_job=100, max_job_per_key=1)
    waiting_in_blocks(row, 40, 20)
    with CaptureQueriesContext(connection) as queries:
        assert len(concurrency_keys.heads(row, 100, "")) == 40
    assert len(queries) <= 5


def test_a_backlog_of_many_keys_is_looked_at_by_key_and_is_not_walked_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_keys, "FEW_KEYS", 10)
    monkeypatch.setattr(concurrency_keys, "_walk", lambda *_: pytest.fail("every job of it would be read"))
    row = tenant_queue(max_job=100, max_job_per_key=1)
    waiting_in_blocks(row, 40, 20)
    with CaptureQueriesContext(connection) as queries:
        assert len(concurrency_keys.heads(row, 100, "")) == 40
    assert len(queries) <= 7


def test_nobody_looks_for_many_keys_where_only_a_few_jobs_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One user of a tenant with thousands of them has all its slots' worth of jobs at the head."""
    monkeypatch.setattr(concurrency_keys, "FEW_KEYS", 10)
    row = tenant_queue(max_job=3, max_job_per_key=1)
    many_waiting(row, 600, key="ann")
    assert len(admit(row, 1)) == 1
    for number in range(40):
        waiting_job(row, key=f"user {number}")
    with CaptureQueriesContext(connection) as queries:
        found = concurrency_keys.heads(row, 2, "")
    assert [TenantJob.objects.get(pk=pk).key for pk in found] == ["user 0", "user 1"]
    assert len(queries) <= 4


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
def test_nor_does_it_count_behind_many_keys_how_many_jobs_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_keys, "FEW_KEYS", 5)
    monkeypatch.setattr(concurrency_keys, "FAR", 300)
    few, many = (pages_for_the_last_key(jobs_of_each, 2) for jobs_of_each in (300, 1500))
    assert many < few * 1.5


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
def test_control_a_part_of_the_backlog_that_has_no_end_is_seen_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_keys, "FEW_KEYS", 5)
    few, many = (pages_for_the_last_key(jobs_of_each, 2) for jobs_of_each in (300, 1500))
    assert many > few * 2


@pytest.mark.skipif(connection.vendor != "postgresql", reason="reads PostgreSQL's plan")
@pytest.mark.django_db(transaction=True)
def test_jobs_without_a_full_key_are_read_from_the_index_of_the_backlog() -> None:
    row = tenant_queue()
    many_waiting(row, 3000, key="ann")
    many_waiting(tenant_queue("others"), 20000, key="ann")
    lane = waiting_keys.Lane(row.pk, "")
    with CaptureQueriesContext(connection) as queries:
        assert waiting_keys.first_without(lane, ["ann"], 1000, 5) == []
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE tenant_slots_tenantjob")
        cursor.execute(f"EXPLAIN {queries.captured_queries[0]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Only Scan using tenant_slots_backlog on" in plan, plan
    assert "Sort" not in plan


def test_all_jobs_of_a_turn_are_marked_by_one_statement() -> None:
    row = tenant_queue(max_job=30)
    many_waiting(row, 30)
    with CaptureQueriesContext(connection) as queries:
        assert len(admit(row)) == 30
    assert len(queries) <= 8
    assert set(TenantJob.objects.values_list("state", "attempt")) == {(State.QUEUED, 1)}


def test_what_the_turn_gives_is_what_the_database_has() -> None:
    row = tenant_queue(max_job=3)
    many_waiting(row, 3)
    admitted = admit(row)
    assert [(job.state, job.attempt) for job in admitted] == [(State.QUEUED, 1)] * 3


WAYS = {
    "near the head": (256, 500, 500),
    "by key": (1, 500, 500),
    "without the full keys, then by key": (1, 0, 500),
    "without the full keys, then along the backlog": (1, 0, 0),
    "along the backlog": (1, 500, 0),
}
"""How a head is found: `NEAR`, `FEW_KEYS` and `MOST_KEYS`."""


class Ways(TestCase):
    """Each of the ways to the next jobs against a plain model: walk along the backlog, take what is below its cap."""

    @examples(max_examples=60, deadline=None)
    @given(
        backlog=st.lists(
            st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(-1, 1), st.sampled_from(["", "imports_bulk"])),
            max_size=20,
        ),
        held=st.lists(st.sampled_from(["", "a", "b"]), max_size=4),
        slots=st.integers(1, 4),
        per_key=st.integers(1, 3),
    )
    def test_it_takes_the_jobs_that_a_walk_along_the_backlog_would_take(
        self, backlog: list[tuple[str, int, str]], held: list[str], slots: int, per_key: int
    ) -> None:
        row = tenant_queue("walk", max_job=20, max_job_per_key=per_key)
        TenantJob.objects.bulk_create(
            TenantJob(tenant_queue=row, task=TASK, key=key, state=State.RUNNING) for key in held
        )
        placed = [waiting_job(row, key=key, priority=urgency, rq_queue=lane) for key, urgency, lane in backlog]
        placed.sort(key=lambda job: (-job.priority, job.pk))
        for lane in ("", "imports_bulk"):
            count, expected = Counter(held), []
            for job in placed:
                is_free = not job.key or count[job.key] < per_key
                if job.rq_queue == lane and is_free and len(expected) < slots:
                    expected.append(job.pk)
                    count[job.key] += 1
            for near, few_keys, most_keys in WAYS.values():
                with (
                    patch.object(concurrency_keys, "NEAR", near),
                    patch.object(concurrency_keys, "FEW_KEYS", few_keys),
                    patch.object(concurrency_keys, "FAR", 8),
                    patch.object(concurrency_keys, "MOST_KEYS", most_keys),
                ):
                    assert concurrency_keys.heads(row, slots, lane) == expected


class Admission(TestCase):
    """The choice against a plain model of it: walk along the backlog, take every job whose key is below the limit."""

    @examples(max_examples=60, deadline=None)
    @given(
        backlog=st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.integers(-1, 1)), max_size=20),
        max_job=st.integers(0, 6),
        per_key=st.none() | st.integers(1, 3),
    )
    def test_it_takes_the_jobs_that_a_walk_along_the_backlog_would_take(
        self, backlog: list[tuple[str, int]], max_job: int, per_key: int | None
    ) -> None:
        row = tenant_queue("walk", max_job=max_job, max_job_per_key=per_key)
        placed = [waiting_job(row, key=key, priority=priority) for key, priority in backlog]
        held: Counter[str] = Counter()
        expected: list[int] = []
        for job in sorted(placed, key=lambda job: (-job.priority, job.pk)):
            if len(expected) < max_job and (not job.key or per_key is None or held[job.key] < per_key):
                expected.append(job.pk)
                held[job.key] += 1
        assert list(findings.stranded()) == [("imports", row.pk)] * bool(expected)
        assert [job.pk for job in admit(row)] == expected
        assert list(findings.stranded()) == []
        assert counters_match()
        for job in TenantJob.objects.filter(pk__in=expected):
            slots.release(job, state=State.FINISHED)
        by_key: dict[str, int] = defaultdict(int)
        for job in TenantJob.objects.holding():
            by_key[job.key] += bool(job.key)
        assert per_key is None or max(by_key.values(), default=0) <= per_key
        assert TenantQueue.objects.get(pk=row.pk).current_job == TenantJob.objects.holding().count()
