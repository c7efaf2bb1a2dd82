"""``unique_for``: while an identical job is under way, enqueueing gives that one, whoever else enqueues meanwhile."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import date, timedelta
from itertools import cycle
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import UUID

import django_rq
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from tenant_slots import exceptions, signals, slots, tenant_job
from tenant_slots.db.clock import in_seconds
from tenant_slots.enqueueing import bulk, identity, unique
from tenant_slots.enqueueing.ways import WaysToEnqueue
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.tasks.task import TenantTask
from tests import jobs
from tests.factories import TASK, admit, age, fresh, owner, tenant_queue, work
from tests.plans import explained
from tests.processes import ROOT, environment, somebody_waits_for_a_lock, wait_until
from tests.races.test_double_release import at_once

pytestmark = pytest.mark.django_db(transaction=True)

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")

WINDOW = 600
"""Seconds of ``unique_for`` of the tests' jobs."""


def test_an_identical_job_under_way_is_returned_instead_of_a_second_one() -> None:
    first = jobs.import_once.enqueue("acme", "a.csv")
    assert jobs.import_once.enqueue("acme", "a.csv") == first
    assert jobs.import_once.delay(tenant="acme", path="a.csv", deep=False).uuid == first.uuid
    assert TenantJob.objects.count() == 1


def test_defaults_and_the_way_to_pass_an_argument_make_no_difference() -> None:
    same = [
        jobs.import_once.enqueue("acme"),
        jobs.import_once.enqueue("acme", "feed.csv"),
        jobs.import_once.enqueue(path="feed.csv", tenant="acme"),
        jobs.import_once.enqueue("acme", deep=False),
    ]
    assert len({job.uuid for job in same}) == 1
    options = [{"y": 1, "x": [2]}, {"x": [2], "y": 1}]
    assert len({jobs.import_once.enqueue("acme", "o.csv", options=one).uuid for one in options}) == 1


def test_another_tenant_argument_or_function_makes_another_job() -> None:
    different = [
        jobs.import_once.enqueue("acme", "a.csv"),
        jobs.import_once.enqueue("umbrella", "a.csv"),
        jobs.import_once.enqueue("acme", "b.csv"),
        jobs.import_once.enqueue("acme", "a.csv", "part"),
        jobs.import_once.enqueue("acme", "a.csv", deep=True),
        jobs.import_once.enqueue("acme", "a.csv", deep=1),
        jobs.import_once.enqueue("acme", "a.csv", extra=None),
        jobs.import_once.using(tenant="umbrella").enqueue("acme", "a.csv", extra=None),
        jobs.import_path_once.enqueue("acme", "a.csv"),
    ]
    assert len({job.uuid for job in different}) == len(different)


def test_queue_priority_and_time_are_not_what_makes_jobs_identical() -> None:
    first = jobs.import_once.enqueue("acme")
    assert jobs.import_once.using(queue="imports_bulk", priority=3, key="user-7").enqueue("acme") == first


def test_unique_key_says_what_is_identical() -> None:
    first = jobs.import_path_once.enqueue("acme", "a.csv", note="one")
    assert jobs.import_path_once.enqueue("acme", "a.csv", note="two") == first
    assert jobs.import_path_once.enqueue("acme", "b.csv", note="one") != first
    assert jobs.import_path_once.enqueue("umbrella", "a.csv") != first
    assert jobs.import_path_once.enqueue("acme", 7) == jobs.import_path_once.enqueue("acme", "7")


@pytest.mark.parametrize("value", [None, True, 1.5, ["a.csv"], {"path": "a.csv"}])
def test_a_unique_key_of_another_kind_is_refused_and_nothing_is_stored(value: Any) -> None:
    with pytest.raises(exceptions.InvalidKey, match=r"import_path_once: unique_key must give a str, an int or a UUID"):
        jobs.import_path_once.enqueue("acme", value)
    assert not TenantJob.objects.exists()


def with_defaults(tenant: str, day: date = date(2030, 1, 1), marker: object = object()) -> None: ...


def digest_of(task: TenantTask[..., Any], *args: str) -> str:
    return identity.digest_of(task.called_with(args, {}), "acme", {})


def test_a_default_that_is_not_json_is_the_same_in_every_process() -> None:
    task = tenant_job("imports", tenant="tenant", unique_for=timedelta(minutes=1))(with_defaults).tenant_task
    before = digest_of(task, "acme")
    with_defaults.__defaults__ = (date(2030, 1, 1), object())
    assert digest_of(task, "acme") == before


def test_a_job_that_is_older_than_the_window_has_no_duplicates() -> None:
    first = jobs.import_once.enqueue("acme")
    age(first, enqueued_at=WINDOW - 5)
    assert jobs.import_once.enqueue("acme") == first
    age(first, enqueued_at=WINDOW + 1)
    second = jobs.import_once.enqueue("acme")
    assert second != first
    assert jobs.import_once.enqueue("acme") == second
    assert fresh(first).unique_key == ""


@pytest.mark.parametrize("state", [State.FINISHED, State.FAILED, State.CANCELED])
def test_a_job_that_has_ended_has_no_duplicates(state: State) -> None:
    first = jobs.import_once.enqueue("acme")
    slots.release(fresh(first), state=state)
    assert jobs.import_once.enqueue("acme").uuid != first.uuid


def test_duplicates_give_the_first_job_until_it_has_ended_whatever_happens_to_it() -> None:
    row = tenant_queue(max_job=0)
    first = jobs.import_once.enqueue("acme")
    assert jobs.import_once.enqueue("acme") == first, "while it waits"
    TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
    (admitted,) = admit(row)
    assert slots.start(admitted, owner())
    assert jobs.import_once.enqueue("acme") == first, "while it runs"
    slots.release(admitted, state=State.SCHEDULED, later=60.0)
    assert jobs.import_once.enqueue("acme") == first, "while it waits for its retry"


def test_duplicates_give_a_retried_job_again() -> None:
    first = jobs.import_once.enqueue("acme")
    first.cancel()
    first.retry()
    assert jobs.import_once.enqueue("acme") == first


def test_a_retried_job_that_has_become_a_duplicate_runs_beside_the_other() -> None:
    first = jobs.import_once.enqueue("acme")
    first.cancel()
    second = jobs.import_once.enqueue("acme")
    first.retry()
    assert (first.state, first.unique_key) == (State.WAITING, "")
    assert jobs.import_once.enqueue("acme") == second
    with transaction.atomic():
        first.cancel()
        first.retry()
    work()
    assert {fresh(job).state for job in (first, second)} == {State.FINISHED}


def test_only_new_jobs_are_signaled_and_admitted() -> None:
    sent: list[TenantJob] = []

    def receive(jobs: list[TenantJob], **_: Any) -> None:
        sent.extend(jobs)

    signals.jobs_enqueued.connect(receive)
    try:
        first = jobs.import_once.enqueue("acme")
        jobs.import_once.enqueue("acme")
        _, second = jobs.import_once.enqueue_many([(("acme",), {}), (("acme", "b.csv"), {})])
    finally:
        signals.jobs_enqueued.disconnect(receive)
    assert sent == [first, second]
    assert len(django_rq.get_queue("imports")) == 1


def test_a_full_backlog_still_gives_the_jobs_that_are_in_it() -> None:
    tenant_queue(max_job=0, max_waiting=1)
    first = jobs.import_once.enqueue("acme", "a.csv")
    assert jobs.import_once.enqueue("acme", "a.csv") == first
    with pytest.raises(exceptions.TenantQueueFull):
        jobs.import_once.enqueue_many([(("acme", path), {}) for path in ("a.csv", "b.csv")])
    assert TenantJob.objects.get() == first


def test_a_duplicate_is_not_discarded_and_a_discarded_job_has_no_duplicates() -> None:
    task = WaysToEnqueue(replace(jobs.only_now.tenant_task, unique_for=timedelta(seconds=WINDOW)))
    row = tenant_queue(max_job=1)
    admitted = task.enqueue("acme")
    assert task.enqueue("acme") == admitted
    assert fresh(admitted).state == State.QUEUED
    admitted.cancel()
    TenantQueue.objects.filter(pk=row.pk).update(max_job=0)
    discarded = task.enqueue("acme")
    assert fresh(discarded).state == State.CANCELED
    assert task.enqueue("acme") != discarded


def test_enqueue_many_gives_every_call_its_job_in_order() -> None:
    under_way = jobs.import_once.enqueue("acme", "b.csv")
    paths = ["c.csv", "b.csv", "a.csv", "c.csv", "a.csv"]
    got = jobs.import_once.enqueue_many([(("acme", path), {}) for path in paths])
    assert [job.args[1] for job in got] == paths
    assert (got[1], got[3], got[4]) == (under_way, got[0], got[2])
    assert got[0].pk < got[2].pk, "the backlog is in the order of the calls"
    assert TenantJob.objects.count() == 3


@pytest.mark.parametrize("count", [50, 2 * bulk.COPY_FROM])
def test_the_backlog_is_in_the_order_of_the_calls_however_many(count: int) -> None:
    tenant_queue(max_job=0)
    calls = [(("acme", f"{number}.csv"), {}) for number in range(count)]
    got = jobs.import_once.enqueue_many(calls)
    assert [job.args[1] for job in TenantJob.objects.backlog()] == [args[1] for args, _ in calls]
    assert jobs.import_once.enqueue_many(reversed(calls)) == got[::-1]
    assert TenantJob.objects.count() == count


def test_enqueue_many_stores_all_or_none() -> None:
    with pytest.raises(exceptions.ArgumentNotJSON):
        jobs.import_once.enqueue_many([(("acme",), {}), (("acme", object()), {})])
    assert not TenantJob.objects.exists()


def test_inside_a_transaction_the_first_one_is_found_and_a_rollback_leaves_none() -> None:
    with transaction.atomic():
        first = jobs.import_once.enqueue("acme")
        assert jobs.import_once.enqueue("acme") == first
        transaction.set_rollback(True)
    assert not TenantJob.objects.exists()
    assert jobs.import_once.enqueue("acme").uuid != first.uuid


def test_inside_a_transaction_a_job_of_that_transaction_may_grow_too_old() -> None:
    with transaction.atomic():
        first = jobs.import_once.enqueue("acme")
        age(first, enqueued_at=WINDOW + 1)
        assert jobs.import_once.enqueue("acme").uuid != first.uuid
    assert TenantJob.objects.count() == 2


def test_fifty_threads_that_enqueue_the_same_job_store_one() -> None:
    found = at_once(*[lambda: jobs.import_once.enqueue("acme").uuid] * 50)
    assert len(set(found)) == 1
    assert [job.uuid for job in TenantJob.objects.all()] == [found[0]]


def test_without_the_option_fifty_threads_store_fifty() -> None:
    at_once(*[lambda: jobs.fail.enqueue("acme")] * 50)
    assert TenantJob.objects.count() == 50


def test_the_constraint_decides_and_not_the_look_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that have both looked before either stores, the second is refused."""
    monkeypatch.setattr(unique, "_under_way", lambda *_: {})
    jobs.import_once.enqueue("acme")
    with pytest.raises(IntegrityError, match="unique_key"):
        jobs.import_once.enqueue("acme")
    assert TenantJob.objects.count() == 1


def test_two_processes_at_the_same_moment_store_one(tmp_path: Path) -> None:
    code = (
        "import django; django.setup()\n"
        "import sys, time, pathlib\n"
        "from tests.jobs import import_once\n"
        "me, folder = sys.argv[1], pathlib.Path(sys.argv[2])\n"
        "for turn in range(20):\n"
        "    (folder / f'{turn}-{me}').touch()\n"
        "    while not all((folder / f'{turn}-{one}').exists() for one in 'ab'): pass\n"
        "    print(import_once.enqueue('acme', f'{turn}.csv').uuid)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    processes = [
        subprocess.Popen([*command, me, str(tmp_path)], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True)
        for me in "ab"
    ]
    one, two = (process.communicate(timeout=60)[0].split() for process in processes)
    assert one == two
    assert len(set(one)) == TenantJob.objects.count() == 20


@contextmanager
def another_session(action: Any) -> Iterator[list[Any]]:
    """The action in a second session that runs into ours; its answer once the block has ended."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(action())
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    try:
        yield answers
    finally:
        thread.join(30)
        assert not thread.is_alive()


@on_postgresql
@pytest.mark.parametrize("rolls_back", [False, True])
def test_a_second_one_waits_for_the_transaction_of_the_first(rolls_back: bool) -> None:
    tenant_queue(max_job=1)
    with transaction.atomic():
        first = jobs.import_once.enqueue("acme")
        session = another_session(lambda: jobs.import_once.enqueue("acme"))
        answers = session.__enter__()
        wait_until(somebody_waits_for_a_lock)
        transaction.set_rollback(rolls_back)
    session.__exit__(None, None, None)
    assert (answers == [first]) is not rolls_back
    assert TenantJob.objects.count() == 1
    wait_until(lambda: TenantJob.objects.get().state == State.QUEUED)


@on_postgresql
def test_processes_that_enqueue_the_same_jobs_in_opposite_orders_do_not_deadlock() -> None:
    calls = [(("acme", f"{number}.csv"), {}) for number in range(40)]
    tenant_queue()
    for _ in range(10):
        TenantJob.objects.all().delete()
        forth, back = at_once(
            lambda: jobs.import_once.enqueue_many(calls), lambda: jobs.import_once.enqueue_many(calls[::-1])
        )
        assert [job.uuid for job in forth] == [job.uuid for job in back[::-1]]
        assert TenantJob.objects.count() == len(calls)


@on_postgresql
def test_control_storing_in_the_order_of_the_calls_would_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above, forced: each of the two has stored one when it comes to the other's."""
    tenant_queue()
    first, second = sorted(["a.csv", "b.csv"], key=digest)
    one, both = Event(), Event()

    def crosswise() -> Any:
        assert one.wait(20)
        with transaction.atomic():
            jobs.import_once.enqueue("acme", second)
            both.set()
            return jobs.import_once.enqueue_many([(("acme", first), {})])

    # Ours ends before the other one is waited for, which goes on if it is ours that is given up.
    with another_session(lambda: deadlocks(crosswise)) as answers, transaction.atomic():
        jobs.import_once.enqueue("acme", first)
        one.set()
        assert both.wait(20)
        wait_until(somebody_waits_for_a_lock)
        ours = deadlocks(lambda: jobs.import_once.enqueue("acme", second))
        transaction.set_rollback(True)
    assert [ours, *answers].count(True) == 1


def digest(path: str) -> str:
    return digest_of(jobs.import_once.tenant_task, "acme", path)


def deadlocks(action: Any) -> bool:
    try:
        with transaction.atomic():
            action()
    except Exception as error:
        if "deadlock" in str(error):
            return True
        raise
    return False


@on_postgresql
def test_a_caller_whose_transaction_takes_long_does_not_lock_the_old_job() -> None:
    first = jobs.import_once.enqueue("acme")
    assert slots.start(fresh(first), owner())
    age(first, enqueued_at=WINDOW + 1)
    with transaction.atomic():
        second = jobs.import_once.enqueue("acme")
        (renewed,) = at_once(lambda: slots.beat(first.pk, fresh(first).token))
        assert renewed
    assert first != second
    assert jobs.import_once.enqueue("acme") == second


@on_postgresql
def test_an_old_job_that_the_caller_has_locked_does_not_block_the_caller() -> None:
    first = jobs.import_once.enqueue("acme")
    age(first, enqueued_at=WINDOW + 1)
    with transaction.atomic():
        TenantJob.objects.filter(pk=first.pk).update(priority=1)
        assert jobs.import_once.enqueue("acme").uuid != first.uuid


@on_postgresql
def test_a_transaction_that_cannot_see_the_first_one_is_refused_a_second_and_goes_on() -> None:
    tenant_queue()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert not TenantJob.objects.exists()
        (first,) = at_once(lambda: jobs.import_once.enqueue("acme"))
        with pytest.raises(IntegrityError, match="unique_key"):
            jobs.import_once.enqueue("acme")
        assert not TenantJob.objects.exists()
    assert TenantJob.objects.get() == first


class Churn:
    """Somebody else, who after every look of ours ends the job that he has under way, and stores the next one."""

    def __init__(self, paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths, self.stored, self.looks = cycle(paths), "", 0
        self._look = unique._under_way
        monkeypatch.setattr(unique, "_under_way", self.look_then_churn)

    def look_then_churn(self, *args: Any) -> Any:
        self.looks += 1
        found = self._look(*args)
        at_once(self._churn)
        return found

    def _churn(self) -> None:
        self.end_last()
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '50ms'")
                self.stored = next(self.paths)
                digest = digest_of(jobs.import_once.tenant_task, "acme", self.stored)
                row = TenantQueue.objects.get()
                TenantJob.objects.create(tenant_queue=row, task=TASK, args=["acme", self.stored], unique_key=digest)
        except OperationalError:
            pass  # somebody is about to store that one

    def end_last(self) -> None:
        TenantJob.objects.not_ended().filter(task=TASK).update(state=State.FINISHED, ended_at=in_seconds(0))


PATHS = [f"{number}.csv" for number in range(30)]


@contextmanager
def in_transaction(level: str) -> Iterator[None]:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        yield


@on_postgresql
@pytest.mark.parametrize("level", ["", "READ COMMITTED", "READ UNCOMMITTED"], ids=lambda level: level or "alone")
def test_others_who_store_and_end_identical_jobs_all_the_time_cause_no_error(
    level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, or in a transaction of that level."""
    tenant_queue(max_job=0)
    churn = Churn(PATHS, monkeypatch)
    with in_transaction(level) if level else nullcontext():
        got = jobs.import_once.enqueue_many([(("acme", path), {}) for path in PATHS])
    assert [job.args[1] for job in got] == PATHS
    assert churn.looks > 2, "the control: somebody was in the way"
    keys = TenantJob.objects.not_ended().values_list("unique_key", flat=True)
    assert len(keys) == len(set(keys)) >= 30 - churn.looks, "what a look has found may have ended since"


@on_postgresql
def test_of_a_call_that_fails_in_the_end_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(max_job=0, max_waiting=20)
    Churn(PATHS, monkeypatch)
    with pytest.raises(exceptions.TenantQueueFull):
        jobs.import_once.enqueue_many([(("acme", path), {}) for path in PATHS])
    assert not TenantJob.objects.exclude(task=TASK).exists()


@on_postgresql
def test_whoever_waits_for_another_one_has_stored_only_jobs_with_lower_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or two of them would wait for each other: at every INSERT, what this transaction has stored is lower."""
    tenant_queue(max_job=0)
    churn = Churn(PATHS, monkeypatch)
    insert, tries = bulk.insert_unless_duplicate, []

    def watched(job: TenantJob) -> bool:
        mine = TenantJob.objects.exclude(task=TASK).values_list("unique_key", flat=True)
        tries.append((max(mine, default=""), job.unique_key))
        return insert(job)

    monkeypatch.setattr(bulk, "insert_unless_duplicate", watched)
    got = jobs.import_once.enqueue_many([(("acme", path), {}) for path in PATHS])
    assert churn.looks > 2, "the control: somebody was in the way"
    assert len(tries) >= 28
    assert all(highest < digest for highest, digest in tries)
    mine = [job.pk for job in got if job.task != TASK]
    assert mine == sorted(mine), "the backlog is in the order of the calls"


def test_a_job_that_a_duplicate_is_in_the_way_of_is_not_stored_and_another_one_is() -> None:
    row = tenant_queue(max_job=0)
    taken = jobs.import_once.enqueue("acme", "0.csv")
    duplicate = TenantJob(tenant_queue=row, task=TASK, unique_key=taken.unique_key)
    other = TenantJob(tenant_queue=row, task=TASK, unique_key="other")
    with transaction.atomic():
        assert not bulk.insert_unless_duplicate(duplicate)
        assert bulk.insert_unless_duplicate(other)
    assert TenantJob.objects.get(pk=other.pk).enqueued_at == other.enqueued_at
    assert TenantJob.objects.count() == 2


@on_postgresql
def test_the_search_for_identical_jobs_uses_the_index() -> None:
    assert "tenant_slots_one_per_unique_key" in explained(unique.active().filter(unique_key__in=["a" * 64]))


def test_jobs_without_the_option_pay_nothing() -> None:
    tenant_queue(max_job=0)
    jobs.import_once.enqueue("acme")
    with CaptureQueriesContext(connection) as plain:
        jobs.fail.enqueue("acme")
    with CaptureQueriesContext(connection) as unique:
        jobs.import_once.enqueue("acme", "b.csv")
    looks = 2 if connection.vendor == "postgresql" else 1
    assert len(unique) == len(plain) + looks, (
        "for a duplicate; and for the tenant queue, which a plain one finds by the way"
    )
    texts = [query["sql"].rpartition("; ")[2].partition("VALUES")[0] for query in plain]
    assert not [text for text in texts if "unique_key" in text.partition("WHERE")[2]]


def test_a_digest_tells_nothing_about_the_arguments() -> None:
    job = jobs.import_once.enqueue("acme", "secret.csv")
    assert (len(job.unique_key), int(job.unique_key, 16) > 0) == (64, True)
    assert UUID(int=0) != job.uuid


@on_postgresql
@pytest.mark.parametrize("task", [jobs.import_once, jobs.index_shop], ids=["unique_for", "debounce"])
def test_a_job_that_a_constraint_of_the_project_refuses_has_no_duplicate(task: TenantTask[..., Any]) -> None:
    tenant_queue("acme")
    table = TenantJob._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT never CHECK (priority < -100)")
        try:
            with pytest.raises(IntegrityError, match="never"):
                task.enqueue("acme", 7)
        finally:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT never")
