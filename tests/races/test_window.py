"""However many processes feed RQ's list at the same moment, no more is admitted ahead than its window has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier, Lock, Thread, get_ident
from typing import Any

import django_rq
import pytest
from django.db import OperationalError, connection, connections
from rq.exceptions import StopRequested

from tenant_slots import fair_order, held, signals, slots, transitions
from tenant_slots.dispatch import NUDGE
from tenant_slots.exceptions import UnknownQueue
from tenant_slots.fair_order import Turn
from tenant_slots.models import TenantJob, TenantQueue
from tests import jobs
from tests.factories import fresh, in_rq, pretend_idle, tenant_queue, waiting_job, worker_on_record
from tests.history import History
from tests.order_records import forget_given
from tests.processes import Workers, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]

QUEUE = "imports"
CALLERS = 12


def unkept_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """For controls: the turns that are given out count only once their jobs stand in RQ's list."""
    real, one_by_one = fair_order.next_turn, Lock()

    def next_turn(rq_queue: str, feeder: str) -> Turn | None:
        with one_by_one:
            turn = real(rq_queue, feeder)
            forget_given(rq_queue)
            return turn

    monkeypatch.setattr(fair_order, "next_turn", next_turn)


@contextmanager
def all_asking_before_anybody_pushes(monkeypatch: pytest.MonkeyPatch, callers: int = CALLERS) -> Iterator[None]:
    """So many threads have found room, and have asked whose turn it is, before one of them goes on."""
    offer, next_turn, met = fair_order.offer, fair_order.next_turn, Meetings(callers)

    def offer_together(*arguments: Any) -> bool:
        room = offer(*arguments)
        met.once("offered")
        return room

    def ask_together(*arguments: Any) -> Turn | None:
        turn = next_turn(*arguments)
        met.once("asked")
        return turn

    with monkeypatch.context() as patched:
        patched.setattr(fair_order, "offer", offer_together)
        patched.setattr(fair_order, "next_turn", ask_together)
        yield


class Meetings:
    """Each thread waits for all others, the first time that it comes by."""

    def __init__(self, threads: int) -> None:
        self._barriers = {name: Barrier(threads, timeout=20) for name in ("offered", "asked")}
        self._been: set[tuple[str, int]] = set()

    def once(self, name: str) -> None:
        here = name, get_ident()
        if here not in self._been:
            self._been.add(here)
            self._barriers[name].wait()


def at_once(action: Callable[[int], object], callers: int = CALLERS) -> None:
    def run(number: int) -> None:
        try:
            action(number)
        finally:
            connections.close_all()

    threads = [Thread(target=run, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def enqueued_by_a_whale(monkeypatch: pytest.MonkeyPatch, path: str = "", seconds: float = 0.0) -> None:
    tenant_queue("whale", max_job=50)
    monkeypatch.setattr(held, "LONGEST_LOOK", 20)  # they all want its row at once, on however slow a machine
    with all_asking_before_anybody_pushes(monkeypatch):
        at_once(lambda number: jobs.record.enqueue("whale", f"whale-{number}", path, seconds))


def one_busy_worker_of_rq() -> None:
    worker_on_record("stock", of_ours=False).set_state("busy")


def one_idle_worker_of_ours() -> None:
    pretend_idle(1)


def nobody() -> None:
    """One job is ready for whoever comes."""


ROOM_FOR_ONE = pytest.mark.parametrize("listens", [one_busy_worker_of_rq, one_idle_worker_of_ours, nobody])


@pytest.mark.usefixtures("no_workers")
def test_receivers_are_called_once_nobody_waits_for_the_feeder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who found no room because of its turn has left a job to it, and a receiver may take its time."""
    pretend_idle(2)
    waiting_job(tenant_queue())
    steps: list[str] = []
    real = fair_order.next_turn

    def next_turn(*arguments: Any) -> Turn | None:
        steps.append("asks")
        return real(*arguments)

    def hear(**_: Any) -> None:
        steps.append("tells")

    monkeypatch.setattr(fair_order, "next_turn", next_turn)
    signals.jobs_admitted.connect(hear)
    try:
        offer_to_all()
        transitions.feed(QUEUE)
    finally:
        signals.jobs_admitted.disconnect(hear)
    assert steps == ["asks", "asks", "tells"]


@pytest.mark.usefixtures("no_workers")
def test_a_feeder_that_is_interrupted_has_a_worker_look(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_idle(1)
    waiting_job(tenant_queue())
    offer_to_all()

    def interrupted(*_: Any) -> None:
        raise StopRequested

    monkeypatch.setattr(slots, "admit", interrupted)
    with pytest.raises(StopRequested):
        transitions.feed(QUEUE)
    assert django_rq.get_queue(QUEUE).job_ids == [NUDGE]


@pytest.mark.usefixtures("no_workers")
def test_a_queue_that_cannot_be_fed_keeps_none_from_being_fed() -> None:
    """As one that the settings have no more."""
    pretend_idle(1)
    job = waiting_job(tenant_queue())
    offer_to_all()
    with pytest.raises(UnknownQueue):
        transitions.feed("given_up")
    assert transitions.feed(QUEUE) == [job]


def offer_to_all() -> None:
    fair_order.offer(QUEUE, [(pk, 0) for pk in TenantQueue.objects.values_list("pk", flat=True)])


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(("feeder", "is_next"), [("", True), pytest.param("somebody", False, id="control")])
def test_who_feeds_a_synchronous_queue_keeps_no_place_in_its_window(feeder: str, is_next: bool) -> None:
    """The job runs while it is pushed: for as long nobody else's would."""
    pretend_idle(1)
    for tenant in ("acme", "umbrella"):
        waiting_job(tenant_queue(tenant))
    offer_to_all()
    assert fair_order.next_turn(QUEUE, feeder)
    assert bool(fair_order.next_turn(QUEUE, "another1")) is is_next


@ROOM_FOR_ONE
@pytest.mark.usefixtures("no_workers")
def test_of_many_that_ask_together_as_many_admit_a_job_as_there_is_room_for(
    listens: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    listens()
    enqueued_by_a_whale(monkeypatch)
    assert in_rq() == 1
    assert TenantJob.objects.waiting().count() == CALLERS - 1, "they have kept their slots free"


@ROOM_FOR_ONE
@pytest.mark.usefixtures("no_workers")
def test_control_without_places_for_turns_each_of_them_admits_one(
    listens: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    listens()
    unkept_places(monkeypatch)
    enqueued_by_a_whale(monkeypatch)
    assert in_rq() == CALLERS


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("tenants", [1, CALLERS])
def test_where_as_many_workers_are_idle_each_of_them_gets_a_job(tenants: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who found no room has left its job to whoever holds the place: all are admitted when the last caller returns."""
    pretend_idle(CALLERS)
    for number in range(tenants):
        tenant_queue(f"tenant {number}", max_job=50)
    with all_asking_before_anybody_pushes(monkeypatch):
        at_once(lambda number: jobs.record.enqueue(f"tenant {number % tenants}", str(number), ""))
    assert in_rq() == CALLERS


@pytest.mark.usefixtures("no_workers")
def test_who_found_no_room_is_fed_by_whoever_has_the_place_and_nothing_to_admit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tenant whose turn it was has nothing to run: the other one's job is not left to the sweep."""
    empty, other = tenant_queue("empty"), tenant_queue("other")
    fair_order.offer(QUEUE, [(empty.pk, 0)])
    admit, others = slots.admit, []

    def others_come_first(*arguments: Any) -> Any:
        if not others:
            others.append(waiting_job(other))
            assert transitions.offer(other.pk, QUEUE) == [], "there is no room now"
        return admit(*arguments)

    def offered_by_another_process(*arguments: Any) -> Any:
        token = transitions._feeding.set(frozenset())
        try:
            return others_come_first(*arguments)
        finally:
            transitions._feeding.reset(token)

    monkeypatch.setattr(slots, "admit", offered_by_another_process)
    assert transitions.feed(QUEUE) == others
    assert in_rq() == 1


@pytest.mark.usefixtures("no_workers")
def test_where_the_database_fails_whoever_has_the_place_a_worker_that_waits_is_told_to_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend_idle(1)
    job = waiting_job(tenant_queue())

    def gone(*_: Any) -> Any:
        raise OperationalError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(slots, "admit", gone)
        with pytest.raises(OperationalError):
            transitions.offer(job.tenant_queue_id, QUEUE)
    assert django_rq.get_connection(QUEUE).lrange(f"rq:queue:{QUEUE}", 0, -1) == [NUDGE.encode()]
    assert transitions.feed(QUEUE) == [fresh(job)], "and its place is free at once"


def test_a_newcomer_starts_next_whoever_else_enqueues_many_at_once(
    workers: Workers, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = before_a_newcomer(workers, history, monkeypatch)
    assert started <= 2, "the one that runs when it comes, and one that the idle worker's place was given to meanwhile"


def test_control_without_places_for_turns_it_waits_for_each_of_them(
    workers: Workers, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    unkept_places(monkeypatch)
    assert before_a_newcomer(workers, history, monkeypatch) >= CALLERS


def before_a_newcomer(workers: Workers, history: History, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of a whale's jobs start before that of a tenant that comes when they have been enqueued."""
    workers.start(1, worker_class="tenant_slots.workers.TenantPreforkWorker")
    connection = django_rq.get_connection(QUEUE)
    wait_until(lambda: connection.zcard(f"tenant_slots:idle:{QUEUE}"))
    enqueued_by_a_whale(monkeypatch, history.path, 0.3)
    jobs.record.enqueue("newcomer", "newcomer", history.path)
    wait_until(lambda: "newcomer" in history.started())
    return history.started().index("newcomer")
