"""Time that has not been, as after a clock that was set, is given to nobody and charged to nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tenant_slots import fair_order, held, slots, transitions
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.fair_order import NOTHING_RAN, Freed, Turn
from tests import jobs
from tests.factories import (
    in_rq,
    pretend_idle,
    tenant_queue,
    waiting_job,
)
from tests.fair_order.orders import (
    LIST,
    QUEUE,
    A,
    B,
    C,
    D,
    alone,
    away,
    clock,
    next_one,
    nudges,
    offer,
    order,
    record,
    redis,
    seem_to_run_for_longer,
    served,
    shut,
    sleeps,
)
from tests.order_records import KNOWN, age_sweep, write
from tests.processes import wait_until


def starts(tenant: int) -> None:
    """A worker takes its next job."""
    turn, _ = fair_order.take("rq:worker:one", [QUEUE], waits=False)
    assert isinstance(turn, Turn)
    assert turn.tenant_queue_id == tenant


def test_the_clock_of_the_queue_goes_back_where_time_was_assumed_that_no_job_has_taken() -> None:
    """Their ends could not be told for ten minutes. Whoever came then stood behind all that A has had no time for."""
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    starts(A)
    for _ in range(3):
        fair_order.freed(Freed(A, 1.0, QUEUE))
    fair_order.charge(QUEUE, [])
    offer(B)
    had = Counter(served(100))
    assert abs(had[A] - had[B]) <= 8


@pytest.mark.parametrize("is_swept_first", [True, False])
def test_who_comes_while_nothing_is_known_of_ends_stands_behind_no_time_that_nobody_has_had(
    *, is_swept_first: bool
) -> None:
    """Neither does who comes after one of these, as the first job of a newcomer is no news of the others."""
    offer(A), starts(A), starts(A)
    fair_order.charge(QUEUE, [(A, 2, 0.0)])
    seem_to_run_for_longer(A, 600)
    age_sweep(QUEUE, 600)
    starts(A)
    offer(B), starts(B)
    fair_order.freed(Freed(B, 1.0, QUEUE))
    if is_swept_first:
        fair_order.charge(QUEUE, [(A, 3, 3.0)])
    for _ in range(3):
        fair_order.freed(Freed(A, 1.0, QUEUE))
    if not is_swept_first:
        fair_order.charge(QUEUE, [])
    offer(C)
    had = Counter(served(300))
    assert abs(had[A] - had[B]) <= 30  # two jobs, believed to run for 15 s
    assert abs(had[B] - had[C]) <= 30


def test_a_queue_that_nobody_sweeps_has_a_clock_too() -> None:
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    starts(A)
    offer(B)
    assert record(B).done == pytest.approx(1200, abs=10)


def test_the_clock_of_the_queue_goes_back_with_a_sweep_that_knows_better() -> None:
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    starts(A)
    fair_order.charge(QUEUE, [(A, 3, 3.0)])
    offer(B)
    had = Counter(served(100))
    assert abs(had[A] - had[B]) <= 8


def test_the_clock_of_the_queue_does_not_go_back_for_a_tenant_that_is_behind_it() -> None:
    """It is others that have had so much time."""
    offer(A, B)
    next_one(), next_one()
    fair_order.freed(Freed(B, 600.0, QUEUE))
    fair_order.drop(next_one(), is_full=False)
    assert next_one().tenant_queue_id == B
    fair_order.charge(QUEUE, [(A, 1, 0.0), (B, 1, 0.0)])
    offer(C)
    fair_order.freed(Freed(C, 0.0, QUEUE))
    assert record(C).done >= 600


def test_the_clock_of_the_queue_does_not_go_forward_where_a_job_waits_in_the_window() -> None:
    """Beside four jobs that run for an hour: D has waited all the while, and C comes now."""
    offer(A), starts(A)
    fair_order.charge(QUEUE, [(A, 5, 0.0)])
    offer(D)
    fair_order.charge(QUEUE, [(A, 5, 4 * 3600.0 + 5)])
    fair_order.charge(QUEUE, [(A, 5, 4 * 3600.0)])
    offer(C)
    for seconds in (*[3600.0] * 4, NOTHING_RAN):
        fair_order.freed(Freed(A, seconds, QUEUE))
    had = Counter(served(200))
    assert abs(had[C] - had[D]) <= 4


@pytest.mark.parametrize("knows", [True, pytest.param(False, id="control")])
def test_a_job_that_ends_after_the_database_was_asked_what_runs_is_charged_once(*, knows: bool) -> None:
    """A sweep asks first what is known. Else the clock goes on by time that nobody has had, and who comes has none."""
    offer(A), starts(A)
    fair_order.charge(QUEUE, [(A, 1, 600.0)])
    seen = fair_order.under_way(QUEUE)
    fair_order.freed(Freed(A, 600.0, QUEUE))
    fair_order.charge(QUEUE, [(A, 1, 600.0)], seen=seen if knows else None)
    starts(A)
    offer(B)
    assert record(B).done == pytest.approx(600 if knows else 1200, abs=10)


def ends() -> None:
    fair_order.freed(Freed(A, 600.0, QUEUE))


def is_handed_on() -> None:
    assert fair_order.again(Freed(A, 600.0, QUEUE))


def one_starts() -> None:
    starts(A)


def all_end() -> None:
    ends(), ends()


def is_forgotten() -> None:
    redis().delete(KNOWN)


def nothing() -> None: ...


@pytest.mark.parametrize(
    ("happens", "said", "found"),
    [
        (nothing, (2, 1200.0), (2, 1200)),
        (nothing, (1, 900.0), (1, 900)),
        (ends, (2, 1200.0), (1, 600)),
        (ends, (1, 600.0), (1, 600)),
        (all_end, (2, 1200.0), (0, 0)),
        (all_end, (1, 600.0), (0, 0)),
        (all_end, None, (0, 0)),
        (all_end, (2, 1300.0), (0, 0)),
        (is_handed_on, (2, 1200.0), (2, 600)),
        (is_handed_on, (2, 600.0), (2, 600)),
        (one_starts, (2, 1200.0), (3, 1200)),
        (one_starts, (3, 1200.0), (3, 1200)),
        (one_starts, None, (1, 0)),
        (is_forgotten, (2, 1200.0), (0, 0)),
    ],
)
def test_what_happens_while_the_database_is_asked_what_runs_counts_whether_or_not_it_says_so(
    happens: Callable[[], None], said: tuple[int, float] | None, found: tuple[int, float]
) -> None:
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    fair_order.charge(QUEUE, [(A, 2, 1200.0)])
    seen = fair_order.under_way(QUEUE)
    happens()
    fair_order.charge(QUEUE, [(A, *said)] if said else [], seen=seen)
    now = record(A)
    assert (now.jobs, now.jobs * clock() - now.begun) == (found[0], pytest.approx(found[1], abs=10))


@pytest.mark.parametrize("happens", [ends, is_handed_on, one_starts])
def test_a_count_that_is_wrong_is_set_right_although_something_happens_meanwhile(happens: Callable[[], None]) -> None:
    """Ends that could not be told: these jobs seem to run on for ever."""
    offer(A), starts(A), starts(A)
    before = record(A)
    write(A, QUEUE, before._replace(jobs=50, begun=50 * (clock() - 3600)))
    seen = fair_order.under_way(QUEUE)
    happens()
    fair_order.charge(QUEUE, [(A, 2, 1200.0)], seen=seen)
    now = record(A)
    assert now.jobs in (2, 3)
    assert now.jobs * clock() - now.begun == pytest.approx(1200, abs=10)


def test_what_the_order_has_forgotten_is_charged_although_others_start_meanwhile() -> None:
    seen = fair_order.under_way(QUEUE)
    offer(B), starts(B)
    fair_order.charge(QUEUE, [(A, 1, 600.0)], seen=seen)
    assert (record(A).jobs, record(B).jobs) == (1, 1)


def test_a_cancel_beside_long_jobs_makes_no_credit_of_absence() -> None:
    """Four of A run for an hour, and one in the window is canceled. B has had as much, and D comes back."""
    offer(D), starts(D)
    fair_order.drop(Turn(QUEUE, D, jobs=0, offers=record(D).offers), is_full=False)
    fair_order.freed(Freed(D, 1.0, QUEUE, is_over=True))
    offer(A), starts(A)
    fair_order.charge(QUEUE, [(A, 4, 4 * 3600.0)])
    offer(B), starts(B)
    fair_order.drop(Turn(QUEUE, B, jobs=0, offers=record(B).offers), is_full=False)
    fair_order.freed(Freed(B, 4 * 3600.0, QUEUE, is_over=True))
    away(D, 4 * 3600)
    starts(A)
    fair_order.freed(Freed(A, NOTHING_RAN, QUEUE))
    fair_order.charge(QUEUE, [(A, 4, 4 * 3600.0)])
    offer(B), offer(D)
    for _ in range(4):
        fair_order.freed(Freed(A, 3600.0, QUEUE))
    had = Counter(served(400))
    assert abs(had[D] - had[B]) <= 4


def test_the_clock_of_the_queue_does_not_go_back_for_the_end_of_a_job_that_was_never_counted() -> None:
    """A plain RQ job had no turn. What its tenant has had beside it is what another one runs for."""
    offer(A), starts(A)
    seem_to_run_for_longer(A, 3600)
    fair_order.charge(QUEUE, [(A, 1, 3600.0)])
    starts(A)
    fair_order.charge(QUEUE, [(A, 1, 3600.0)])
    fair_order.freed(Freed(A, 1.0, QUEUE))
    fair_order.charge(QUEUE, [(A, 1, 3600.0)])
    offer(C)
    assert record(C).done == pytest.approx(3600, abs=10)


def test_a_clock_of_redis_that_was_set_back_earns_nobody_what_it_was_away_for() -> None:
    offer(A), starts(A)
    fair_order.drop(Turn(QUEUE, A, jobs=0, offers=record(A).offers), is_full=False)
    fair_order.freed(Freed(A, 1.0, QUEUE, is_over=True))
    away(A, -3600)
    offer(B)
    for _ in range(300):
        starts(B)
        fair_order.freed(Freed(B, 10.0, QUEUE))
    offer(A)
    had = Counter(served(100, {A: 10.0, B: 10.0}))
    assert abs(had[A] - had[B]) <= 4


@pytest.mark.parametrize("seconds", [3600.0, pytest.param(0.0, id="control")])
def test_nobody_stands_behind_time_for_which_only_the_clock_of_the_database_was_put_forward(seconds: float) -> None:
    """A's two jobs have run for ten seconds. B comes then, and C after the end of one of them."""
    offer(A), starts(A), starts(A)
    fair_order.drop(Turn(QUEUE, A, jobs=0, offers=record(A).offers), is_full=True)
    seem_to_run_for_longer(A, 10)
    fair_order.charge(QUEUE, [(A, 2, 2 * (10 + seconds))])
    offer(B)
    for _ in range(2):
        fair_order.freed(Freed(A, 10.0, QUEUE))
    starts(B)
    fair_order.freed(Freed(B, 1.0, QUEUE))
    offer(C)
    had = Counter(served(300))
    assert min(had[A], had[B], had[C]) >= 80


def ends_another() -> None:
    fair_order.freed(Freed(A, 0.3, QUEUE))


def is_taken_and_not_committed() -> None: ...


@pytest.mark.parametrize(
    ("before", "meanwhile", "said"),
    [
        (nothing, one_starts, 3),
        (one_starts, ends_another, 2),
        (one_starts, is_taken_and_not_committed, 2),
        (one_starts, nothing, 3),
    ],
)
def test_nor_is_any_of_it_let_in_where_a_job_starts_or_ends_as_a_sweep_asks(
    before: Callable[[], None], meanwhile: Callable[[], None], said: int
) -> None:
    """Two jobs have run for ten seconds when the clock of the database is put forward by an hour."""
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 10)
    fair_order.charge(QUEUE, [(A, 2, 20.0)])
    before()
    seen = fair_order.under_way(QUEUE)
    meanwhile()
    fair_order.charge(QUEUE, [(A, said, 2 * 3610.0)], seen=seen)
    now = record(A)
    assert now.jobs * clock() - now.begun <= 40


def test_a_job_that_was_admitted_and_has_not_run_takes_nothing_of_what_others_have_run_for() -> None:
    offer(A), starts(A), starts(A)
    seem_to_run_for_longer(A, 600)
    starts(A)
    fair_order.freed(Freed(A, NOTHING_RAN, QUEUE))
    now = record(A)
    assert now.jobs * clock() - now.begun == pytest.approx(1200, abs=10)


@alone
@pytest.mark.parametrize("share", [2, 10, pytest.param(1, id="control")])
def test_who_waits_beside_long_jobs_when_redis_forgets_all_has_its_part(share: int) -> None:
    """The first sweep charges them before anybody has said what share their tenant has. C comes later."""
    for _ in range(2):
        seen = fair_order.under_way(QUEUE)
        fair_order.charge(QUEUE, [(A, 4, 4 * 3600.0)], seen=seen, shares={A: share})
        offer(A, share=share), offer(B, share=1)
    offer(C, share=1)
    for _ in range(4):
        fair_order.freed(Freed(A, 3600.0, QUEUE))
    had = Counter(served(1000))
    assert had[B] == pytest.approx(1000 / (share + 2), abs=4)
    assert had[C] == pytest.approx(1000 / (share + 2), abs=4)


@alone
@pytest.mark.parametrize(("seconds", "workers"), [(3600, 0), pytest.param(0, 1, id="control")])
def test_a_worker_that_has_died_is_not_there_for_as_long_as_the_clock_of_redis_was_set_back(
    seconds: int, workers: int
) -> None:
    """Each that seems to be idle has a place in the window, for a job that nobody takes."""
    sleeps("one")
    for what in ("idle", "workers"):
        (worker,) = redis().zrange(f"tenant_slots:{what}:{QUEUE}", 0, -1)
        redis().zincrby(f"tenant_slots:{what}:{QUEUE}", seconds, worker)
    fair_order.charge(QUEUE, [])
    assert fair_order.listens(QUEUE) == bool(workers)
    assert fair_order.excess(QUEUE)[1] == workers


@pytest.mark.parametrize("has_work", [True, False])
def test_a_tenant_that_was_changed_with_many_others_has_a_turn_with_its_next_job(*, has_work: bool) -> None:
    """Those that have nothing to run by then are not offered."""
    shut(A)
    transitions.tell_shares(QUEUE, [(A, 1)])
    transitions.offer_again(QUEUE, [(A, 1)] if has_work else [])
    offer(A)
    assert order() == [A]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_look_at_keys_that_are_at_their_cap_is_charged_to_their_tenant() -> None:
    """Each enqueue may be for another key, and so leads to one."""
    row = tenant_queue("acme", max_job=5)
    row.set_max_job_per_key(1)
    pretend_idle(1)
    jobs.fail.using(key="a").enqueue("acme")
    redis().delete(LIST)
    before = record(row.pk)
    jobs.fail.using(key="a").enqueue("acme")
    assert record(row.pk).done > before.done


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_look_that_finds_nothing_is_charged_to_whoever_was_offered() -> None:
    """It comes in front of all, as one that had nothing to run, each time that it enqueues and cancels."""
    row = tenant_queue("acme", max_job=5)
    pretend_idle(1)
    fair_order.offer(QUEUE, [(row.pk, 1)])
    before = record(row.pk)
    transitions.feed(QUEUE)
    assert record(row.pk).done > before.done


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_nobody_is_charged_for_the_look_that_finds_a_job() -> None:
    row = tenant_queue("acme", max_job=5)
    pretend_idle(1)
    before = fair_order.offer(QUEUE, [(row.pk, 1)]) and record(row.pk)
    waiting_job(row)
    transitions.feed(QUEUE)
    assert in_rq() == 1
    assert record(row.pk).done == before.done


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_who_feeds_does_not_wait_for_those_that_are_held_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes back while the others are looked at. What is left is for a worker that waits."""
    sleeps("one"), offer(*range(100, 110))
    looks: list[object] = []

    def finds_it_held(*turn: Any) -> Any:
        looks.append(turn)
        assert len(looks) < 500, "it never ends"
        raise TenantQueueLocked(tenant_queue="acme on imports", seconds=0.2)

    monkeypatch.setattr(slots, "admit", finds_it_held)
    monkeypatch.setattr(held, "note", lambda *look: 0.0)
    monkeypatch.setattr(transitions, "SECONDS_IN_VAIN", 0.1)
    assert transitions.feed(QUEUE) == []
    assert looks
    assert nudges() == 1


@alone
def test_of_many_that_may_start_jobs_again_some_come_with_each_turn() -> None:
    """Redis serves nobody else meanwhile. None of them waits for longer than until it is its turn."""
    tenants = range(1, 2001)
    offer(*tenants)
    redis().delete(f"tenant_slots:order:{QUEUE}")
    redis().zadd(f"tenant_slots:wake:{QUEUE}", dict.fromkeys(tenants, clock() - 1))
    offer(A), fair_order.drop(next_one(), is_full=True, wakes_in=0.0)
    came = 0
    for _ in tenants:
        turn = next_one()
        fair_order.drop(turn, 1, is_full=True, is_shut=True)
        still = redis().zcard(f"tenant_slots:wake:{QUEUE}")
        assert len(tenants) - still - came <= 200
        came = len(tenants) - still
    assert came == len(tenants)
    assert redis().zcard(f"tenant_slots:wake:{QUEUE}") == 0
    assert order() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("no_workers")
def test_a_tenant_queue_that_somebody_holds_is_charged_for_the_wait_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many enqueues for it would take all workers else."""
    row = tenant_queue("acme")
    pretend_idle(1)

    def held(*turn: Any) -> Any:
        raise TenantQueueLocked(tenant_queue="acme on imports", seconds=0.2)

    with monkeypatch.context() as patched:
        patched.setattr(slots, "admit", held)
        jobs.fail.enqueue("acme")
        before = record(row.pk)
        jobs.fail.enqueue("acme")
    assert record(row.pk).done > before.done
    wait_until(lambda: transitions.feed(QUEUE), timeout=10)
