"""From one job to the next: in one transaction where the tenant is next again, without losing either job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import django_rq
import pytest
from django.db import DataError, OperationalError, connection
from redis.exceptions import ConnectionError as RedisConnectionError

from tenant_slots import fair_order, moves, parting, rates, slots, transitions
from tenant_slots.db import clock
from tenant_slots.db.compiled import Asked
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, supervisor
from tenant_slots.workers.horses import Horse
from tests import jobs
from tests.factories import (
    another_process,
    counters_match,
    fresh,
    pretend_idle,
    redis_forgets,
    tenant_queue,
    waiting_job,
)
from tests.history import History
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker] | type[TenantSimpleWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those in which jobs of tenants began and ended, in their order. Nothing else is due meanwhile."""
    done: list[str] = []

    def note(name: str) -> None:
        real = getattr(slots, name)

        def noted(first: Any, *arguments: Any, **values: Any) -> Any:
            if getattr(first, "pk", first):  # to warm up, a worker ends a job that there is not
                done.append(name)
            return real(first, *arguments, **values)

        monkeypatch.setattr(slots, name, noted)

    for name in ("admit_and_start", "release", "release_and_start"):
        note(name)
    monkeypatch.setattr(TenantPreforkWorker, "has_nothing_else_to_do", TenantPreforkWorker.goes_on)
    monkeypatch.setattr(TenantWorker, "has_nothing_else_to_do", TenantWorker.goes_on)
    return done


def enqueue(history: History, seconds: float = 0.0, **numbers: int) -> None:
    """So many jobs of each tenant, of which none is admitted before a worker asks."""
    redis_forgets()
    for tenant, number in numbers.items():
        jobs.record.enqueue_many([((tenant, f"{tenant}-{nth}", history.path, seconds), {}) for nth in range(number)])


def run(worker_class: Worker = TenantPreforkWorker, *queues: str) -> None:
    names = queues or ("imports",)
    worker = worker_class([django_rq.get_queue(name) for name in names], connection=django_rq.get_connection("imports"))
    worker.work(burst=True, logging_level="ERROR")


def states() -> set[str]:
    return set(TenantJob.objects.values_list("state", flat=True))


@CLASSES
def test_the_jobs_of_one_tenant_go_from_one_to_the_next_in_one_transaction(
    worker_class: Worker, history: History, transactions: list[str]
) -> None:
    tenant_queue(max_job=1)
    enqueue(history, acme=4)
    run(worker_class)
    assert history.started() == ["acme-0", "acme-1", "acme-2", "acme-3"]
    assert transactions == ["admit_and_start", *["release_and_start"] * 3, "release"]
    assert states() == {State.FINISHED}
    assert counters_match()


def test_control_a_worker_that_has_other_things_to_do_ends_a_job_by_itself(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TenantPreforkWorker, "has_nothing_else_to_do", lambda worker: False)
    tenant_queue(max_job=1)
    enqueue(history, acme=2)
    run()
    assert history.started() == ["acme-0", "acme-1"]
    assert "release_and_start" not in transactions


@pytest.mark.parametrize("sends", ["at once", "for a while"])
def test_so_they_do_where_a_work_horse_that_parts_has_sent_in_a_moment_what_it_had_to_send(
    sends: str, history: History, transactions: list[str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As traces. Where a collector keeps it for longer, the end is recorded meanwhile, and no slot is kept."""
    monkeypatch.setattr(supervisor, "SECONDS_TO_SEND", 30 if sends == "at once" else 0)
    settings.TENANT_SLOTS = {"JOB_CONTEXT": f"{__name__}.sending_{sends.replace(' ', '_')}"}
    tenant_queue(max_job=1)
    enqueue(history, acme=3)
    run(TenantWorker)
    assert history.started() == ["acme-0", "acme-1", "acme-2"]
    handed_on = ["admit_and_start", *["release_and_start"] * 2, "release"]
    assert transactions == (handed_on if sends == "at once" else ["admit_and_start", "release"] * 3)
    assert states() == {State.FINISHED}
    assert counters_match()


@contextmanager
def sending_at_once(job: TenantJob) -> Iterator[None]:
    parting.before_parting(lambda: None)
    yield


@contextmanager
def sending_for_a_while(job: TenantJob) -> Iterator[None]:
    """Until its end is recorded."""
    parting.before_parting(lambda: wait_until(lambda: fresh(job).has_ended))
    yield


@pytest.mark.parametrize("limit", [1, 5])
def test_tenants_have_their_turns_in_their_order_all_the_same(
    limit: int, history: History, transactions: list[str]
) -> None:
    for tenant in ("acme", "umbrella"):
        tenant_queue(tenant, max_job=limit)
    enqueue(history, 0.2, acme=4, umbrella=4)  # long against what else takes time here, which is charged too
    run()
    ahead = list(accumulate(1 if name.startswith("acme") else -1 for name in history.started()))
    assert max(map(abs, ahead)) <= 2
    assert history.started("acme") == ["acme-0", "acme-1", "acme-2", "acme-3"]
    assert states() == {State.FINISHED}
    assert counters_match()


def test_a_slot_that_is_handed_on_leaves_the_counter_unwritten(history: History, transactions: list[str]) -> None:
    row = tenant_queue(max_job=3)
    enqueue(history, acme=3)
    writes: list[int] = []
    counting = moves.counting

    def noted(tenant_queue: TenantQueue, freed: int, taken: int) -> list[Asked]:
        writes.append(taken - freed)
        return counting(tenant_queue, freed, taken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "counting", noted)
        run()
    by_itself = [] if connection.vendor == "postgresql" else [-1]
    assert [change for change in writes if change] == [1, *by_itself], "the last release is one statement on PostgreSQL"
    assert TenantQueue.objects.get(pk=row.pk).current_job == 0


def test_a_limit_that_was_lowered_meanwhile_holds(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue(max_job=2)
    enqueue(history, acme=3)
    real = slots.release_and_start

    def lowered(*arguments: Any, **values: Any) -> Any:
        TenantQueue.objects.get(pk=row.pk).set_limit(0, by="staff")
        return real(*arguments, **values)

    monkeypatch.setattr(slots, "release_and_start", lowered)
    run()
    assert history.started() == ["acme-0"]
    assert sorted(TenantJob.objects.values_list("state", flat=True)) == ["finished", "waiting", "waiting"]
    assert counters_match()


@CLASSES
@pytest.mark.parametrize("is_committed", [True, False])
def test_an_answer_that_is_lost_costs_neither_the_job_that_ended_nor_the_next_one(
    is_committed: bool, worker_class: Worker, history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_queue(max_job=1)
    enqueue(history, acme=4)
    real, calls = slots.release_and_start, []

    def lost(*arguments: Any, **values: Any) -> Any:
        calls.append(1)
        if len(calls) != 2:
            return real(*arguments, **values)
        if is_committed:
            real(*arguments, **values)
        raise OperationalError("the connection was closed")

    monkeypatch.setattr(slots, "release_and_start", lost)
    run(worker_class)
    assert len(calls) >= 2
    run(worker_class)  # a worker that is to end with the last job does not wait for what it has put back
    assert history.started() == ["acme-0", "acme-1", "acme-2", "acme-3"]
    assert states() == {State.FINISHED}
    assert TenantJob.objects.filter(crashes__gt=0).count() == 0
    assert counters_match()


def test_a_result_that_the_database_refuses_costs_the_result_alone(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_queue(max_job=1)
    enqueue(history, acme=3)
    real = slots.release_and_start

    def refused(*arguments: Any, **values: Any) -> Any:
        raise DataError("no such value")

    monkeypatch.setattr(slots, "release_and_start", refused)
    run()
    monkeypatch.setattr(slots, "release_and_start", real)
    assert history.started() == ["acme-0", "acme-1", "acme-2"]
    assert states() == {State.FINISHED}
    assert counters_match()


@CLASSES
def test_a_worker_that_is_to_stop_puts_back_what_it_has_not_begun(
    worker_class: Worker, history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_queue(max_job=1)
    enqueue(history, acme=3)
    real = worker_class.hand_on

    def stopped(worker: Any, *arguments: Any) -> Any:
        news = real(worker, *arguments)
        assert worker.following is not None, "the control: the next job was started"
        worker._stop_requested = True
        return news

    monkeypatch.setattr(worker_class, "hand_on", stopped)
    run(worker_class)
    assert history.started() == ["acme-0"]
    assert sorted(TenantJob.objects.values_list("state", flat=True)) == ["finished", "waiting", "waiting"]
    assert TenantJob.objects.filter(crashes__gt=0).count() == 0
    assert counters_match()


def test_a_job_that_was_started_waits_for_nothing_but_its_work_horse(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a sweep that is due by then, nor as long as the workers are suspended."""
    tenant_queue(max_job=1)
    enqueue(history, acme=2)
    real, waits = TenantPreforkWorker.hand_on, []

    def then_due(worker: Any, *arguments: Any) -> Any:
        news = real(worker, *arguments)
        if worker.following is not None:
            worker.sweeper._due = worker._next_suspension_check = 0.0
            waits.append((worker.should_run_maintenance_tasks, worker.is_suspension_check_due))
            worker.following, following = None, worker.following
            waits.append((worker.should_run_maintenance_tasks, worker.is_suspension_check_due))
            worker.following = following
        return news

    monkeypatch.setattr(TenantPreforkWorker, "has_nothing_else_to_do", TenantPreforkWorker.goes_on)
    monkeypatch.setattr(TenantPreforkWorker, "hand_on", then_due)
    run()
    assert waits == [(False, False), (True, True)], "the second is the control"
    assert history.started() == ["acme-0", "acme-1"]


def test_the_next_job_may_be_one_that_cannot_be_read(history: History, transactions: list[str]) -> None:
    tenant_queue(max_job=1)
    enqueue(history, acme=3)
    second = TenantJob.objects.order_by("pk")[1]
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenant_slots_tenantjob SET options = '3' WHERE id = %s", [second.pk])
    run()
    assert history.started() == ["acme-0", "acme-2"]
    assert list(TenantJob.objects.order_by("pk").values_list("state", flat=True)) == ["finished", "failed", "finished"]
    assert counters_match()


@CLASSES
def test_a_job_that_is_to_run_again_is_put_back_first(
    worker_class: Worker, history: History, transactions: list[str]
) -> None:
    """A rest of the tenant begins, which a next job must not overtake."""
    row = tenant_queue(max_job=1)
    redis_forgets()
    busy = jobs.ask_partner.enqueue("acme", history.path, seconds=3600)
    jobs.record.enqueue("acme", "next", history.path)
    run(worker_class)
    assert (fresh(busy).state, busy.attempt) == (State.WAITING, 1)
    assert TenantQueue.objects.get(pk=row.pk).rests_until is not None
    assert "release_and_start" not in transactions
    assert counters_match()


def test_plain_rq_jobs_have_their_turns_between_those_of_a_tenant(history: History, transactions: list[str]) -> None:
    tenant_queue(max_job=1)
    enqueue(history, acme=3)
    for nth in range(2):
        django_rq.get_queue("imports").enqueue(jobs.note, history.path, "start", "plain", f"plain-{nth}")
    run()
    started = history.started()
    assert started.index("plain-0") < started.index("acme-2")
    assert sorted(started) == ["acme-0", "acme-1", "acme-2", "plain-0", "plain-1"]


def test_what_was_freed_is_told_when_redis_comes_back(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slot is told when the worker asks for its next turn, and that may fail."""
    for tenant in ("acme", "umbrella"):
        tenant_queue(tenant, max_job=1)
    enqueue(history, acme=2, umbrella=2)
    real, tried = fair_order.take, []

    def away(*arguments: Any, slot: Any = None, **values: Any) -> Any:
        if slot is not None and not tried:
            tried.append(slot)
            raise RedisConnectionError("away")
        return real(*arguments, slot=slot, **values)

    monkeypatch.setattr(fair_order, "take", away)
    run()
    assert tried
    assert len(history.started()) == 4
    assert counters_match()


def tokens(row: TenantQueue) -> int:
    bucket = rates.bucket(TenantQueue.objects.get(pk=row.pk), clock.now())
    assert bucket is not None
    return bucket.tokens


RATE = {"rate_number": 1, "rate_per": timedelta(days=1), "rate_burst": 10}


def test_a_next_job_that_is_not_begun_takes_no_token_of_its_tenants_rate(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue(max_job=1, **RATE)
    enqueue(history, acme=3)
    real = TenantPreforkWorker.hand_on

    def stopped(worker: Any, *arguments: Any) -> Any:
        news = real(worker, *arguments)
        assert worker.following is not None, "the control: the next job was started"
        assert tokens(row) == 8, "the control: and took a token"
        worker._stop_requested = True
        return news

    monkeypatch.setattr(TenantPreforkWorker, "hand_on", stopped)
    run()
    assert history.started() == ["acme-0"]
    assert tokens(row) == 9


def test_a_job_for_which_no_work_horse_can_be_forked_is_for_others_at_once(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tenant has its slot and its token back while this worker takes no other job, and an idle one gets the job."""
    row = tenant_queue(max_job=1, **RATE)
    enqueue(history, acme=2)
    horses, seen = [], []

    def horse(*arguments: Any) -> Any:
        horses.append(1)
        if len(horses) == 2:
            raise OSError("Resource temporarily unavailable")
        return Horse(*arguments)

    def pauses(seconds: float) -> None:
        seen.append((len(django_rq.get_queue("imports")), tokens(row)))

    monkeypatch.setattr(supervisor, "Horse", horse)
    monkeypatch.setattr(supervisor, "time", SimpleNamespace(sleep=pauses, monotonic=time.monotonic))
    real = fair_order.again

    def others_are_idle(*arguments: Any) -> Any:
        found = real(*arguments)
        pretend_idle(1)
        return found

    monkeypatch.setattr(fair_order, "again", others_are_idle)
    run(TenantWorker)
    assert seen == [(1, 8)], "one token for the job that ran, one for the other one, which waits for the idle worker"
    assert history.started() == ["acme-0", "acme-1"]
    assert states() == {State.FINISHED}
    assert counters_match()


@CLASSES
@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("where", ["release_and_start", "release"])
def test_a_worker_that_is_to_end_at_once_while_it_records_an_end_records_it_all_the_same(
    where: str,
    is_committed: bool,
    worker_class: Worker,
    history: History,
    transactions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RQ raises SystemExit wherever the worker is when it is told so for the second time."""
    tenant_queue(max_job=1)
    enqueue(history, acme=3)
    if where == "release":
        monkeypatch.setattr(worker_class, "has_nothing_else_to_do", lambda worker: False)
    real, calls = getattr(slots, where), []

    def interrupted(job: TenantJob, *arguments: Any, **values: Any) -> Any:
        if not job.pk or calls:  # to warm up, a worker ends a job that there is not
            return real(job, *arguments, **values)
        calls.append(job.pk)
        if is_committed:
            real(job, *arguments, **values)
        raise SystemExit

    monkeypatch.setattr(slots, where, interrupted)
    with pytest.raises(SystemExit):
        run(worker_class)
    assert list(TenantJob.objects.order_by("pk").values_list("state", "crashes", "interruptions")) == [
        (State.FINISHED, 0, 0),
        (State.WAITING, 0, 0),
        (State.WAITING, 0, 0),
    ]
    assert history.started() == ["acme-0"]
    assert counters_match()


@pytest.mark.parametrize("when", ["before a sweep", "with its next turn"])
def test_a_database_that_goes_away_while_others_are_fed_ends_no_worker(
    when: str, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's slot is free, a worker waits for its next job, and the database is away when that is admitted."""
    tenant_queue(max_job=1)
    enqueue(history, acme=2)
    tried: list[int] = []
    take, freed = fair_order.take, fair_order.freed

    def away(*arguments: Any, **values: Any) -> Any:
        tried.append(1)
        raise OperationalError("the server closed the connection")

    def with_room(*arguments: Any, **values: Any) -> Any:
        turn, rooms = take(*arguments, **values)
        return turn, [*rooms, "imports_slow"]

    def room(*arguments: Any, **values: Any) -> list[str]:
        return [*freed(*arguments, **values), "imports"]

    monkeypatch.setattr(transitions, "feed", away)
    if when == "before a sweep":
        monkeypatch.setattr(TenantPreforkWorker, "has_nothing_else_to_do", lambda worker: False)
        monkeypatch.setattr(TenantPreforkWorker, "should_run_maintenance_tasks", True)
        monkeypatch.setattr(TenantPreforkWorker, "free", lambda worker, slot: setattr(worker, "_slot", slot))
        monkeypatch.setattr(fair_order, "freed", room)
    else:
        monkeypatch.setattr(fair_order, "take", with_room)
    run()
    assert tried
    assert history.started() == ["acme-0", "acme-1"]
    assert counters_match()


LANE = "imports_bulk"


def look_in_lane(row: TenantQueue, *, waits: bool) -> Callable[[], None]:
    """A worker of another RQ queue finds a key at its cap there. Returns how it tells the order of tenants so."""
    fair_order.offer(LANE, [(row.pk, 1)])
    turn, _ = fair_order.take("elsewhere", [LANE], waits=False)
    assert isinstance(turn, fair_order.Turn)
    seen = slots.admit_and_start(row.pk, LANE, another_process(), lambda job: None)
    assert (seen.started, seen.is_full, seen.is_shut) == (None, True, False)

    def tell() -> None:
        with transitions.in_turn(turn) as came_of:
            came_of(seen)
        if waits:
            assert fair_order.take("elsewhere", [LANE], waits=True)[0] is None

    return tell


def hand_on_beside_a_look(
    history: History, monkeypatch: pytest.MonkeyPatch, *keys: str, tells_first: bool = True, waits: bool = False
) -> tuple[TenantJob, bool]:
    """A slot goes between two jobs with these keys, after a look at one in another RQ queue that has the first key.

    Returns that one as it is then, and whether its tenant has a turn there.
    """
    row = tenant_queue(max_job=2, max_job_per_key=1)
    redis_forgets()
    for name, key in zip(("first", "second"), keys, strict=True):
        jobs.record.using(key=key).enqueue("acme", name, history.path)
    again, hand_on, looks, found = fair_order.again, TenantPreforkWorker.hand_on, [], []

    def then_looked_at(*arguments: Any) -> Any:
        turn = again(*arguments)
        if not looks:
            looks.extend([waiting_job(row, key=keys[0], rq_queue=LANE), look_in_lane(row, waits=waits)])
            if tells_first:
                looks[1]()
        return turn

    def then_told(worker: Any, *arguments: Any) -> Any:
        news = hand_on(worker, *arguments)
        if not found:
            assert worker.following is not None, "the control: the slot was handed on"
            if not tells_first:
                looks[1]()
            found.append((fresh(looks[0]), bool(list(fair_order.known(LANE, [row.pk])))))
        return news

    monkeypatch.setattr(fair_order, "again", then_looked_at)
    monkeypatch.setattr(TenantPreforkWorker, "hand_on", then_told)
    run()
    assert history.started() == ["first", "second"]
    assert counters_match()
    return found[0]


@pytest.mark.parametrize("tells_first", [True, False])
def test_a_key_that_gets_free_when_a_slot_is_handed_on_is_offered_to_other_queues(
    *, tells_first: bool, history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looked there just before has seen the key at its cap, and says so before the hand-over or after it."""
    found = hand_on_beside_a_look(history, monkeypatch, "ann", "bob", tells_first=tells_first)
    assert found[1], "its tenant has no turn there, beside a free slot"


def test_a_job_with_that_key_is_admitted_for_a_worker_that_waits_there(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hand_on_beside_a_look(history, monkeypatch, "ann", "bob", waits=True)
    assert found[0].state == State.QUEUED


def test_a_slot_that_goes_to_a_job_with_the_same_key_leads_to_no_look_elsewhere(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hand_on_beside_a_look(history, monkeypatch, "ann", "ann")[1]


def test_control_a_key_that_nobody_tells_to_be_free_is_seen_to_wait(
    history: History, transactions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "free_key", lambda slot: [])
    job, has_turn = hand_on_beside_a_look(history, monkeypatch, "ann", "bob", waits=True)
    assert (job.state, has_turn) == (State.WAITING, False)


@pytest.mark.parametrize(("values", "keys"), [({}, ("ann", "bob")), ({"max_job_per_key": 1}, ("", ""))])
def test_order_is_asked_nothing_more_where_no_key_gets_free(
    values: dict[str, int],
    keys: tuple[str, str],
    history: History,
    transactions: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenant_queue(max_job=2, **values)
    redis_forgets()
    for key in keys:
        jobs.record.using(key=key).enqueue("acme", "job", history.path)
    told: list[object] = []
    monkeypatch.setattr(transitions, "free_key", told.append)
    run()
    assert "release_and_start" in transactions
    assert told == []
