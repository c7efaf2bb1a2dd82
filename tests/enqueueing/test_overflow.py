"""Overflow queues: a tenant that enqueues more than the rules allow goes on, on a slower queue, in the same slots."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from threading import Barrier, Thread
from typing import Any, NoReturn

import django_rq
import pytest
from django.conf import settings
from django.db import IntegrityError, OperationalError, transaction
from django.db.models import IntegerChoices
from django.test import override_settings
from django.utils import timezone
from redis.client import Pipeline
from redis.exceptions import TimeoutError

from tenant_slots import Throttle, fair_order, fleet, slots, transitions, unattended
from tenant_slots.enqueueing import bulk, overflow
from tenant_slots.enqueueing.new_job import NewJob
from tenant_slots.enqueueing.ways import WaysToEnqueue
from tenant_slots.exceptions import UnknownQueue
from tenant_slots.fair_order import Turn
from tenant_slots.fleet import WorkerRecord
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.tasks.task import TenantTask
from tenant_slots.transitions import MOST_LOOKS
from tests import jobs
from tests.factories import (
    DeafWorker,
    age,
    counters_match,
    fresh,
    in_rq,
    owner,
    tenant_queue,
    work,
    worker_on_record,
)
from tests.repair.sweeps import sweep_now
from tests.repair.test_doctor import UNSEEN

pytestmark = pytest.mark.django_db(transaction=True)

OWN, THROTTLED, SLOW = "", "imports_throttled", "imports_slow"
"""`jobs.throttled`: from the fourth job of an hour on THROTTLED, from the third of a minute on SLOW, the last rule."""

HOUR = timedelta(hours=1)
DEAD_REDIS = {name: {"URL": "redis://127.0.0.1:1/0"} for name in settings.RQ_QUEUES}


@pytest.fixture(autouse=True)
def _redis_may_be_asked() -> None:
    overflow._ask_again.clear()


def key(tenant: str = "acme", task: TenantTask[..., Any] = jobs.throttled.tenant_task) -> str:
    return overflow.key_of(task, tenant)


def counted(tenant: str = "acme") -> int:
    """How many enqueues Redis keeps."""
    return int(django_rq.get_connection("imports").zcard(key(tenant)))


def let_pass(seconds: float) -> None:
    """Make all enqueues so far older."""
    redis = django_rq.get_connection("imports")
    for member, score in redis.zrange(key(), 0, -1, withscores=True):
        redis.zadd(key(), {member: score - seconds * 1_000_000})


def with_rules(function: Any, *rules: Throttle) -> WaysToEnqueue[..., Any]:
    return WaysToEnqueue(replace(function.tenant_task, throttle=rules))


def always_slow(function: Any) -> WaysToEnqueue[..., Any]:
    return with_rules(function, Throttle(0, HOUR, SLOW))


@pytest.mark.parametrize(
    ("ages", "queue"),
    [
        ([], OWN),
        ([0], OWN),
        ([0, 0], SLOW),
        ([50, 50], SLOW),
        ([70, 0], OWN),
        ([70, 70], OWN),
        ([70, 70, 70], THROTTLED),
        ([3500, 70, 70], THROTTLED),
        ([3700, 70, 70], OWN),
        ([70, 70, 70, 0], THROTTLED),
        ([70, 70, 70, 0, 0], SLOW),
        ([70, 0, 0], SLOW),
        ([3700] * 9, OWN),
    ],
)
def test_the_last_rule_that_a_job_exceeds_chooses_its_overflow_queue(ages: list[int], queue: str) -> None:
    for this, following in pairwise([*ages, 0]):
        jobs.throttled.enqueue("acme")
        let_pass(this - following)
    assert fresh(jobs.throttled.enqueue("acme")).rq_queue == queue


def test_a_threshold_of_zero_sends_every_job_to_the_overflow_queue_and_keeps_nothing_in_redis() -> None:
    assert always_slow(jobs.throttled).enqueue("acme").rq_queue == SLOW
    assert counted() == 0


def test_a_rule_that_names_the_own_queue_of_the_jobs_leaves_them_there() -> None:
    job = with_rules(jobs.throttled, Throttle(0, HOUR, SLOW), Throttle(0, HOUR, "imports")).enqueue("acme")
    assert (fresh(job).rq_queue, job.state) == (OWN, State.QUEUED)


class Plan(IntegerChoices):
    FREE = 1


def test_a_threshold_may_be_a_member_of_an_enum() -> None:
    throttled = with_rules(jobs.throttled, Throttle(Plan.FREE, HOUR, SLOW))
    assert [throttled.enqueue("acme").rq_queue for _ in range(3)] == [OWN, SLOW, SLOW]


def test_a_job_in_an_overflow_queue_takes_a_slot_of_its_own_queue() -> None:
    row = tenant_queue(max_job=3)
    for _ in range(4):
        jobs.throttled.enqueue("acme")
    assert (in_rq("imports"), in_rq(SLOW), fresh(row).current_job) == (2, 1, 3)
    work("imports", SLOW)
    assert TenantJob.objects.filter(state=State.FINISHED).count() == 4
    assert fresh(row).current_job == 0
    assert TenantQueue.objects.count() == 1


def test_each_tenant_and_each_function_is_counted_separately() -> None:
    other = with_rules(jobs.record, Throttle(2, HOUR, SLOW))
    for _ in range(2):
        jobs.throttled.enqueue("acme")
    assert jobs.throttled.enqueue("zenith").rq_queue == OWN
    assert other.enqueue("acme", "a", "/dev/null").rq_queue == OWN
    assert jobs.throttled.enqueue("acme").rq_queue == SLOW


def test_the_tenant_may_be_given_by_using() -> None:
    for _ in range(3):
        job = jobs.throttled.using(tenant="zenith", priority=3).enqueue("acme")
    assert job.rq_queue == SLOW
    assert (counted("zenith"), counted("acme")) == (3, 0)


@pytest.mark.parametrize("queue", ["imports_bulk", "imports"])
def test_a_job_that_the_caller_sent_to_a_queue_stays_there_and_is_not_counted(queue: str) -> None:
    for _ in range(4):
        job = jobs.throttled.using(queue=queue).enqueue("acme")
    assert (job.rq_queue, job.tenant_queue.queue) == (OWN, queue)
    assert counted() == 0


def test_a_job_without_a_tenant_stays_and_that_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    overflow._warned.clear()
    for _ in range(4):
        job = jobs.throttled.enqueue(None)
    assert job.rq_queue == OWN
    assert counted("") == 0
    assert [one.getMessage() for one in caplog.records if "to throttle" in one.getMessage()] == [
        "tests.jobs.throttled has no tenant to throttle; its jobs without one keep to queue imports"
    ]


def test_a_job_for_later_is_counted_when_it_is_enqueued() -> None:
    later = jobs.throttled.using(run_after=timezone.now() + HOUR)
    assert [later.enqueue("acme").rq_queue for _ in range(3)] == [OWN, OWN, SLOW]


def test_retries_are_not_counted_and_stay_in_the_overflow_queue() -> None:
    tenant_queue(max_job=9)
    for _ in range(3):
        job = jobs.throttled.enqueue("acme", problem="no such feed")
    work("imports", SLOW)
    assert (fresh(job).state, job.failures, counted()) == (State.FAILED, 2, 3)
    job.retry()
    assert (fresh(job).rq_queue, in_rq(SLOW), counted()) == (SLOW, 1, 3)


def test_a_run_after_a_crash_is_not_counted_and_stays_in_the_overflow_queue() -> None:
    job = always_slow(jobs.throttled).enqueue("acme")
    jobs.throttled.enqueue("zenith")
    begin(job)
    django_rq.get_queue(SLOW).empty()
    assert lost_runs.end_lost_run(job, "its process died")
    assert (fresh(job).state, job.attempt, in_rq(SLOW)) == (State.QUEUED, 2, 1)
    assert (counted(), counted("zenith")) == (0, 1)


def begin(job: TenantJob) -> None:
    job.refresh_from_db()
    assert slots.start(job, owner())
    job.refresh_from_db()


def test_plain_rq_jobs_are_left_where_rq_has_put_them() -> None:
    for _ in range(4):
        django_rq.get_queue("imports_bulk").enqueue(jobs.throttled, "acme")
    work("imports_bulk")
    assert set(TenantJob.objects.values_list("rq_queue", "state")) == {("imports_bulk", State.FINISHED)}
    assert counted() == 0


def test_many_at_once_are_counted_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "JOBS_PER_CALL", 3)
    calls = [((tenant,), {"name": str(n)}) for n in range(8) for tenant in ("acme", "zenith")]
    enqueued = jobs.throttled.enqueue_many(calls)
    for tenant in ("acme", "zenith"):
        assert [job.rq_queue for job in enqueued if job.args == [tenant]] == [OWN] * 2 + [SLOW] * 6


def test_many_at_once_are_stored_with_their_overflow_queue() -> None:
    jobs.throttled.enqueue_many([(("acme",), {}) for _ in range(bulk.COPY_FROM)])
    stored = list(TenantJob.objects.order_by("pk").values_list("rq_queue", flat=True))
    assert stored == [OWN] * 2 + [SLOW] * (bulk.COPY_FROM - 2)


def test_any_number_of_jobs_and_tenants_is_one_round_trip_to_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "JOBS_PER_CALL", 3)
    trips: list[int] = []
    execute = Pipeline.execute
    monkeypatch.setattr(Pipeline, "execute", lambda self, *args: trips.append(len(self)) or execute(self, *args))
    overflow.choose(jobs.throttled.tenant_task, [NewJob(f"tenant{n % 5}", TenantJob()) for n in range(20)])
    assert trips == [10]


def test_what_redis_keeps_is_bounded_by_the_highest_threshold() -> None:
    jobs.throttled.enqueue_many([(("acme",), {}) for _ in range(20)])
    jobs.throttled.enqueue("acme")
    assert counted() == 3


def test_a_tenant_that_enqueues_nothing_for_the_longest_window_costs_nothing() -> None:
    jobs.throttled.enqueue("acme")
    assert 3_590_000 < django_rq.get_connection("imports").pttl(key()) <= 3_600_000


def test_enqueues_that_no_window_reaches_are_dropped() -> None:
    for _ in range(3):
        jobs.throttled.enqueue("acme")
    let_pass(3700)
    jobs.throttled.enqueue("acme")
    assert counted() == 1


def test_a_clock_that_was_ahead_does_not_throttle_until_it_gets_there_again() -> None:
    for _ in range(3):
        jobs.throttled.enqueue("acme")
    let_pass(-24 * 3600)
    assert jobs.throttled.enqueue("acme").rq_queue == OWN


def let_through(choose: Any, threads: int, each: int, threshold: int) -> int:
    """How many jobs keep to their own queue when so many threads, each with its own connection, enqueue at once."""
    task = with_rules(jobs.throttled, Throttle(threshold, HOUR, SLOW)).tenant_task
    chosen = [TenantJob() for _ in range(threads * each)]
    barrier = Barrier(threads)

    def enqueue(own: list[TenantJob]) -> None:
        barrier.wait()
        for job in own:
            choose(task, [NewJob("acme", job)])

    started = [Thread(target=enqueue, args=[chosen[n::threads]]) for n in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return sum(job.rq_queue == OWN for job in chosen)


def test_processes_that_enqueue_at_once_are_counted_exactly() -> None:
    assert let_through(overflow.choose, threads=4, each=100, threshold=100) == 100


def test_control_a_count_that_looks_first_and_adds_then_lets_more_through() -> None:
    both_have_looked = Barrier(2)

    def naive(task: TenantTask[..., Any], new: list[NewJob]) -> None:
        redis = django_rq.get_connection("imports")
        before = redis.zcard(key())
        both_have_looked.wait(30)
        redis.zadd(key(), {str(id(new[0])): 0})
        new[0].job.rq_queue = OWN if before < task.throttle[0].threshold else SLOW

    assert let_through(naive, threads=2, each=1, threshold=1) == 2


@pytest.mark.parametrize(
    "tenant",
    [
        "a:b",
        "tests.jobs.record:acme",
        "{acme}",
        "*",
        "acme\r\nFLUSHALL\r\n",
        "'; return 1 --",
        "KEYS[1]",
        "مستأجر",
        "x" * 255,
    ],
)
def test_any_tenant_has_a_count_of_its_own(tenant: str) -> None:
    for _ in range(2):
        jobs.throttled.enqueue(tenant)
    assert jobs.throttled.enqueue(tenant[:-1]).rq_queue == OWN
    assert jobs.throttled.enqueue(tenant).rq_queue == SLOW
    assert counted(tenant) == 3


def test_a_second_try_to_store_a_job_does_not_count_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    insert, failures = bulk.insert, [IntegrityError("the row was deleted")]

    def insert_at_second_try(new: list[TenantJob]) -> None:
        if failures:
            raise failures.pop()
        insert(new)

    monkeypatch.setattr(bulk, "insert", insert_at_second_try)
    jobs.throttled.enqueue("acme")
    assert (TenantJob.objects.count(), counted()) == (1, 1)


def test_an_enqueue_that_is_rolled_back_still_counts() -> None:
    with transaction.atomic():
        jobs.throttled.enqueue("acme")
        transaction.set_rollback(True)
    assert (TenantJob.objects.count(), counted()) == (0, 1)


@pytest.mark.parametrize("queues", [DEAD_REDIS, dict.fromkeys(settings.RQ_QUEUES, UNSEEN)])
def test_a_redis_that_is_down_stops_no_enqueue(queues: Any, caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(RQ_QUEUES=queues), caplog.at_level(logging.WARNING, "tenant_slots"):
        enqueued = jobs.throttled.enqueue_many([(("acme",), {}) for _ in range(5)])
    assert {fresh(job).rq_queue for job in enqueued} == {OWN}
    assert "for 10 s no job of queue imports is throttled" in caplog.text


def test_a_redis_that_gave_no_answer_is_not_asked_at_every_enqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_answer(task: TenantTask[..., Any], *_: object) -> Any:
        asked.append(task.queue)
        raise TimeoutError("no answer for 5 seconds")

    with monkeypatch.context() as patch:
        patch.setattr(overflow, "_count", no_answer)
        for _ in range(3):
            jobs.throttled.enqueue("acme")
    assert asked == ["imports"]
    let_rest_pass()
    assert [jobs.throttled.enqueue("acme").rq_queue for _ in range(3)] == [OWN, OWN, SLOW]


def let_rest_pass() -> None:
    for queue in overflow._ask_again:
        overflow._ask_again[queue] -= overflow.REST_SECONDS


def test_an_overflow_queue_that_rq_does_not_have_is_refused_before_anything_is_counted_or_stored() -> None:
    task = with_rules(jobs.throttled, Throttle(5, HOUR, "imports_slwo"))
    with pytest.raises(UnknownQueue, match="imports_slwo"):
        task.enqueue("acme")
    assert (TenantJob.objects.count(), counted()) == (0, 0)


def test_a_function_without_rules_asks_redis_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "_count", lambda *_: pytest.fail("Redis was asked"))
    jobs.record.enqueue("acme", "a", "/dev/null")


def test_a_job_in_an_overflow_queue_can_be_canceled_before_it_runs() -> None:
    job = always_slow(jobs.throttled).enqueue("acme")
    assert in_rq(SLOW) == 1
    assert job.cancel()
    assert (in_rq(SLOW), fresh(job).state) == (0, State.CANCELED)
    assert counters_match()


def test_a_job_in_an_overflow_queue_is_looked_for_and_pushed_again_there() -> None:
    job = always_slow(jobs.throttled).enqueue("acme")
    age(job, admitted_at=60)
    assert sweep_now().repushed == 0
    django_rq.get_queue(SLOW).empty()
    assert sweep_now().repushed == 1
    assert in_rq(SLOW) == 1


def test_a_job_whose_overflow_queue_the_project_gave_up_goes_to_its_own_queue() -> None:
    job = always_slow(jobs.throttled).enqueue("acme")
    age(job, admitted_at=60)
    with override_settings(RQ_QUEUES={name: one for name, one in settings.RQ_QUEUES.items() if name != SLOW}):
        assert sweep_now().repushed == 1
        work("imports")
    assert fresh(job).state == State.FINISHED


def test_a_worker_of_an_overflow_queue_is_looked_for_on_that_queues_server() -> None:
    job = always_slow(jobs.throttled).enqueue("acme")
    assert fleet.worker_record(job) is WorkerRecord.ABSENT
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, SLOW: DEAD_REDIS[SLOW]}):
        assert fleet.worker_record(job) is WorkerRecord.UNKNOWN


def test_only_workers_that_listen_on_the_overflow_queue_count_as_those_a_job_waits_for(boss: Any) -> None:
    job = always_slow(jobs.throttled).enqueue("acme")
    page = f"/admin/tenant_slots/tenantjob/{job.pk}/change/"
    with listening("imports"):
        assert "No worker of queue imports_slow is alive" in boss.get(page).content.decode()
    with listening("imports", SLOW):
        assert "1 worker of queue imports_slow is alive" in boss.get(page).content.decode()


@contextmanager
def listening(*queues: str) -> Iterator[None]:
    worker = DeafWorker([django_rq.get_queue(name) for name in queues])
    worker.register_birth()
    try:
        yield
    finally:
        worker.register_death()


def test_the_admin_shows_the_overflow_queue_of_a_job(boss: Any) -> None:
    job = always_slow(jobs.throttled).enqueue("acme")
    own = jobs.throttled.enqueue("zenith")
    assert "imports → imports_slow" in boss.get("/admin/tenant_slots/tenantjob/").content.decode()
    assert "imports → imports_slow" in boss.get(f"/admin/tenant_slots/tenantjob/{job.pk}/change/").content.decode()
    assert "→ imports" not in boss.get(f"/admin/tenant_slots/tenantjob/{own.pk}/change/").content.decode()


def unique(function: Any, *rules: Throttle) -> WaysToEnqueue[..., Any]:
    return WaysToEnqueue(replace(with_rules(function, *rules).tenant_task, unique_for=HOUR))


def test_a_duplicate_is_not_counted() -> None:
    task = unique(jobs.import_once, Throttle(5, HOUR, SLOW))
    task.enqueue_many([(("acme",), {})] * 4)
    task.enqueue("acme")
    task.enqueue("acme", "another.csv")
    assert counted_of(task) == 2


def test_a_job_whose_insert_is_tried_again_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = unique(jobs.import_once, Throttle(5, HOUR, SLOW))
    insert = bulk.insert
    tries: list[int] = []

    def lose_once(new: list[TenantJob]) -> None:
        tries.append(len(new))
        if len(tries) == 1:
            raise IntegrityError("somebody else was first")
        insert(new)

    monkeypatch.setattr(bulk, "insert", lose_once)
    task.enqueue("acme")
    assert (tries, counted_of(task)) == ([1, 1], 1)


def counted_of(ways: WaysToEnqueue[..., Any]) -> int:
    return int(django_rq.get_connection("imports").zcard(key(task=ways.tenant_task)))


def in_slow(function: Any) -> WaysToEnqueue[..., Any]:
    return WaysToEnqueue(replace(function.tenant_task, throttle=[Throttle(0, HOUR, SLOW)]))


@pytest.mark.usefixtures("no_workers")
def test_an_overflow_queue_without_a_worker_keeps_no_slot_of_its_tenant() -> None:
    tenant_queue("acme", max_job=1)
    throttled = in_slow(jobs.throttled).enqueue("acme")
    own = jobs.record.enqueue("acme", "own", "history")
    assert (fresh(throttled).state, fresh(own).state) == (State.WAITING, State.QUEUED)
    sweep_now()
    assert (fresh(throttled).state, in_rq(SLOW), in_rq("imports")) == (State.WAITING, 0, 1)


@pytest.mark.usefixtures("no_workers")
def test_a_job_whose_own_queue_that_is_has_its_turn_behind_those_that_are_passed_over() -> None:
    """Or a worker of another class that comes for what is there, as with --burst, would find nothing, ever."""
    throttled = [in_slow(jobs.throttled).enqueue(f"tenant-{number}") for number in range(2 * MOST_LOOKS)]
    own = jobs.record.using(queue=SLOW).enqueue("corner", "own", "history")
    assert {fresh(job).state for job in throttled} == {State.WAITING}
    assert (fresh(own).state, in_rq(SLOW)) == (State.QUEUED, 1)


@pytest.mark.usefixtures("no_workers")
def test_those_that_redis_had_forgotten_are_passed_over_in_a_few_looks(
    django_assert_max_num_queries: Any,
) -> None:
    for number in range(50):
        in_slow(jobs.throttled).enqueue(f"tenant-{number}")
    django_rq.get_connection(SLOW).flushdb()
    lanes = [(pk, 1) for pk in TenantQueue.objects.values_list("pk", flat=True)]
    assert fair_order.offer(SLOW, lanes)
    own = jobs.record.using(queue=SLOW).enqueue("corner", "own", "history")
    assert (fresh(own).state, in_rq(SLOW)) == (State.QUEUED, 1)
    with django_assert_max_num_queries(0):
        transitions.offer_many(SLOW, lanes)


@pytest.mark.usefixtures("no_workers")
def test_once_somebody_listens_they_have_their_turns_in_the_order_in_which_they_were() -> None:
    tenants = [in_slow(jobs.throttled).enqueue(tenant).tenant_queue_id for tenant in ("acme", "bolt", "corner")]
    take = partial(fair_order.take, "rq:worker:ours", [SLOW], waits=True)
    turns = [take()[0] for _ in tenants]
    assert sorted(turn.tenant_queue_id for turn in turns if isinstance(turn, Turn)) == tenants


@pytest.mark.usefixtures("no_workers")
def test_a_job_that_waits_for_nobody_leaves_its_slot_to_an_overflow_queue_that_has_workers() -> None:
    tenant_queue("acme", max_job=1)
    own = jobs.record.enqueue("acme", "own", "history")
    worker_on_record("slow", SLOW, of_ours=False)
    throttled = in_slow(jobs.throttled).enqueue("acme")
    assert (fresh(own).state, fresh(throttled).state) == (State.QUEUED, State.WAITING)
    age(own, admitted_at=60)
    sweep_now()
    assert (fresh(own).state, fresh(throttled).state) == (State.WAITING, State.QUEUED)
    assert (in_rq("imports"), in_rq(SLOW)) == (0, 1)
    assert counters_match()


@pytest.mark.usefixtures("no_workers")
def test_nor_is_one_admitted_for_nobody_while_others_wait_where_workers_are() -> None:
    row = tenant_queue("acme", max_job=0)
    worker_on_record("slow", SLOW, of_ours=False)
    throttled = in_slow(jobs.throttled).enqueue("acme")
    own = jobs.record.enqueue("acme", "own", "history")
    row.set_limit(1)
    assert (fresh(throttled).state, fresh(own).state) == (State.QUEUED, State.WAITING)
    row.set_limit(5)
    assert in_rq("imports") == 0
    transitions.release(fresh(throttled), state=State.CANCELED)
    sweep_now()
    assert (fresh(own).state, in_rq("imports")) == (State.QUEUED, 1)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("seconds", [1, 59, 61, 400])
def test_a_worker_that_was_killed_counts_neither_as_ours_nor_as_a_stock_one(seconds: int) -> None:
    """As long as RQ has its record, which is for eight minutes."""
    redis = django_rq.get_connection(SLOW)
    worker = worker_on_record("killed", SLOW)
    redis.zadd(f"tenant_slots:workers:{SLOW}", {worker.key: time.time() - seconds})
    sweep_now()
    sweep_now()
    assert not fair_order.listens(SLOW)
    throttled = in_slow(jobs.throttled).enqueue("acme")
    assert fresh(throttled).state == State.WAITING


@pytest.mark.usefixtures("no_workers")
def test_nor_is_anything_kept_of_it_for_longer() -> None:
    redis = django_rq.get_connection(SLOW)
    redis.zadd(f"tenant_slots:workers:{SLOW}", {"rq:worker:killed": time.time() - 61})
    stock = worker_on_record("stock", SLOW, of_ours=False)
    redis.zadd(f"tenant_slots:workers:{SLOW}", {stock.key: time.time() - 61})  # it has the name of one that was ours
    sweep_now()
    assert redis.zcard(f"tenant_slots:workers:{SLOW}") == 0
    assert fair_order.listens(SLOW)


@pytest.mark.usefixtures("no_workers")
def test_control_it_keeps_its_slot_where_no_worker_could_use_it() -> None:
    tenant_queue("acme", max_job=1)
    own = jobs.record.enqueue("acme", "own", "history")
    throttled = in_slow(jobs.throttled).enqueue("acme")
    age(own, admitted_at=60)
    sweep_now()
    assert (fresh(own).state, fresh(throttled).state) == (State.QUEUED, State.WAITING)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("state", ["idle", "busy"])
def test_control_once_a_worker_listens_there_a_job_is_admitted_ahead_of_it(state: str) -> None:
    tenant_queue("acme", max_job=1)
    throttled = in_slow(jobs.throttled).enqueue("acme")
    worker_on_record("stock", SLOW, of_ours=False).set_state(state)
    sweep_now()
    assert (fresh(throttled).state, in_rq(SLOW)) == (State.QUEUED, 1)


@pytest.mark.usefixtures("no_workers")
def test_a_worker_of_ours_that_comes_there_takes_it_at_once() -> None:
    tenant_queue("acme", max_job=1)
    throttled = in_slow(jobs.throttled).enqueue("acme")
    turn, _ = fair_order.take("rq:worker:ours", [SLOW], waits=True)
    assert isinstance(turn, Turn)
    assert (turn.tenant_queue_id, turn.jobs) == (throttled.tenant_queue_id, 1)


@pytest.mark.usefixtures("no_workers")
def test_a_database_that_fails_meanwhile_costs_the_tenant_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> NoReturn:
        raise OperationalError("gone")

    throttled = in_slow(jobs.throttled)
    monkeypatch.setattr(unattended, "giving_way", away)
    job = throttled.enqueue("acme")
    turn = fair_order.next_turn(SLOW, fair_order.new_feeder())
    assert turn is not None
    assert (turn.tenant_queue_id, turn.stays_first) == (job.tenant_queue_id, True)
