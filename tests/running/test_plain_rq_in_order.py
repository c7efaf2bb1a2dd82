"""A plain RQ job of a decorated function is its tenant's, whose turn it may not be when a worker takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.db import OperationalError
from django.test import override_settings
from redis.exceptions import RedisError
from rq import SimpleWorker
from rq.job import Job

from tenant_slots import fair_order, transitions
from tenant_slots.decorators import tenant_job
from tenant_slots.fair_order import NOTHING_CHARGED, Freed, Turn
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.tasks.on_busy import DISCARD
from tenant_slots.workers import TenantSimpleWorker
from tests import jobs
from tests.factories import DeafWorker, counters_match, pretend_idle, tenant_queue, waiting_job, worker_on_record
from tests.history import History
from tests.order_records import records
from tests.sleeping import replace_sleep

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_workers")]

QUEUE = "imports"


@tenant_job(QUEUE, tenant="tenant", on_busy=DISCARD)
def record_or_discard(tenant: str, name: str, history: str) -> str:
    return jobs.record(tenant, name, history)


@tenant_job(QUEUE, tenant="tenant", on_busy=lambda job, row: DISCARD)
def record_or_ask(tenant: str, name: str, history: str) -> str:
    return jobs.record(tenant, name, history)


@pytest.fixture
def whale() -> TenantQueue:
    """Workers have run its jobs for an hour."""
    row = tenant_queue("whale", max_job=50)
    fair_order.offer(QUEUE, [(row.pk, 1)])
    fair_order.freed(Freed(row.pk, 3600.0, QUEUE, is_over=True))
    fair_order.drop(next_turn(), is_full=False)
    return row


def next_turn() -> Turn:
    turn = fair_order.next_turn(QUEUE, "the test")
    assert turn is not None
    return turn


@pytest.fixture
def history(tmp_path: Path) -> str:
    return str(tmp_path / "history")


def started(history: str) -> list[str]:
    return History(Path(history)).started()


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> Callable[[TenantQueue], list[int]]:
    """How many jobs a tenant is charged for when a plain one of it has begun, each time."""
    begin = fair_order.begin

    def watched(row: TenantQueue) -> list[int]:
        seen: list[int] = []

        def begin_and_look(*given: Any, **options: Any) -> Turn | None:
            turn = begin(*given, **options)
            seen.append(records(row.pk)[QUEUE].jobs)
            return turn

        monkeypatch.setattr(fair_order, "begin", begin_and_look)
        return seen

    return watched


def plain(tenant: str, name: str, history: str, function: Any = jobs.record) -> Job:
    return django_rq.get_queue(QUEUE).enqueue(function, tenant, name, history)


def others_wait(number: int, history: str) -> list[TenantJob]:
    """Of as many tenants that have had nothing."""
    return [jobs.record.enqueue(f"small-{one}", f"small-{one}", history) for one in range(number)]


def work(worker_class: Any = DeafWorker, **options: Any) -> None:
    queue = django_rq.get_queue(QUEUE)
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR", **options)


@pytest.mark.parametrize("function", [jobs.record, record_or_ask])
@pytest.mark.parametrize("worker_class", [DeafWorker, TenantSimpleWorker])
@pytest.mark.parametrize("number", [2, 5])
def test_it_waits_for_the_turns_of_others_that_have_had_less(
    worker_class: Any, number: int, function: Any, whale: TenantQueue, history: str
) -> None:
    """A callable `on_busy` is not asked: to wait for a worker alone is not to be busy."""
    first = [plain("whale", f"whale-{one}", history, function) for one in range(3)]
    others_wait(number, history)
    work(worker_class)
    order = [name.partition("-")[0] for name in started(history)]
    assert order[:number].count("whale") <= 1, "the last one of them keeps nobody waiting"
    assert order.count("whale") == 3
    assert all(rq_job.is_finished for rq_job in first)
    assert counters_match()


def test_control_it_goes_before_them_where_nobody_asks_whose_turn_it_is(
    whale: TenantQueue, history: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_order, "begin", lambda *_, waits: Turn(QUEUE, whale.pk, jobs=0, offers=0))
    for one in range(3):
        plain("whale", f"whale-{one}", history)
    others_wait(5, history)
    work(TenantSimpleWorker)
    assert [name.partition("-")[0] for name in started(history)][:5].count("whale") >= 2


def test_until_then_it_is_in_the_backlog_as_where_its_tenant_is_busy(whale: TenantQueue, history: str) -> None:
    others_wait(3, history)
    rq_job = plain("whale", "late", history)
    django_rq.get_queue(QUEUE).push_job_id(rq_job.id, at_front=True)
    work(SimpleWorker, max_jobs=1)
    assert TenantJob.objects.get(rq_job_id=rq_job.id).state == State.WAITING
    assert django_rq.get_queue(QUEUE).scheduled_job_registry.get_job_ids() == [rq_job.id]
    assert started(history) == []
    assert fair_order.tenants_in(QUEUE) >= 2
    work()
    assert "late" in started(history)


def test_it_goes_first_where_its_tenant_has_had_less_than_those_that_wait(whale: TenantQueue, history: str) -> None:
    for one in range(3):
        jobs.record.enqueue("whale", f"whale-{one}", history)
    plain("small", "small", history)
    work(TenantSimpleWorker, max_jobs=3)
    assert started(history) == ["whale-0", "whale-1", "small"], "the first was admitted ahead, and then they take turns"


def test_it_runs_at_once_where_nobody_else_waits(whale: TenantQueue, history: str) -> None:
    for one in range(3):
        plain("whale", f"whale-{one}", history)
    work(max_jobs=3)
    assert started(history) == ["whale-0", "whale-1", "whale-2"]


def test_it_runs_at_once_where_a_worker_is_idle_for_whoever_waits(whale: TenantQueue, history: str) -> None:
    fair_order.offer(QUEUE, [(tenant_queue("small").pk, 1)])
    pretend_idle(1)
    plain("whale", "whale", history)
    work(max_jobs=1)
    assert started(history) == ["whale"]


def test_one_that_does_not_wait_takes_its_slot_at_once(
    whale: TenantQueue, history: str, charges: Callable[[TenantQueue], list[int]]
) -> None:
    """To wait for a worker is not to be busy."""
    others_wait(3, history)
    rq_job = plain("whale", "whale", history, record_or_discard)
    django_rq.get_queue(QUEUE).push_job_id(rq_job.id, at_front=True)
    charged = charges(whale)
    work(max_jobs=1)
    assert started(history) == ["whale"]
    assert charged == [1], "but its tenant pays for it from its start"
    assert records(whale.pk)[QUEUE].jobs == 0


def test_its_start_is_charged_and_its_end_sets_that_right(
    history: str, charges: Callable[[TenantQueue], list[int]]
) -> None:
    row = tenant_queue("acme", max_job=5)
    charged = charges(row)
    plain("acme", "one", history)
    work()
    after = records(row.pk)[QUEUE]
    assert charged == [1]
    assert (after.jobs, after.ahead) == (0, 0)
    assert 0 < after.done < 60


def test_nothing_is_charged_where_it_finds_no_slot(history: str) -> None:
    row = tenant_queue("acme", max_job=0)
    plain("acme", "one", history)
    work(max_jobs=1)
    assert TenantJob.objects.get().state == State.WAITING
    known = records(row.pk)[QUEUE]
    assert (known.jobs, known.ahead, known.done) == (0, 0, pytest.approx(0, abs=0.1))


def test_nor_where_it_cannot_ask_for_one(history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue("acme")
    admit_here, under_way = transitions.admit_here, []

    def fails_once(job: TenantJob) -> bool:
        under_way.append(records(row.pk)[QUEUE].jobs)
        if len(under_way) == 1:
            raise OperationalError("the server has closed the connection")
        return admit_here(job)

    monkeypatch.setattr(transitions, "admit_here", fails_once)
    replace_sleep(monkeypatch, lambda seconds: None)
    plain("acme", "one", history)
    work()
    assert under_way == [1, 1]
    assert records(row.pk)[QUEUE].jobs == 0
    assert started(history) == ["one"]


def test_it_runs_where_the_order_cannot_be_asked(
    whale: TenantQueue, history: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise RedisError("away")

    others_wait(3, history)
    rq_job = plain("whale", "whale", history)
    django_rq.get_queue(QUEUE).push_job_id(rq_job.id, at_front=True)
    monkeypatch.setattr(fair_order, "begin", away)
    work(max_jobs=1)
    assert started(history) == ["whale"]


def test_on_a_synchronous_queue_its_caller_runs_it(whale: TenantQueue, history: str) -> None:
    others_wait(3, history)
    queue = django_rq.get_queue(QUEUE, is_async=False)
    queue.enqueue(jobs.record, "whale", "whale", history)
    assert started(history) == ["whale"]


@override_settings(TENANT_SLOTS={"IMMEDIATE": True})
def test_in_immediate_mode_nobody_is_asked(history: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(fair_order, "begin", lambda *given, **_: asked.append(given))
    plain("acme", "one", history)
    work()
    assert (started(history), asked) == (["one"], [])


def test_one_that_waits_for_its_own_tenants_jobs_has_their_turn(history: str) -> None:
    row = tenant_queue("acme", max_job=2)
    before = waiting_job(row)
    fair_order.freed(Freed(row.pk, NOTHING_CHARGED, QUEUE))
    plain("acme", "behind", history)
    work()
    assert started(history) == ["behind"]
    assert TenantJob.objects.get(pk=before.pk).has_ended
    assert records(row.pk)[QUEUE].jobs == 0


def busy_for_an_hour(history: str) -> list[TenantQueue]:
    """A worker with two tenants that nobody waits beside: the queue's clock says how long."""
    worker_on_record("stock", of_ours=False)
    rows = [tenant_queue(f"old-{number}", max_job=50) for number in range(2)]
    for seconds in (3600.0, 1.0, 1.0):
        fair_order.offer(QUEUE, [(row.pk, 1) for row in rows])
        for _ in rows:
            turn = next_turn()
            fair_order.drop(turn, 1, is_full=False)
            fair_order.freed(Freed(turn.tenant_queue_id, seconds, QUEUE, is_over=True))
    assert not fair_order.tenants_in(QUEUE)
    return rows


def turns(number: int, *rows: TenantQueue) -> Counter[str]:
    """How many of the next ones each has, where all have something to run, for a second each."""
    names = {row.pk: row.tenant for row in rows}
    fair_order.offer(QUEUE, [(row.pk, 1) for row in rows])
    had = Counter(dict.fromkeys(names.values(), 0))
    for _ in range(number):
        turn = next_turn()
        fair_order.undo(turn, 1)
        fair_order.freed(Freed(turn.tenant_queue_id, 1.0, QUEUE))
        had[names[turn.tenant_queue_id]] += 1
    return had


@pytest.mark.parametrize("way", ["plain", "enqueued", "tried"])
def test_one_that_began_while_nobody_waited_leaves_its_tenant_no_credit(way: str, history: str) -> None:
    """For the time before it came. Nor does one that has found its tenant paused."""
    old = busy_for_an_hour(history)
    new = tenant_queue("new", max_job=0 if way == "tried" else 50)
    if way == "enqueued":
        jobs.record.enqueue("new", "first", history)
    else:
        plain("new", "first", history)
    work(max_jobs=1)
    fair_order.tell_share(QUEUE, [(new.pk, 1)])  # as when it is not paused any more
    had = turns(30, *old, new)
    assert max(had.values()) - min(had.values()) <= 2


@pytest.mark.parametrize("begins", [True, False])
def test_one_that_goes_before_others_as_a_worker_is_idle_moves_the_clock_over_nobody(begins: bool) -> None:
    long, other, newcomer = (tenant_queue(name, max_job=50) for name in ("long", "other", "newcomer"))
    fair_order.offer(QUEUE, [(long.pk, 1)])
    turn = next_turn()
    fair_order.offer(QUEUE, [(other.pk, 1)])  # it waits while the long job runs
    fair_order.drop(turn, 1, is_full=False)
    fair_order.freed(Freed(long.pk, 2400.0, QUEUE, is_over=True))
    turns(3, other)
    pretend_idle(1)
    if begins:
        assert fair_order.begin(QUEUE, long.pk, 1, waits=True) is not None
        fair_order.freed(Freed(long.pk, 0.1, QUEUE, is_over=True))
    had = turns(30, other, newcomer)
    assert abs(had["other"] - had["newcomer"]) <= 4


def test_it_goes_before_none_of_its_own_tenant(history: str) -> None:
    """Where others compete a tenant has one turn at a time, however many slots are free."""
    tenant_queue("acme", max_job=50)
    for number in range(12):
        plain("acme", f"acme-{number}", history)
    others_wait(8, history)
    work(TenantSimpleWorker)
    own = [name for name in started(history) if name.startswith("acme")]
    assert own == [f"acme-{number}" for number in range(12)]
