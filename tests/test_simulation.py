"""What the simulation of fair order shows, with the orders that do not have it as controls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from benchmarks.report import percentile
from benchmarks.simulated import scenarios
from benchmarks.simulated.orders import Fair, Fifo, RoundRobin, Textbook
from benchmarks.simulated.pool import Job, Order, Pool, Tenant
from benchmarks.simulated.scenarios import NO_LIMIT, TRICKS, Trick

WORKERS = 4


def pool(order: Order | None = None) -> Pool:
    return Pool(WORKERS, order or Fair(WORKERS))


def textbook() -> Pool:
    return pool(Textbook(WORKERS))


def p95_beside_a_whale(served: Pool, limit: int) -> float:
    return percentile(scenarios.whale(served, limit), 95)


def test_a_whale_without_a_limit_costs_small_tenants_no_more_than_one_with_a_limit() -> None:
    assert p95_beside_a_whale(pool(), NO_LIMIT) == p95_beside_a_whale(pool(), 50) < 1.0


def test_control_first_come_first_served_lets_small_tenants_wait_behind_the_whale() -> None:
    assert p95_beside_a_whale(pool(Fifo()), NO_LIMIT) > 100


def test_a_window_that_is_kept_in_order_costs_small_tenants_nothing() -> None:
    without = p95_beside_a_whale(pool(), NO_LIMIT)
    assert p95_beside_a_whale(pool(Fair(WORKERS, 8, sorted_window=True)), NO_LIMIT) == pytest.approx(without, rel=0.1)
    assert p95_beside_a_whale(pool(Fair(WORKERS, 8)), NO_LIMIT) > 3 * without


@pytest.mark.parametrize("spread", [0.5, 0.0])
def test_a_newcomer_beside_200_tenants_waits_for_one_job(spread: float) -> None:
    assert scenarios.crowd(pool(), spread) <= 1 + spread


def test_control_turns_let_a_newcomer_wait_for_everybody() -> None:
    assert scenarios.crowd(pool(RoundRobin()), 0.5) > 40


@pytest.mark.parametrize(("one", "other"), [(10.0, 0.1), (0.8, 0.05)])
def test_worker_time_is_divided_evenly_however_long_jobs_are(one: float, other: float) -> None:
    tenants = [(one, 9, 1), (other, 9, 1)]
    assert scenarios.jain(scenarios.division(pool(), tenants, 300)) > 0.995
    assert scenarios.jain(scenarios.division(pool(RoundRobin()), tenants, 300)) < 0.6


def test_worker_time_is_divided_by_share() -> None:
    parts = scenarios.division(pool(), [(5.0, 9, 3), (0.5, 9, 1), (1.0, 9, 1)], 600)
    assert parts == pytest.approx([0.6, 0.2, 0.2], abs=0.01)


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_no_trick_gains_more_than_one_longest_job_per_worker(trick: Trick) -> None:
    assert scenarios.gain(pool(), trick) <= WORKERS * trick.longest


def test_control_turns_can_be_gamed() -> None:
    assert max(scenarios.gain(pool(RoundRobin()), trick) / (WORKERS * trick.longest) for trick in TRICKS) > 5


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_long_jobs_behind_short_ones_take_a_neighbours_workers_once(limit: int) -> None:
    fair_part = min(limit / WORKERS, 0.5)
    assert scenarios.batches(pool(), limit) >= 0.85 * fair_part
    assert scenarios.batches(textbook(), limit) < 0.05 * fair_part


def test_a_mean_that_is_out_of_date_keeps_no_newcomer_out() -> None:
    met = scenarios.stale_mean(pool())
    assert met.wait <= 1
    assert met.parts == pytest.approx([0.5, 0.5], abs=0.02)
    assert scenarios.stale_mean(textbook()).wait == math.inf


def test_a_newcomer_waits_for_one_job_where_another_tenant_is_owed_time() -> None:
    assert scenarios.beside_the_owed(pool()).wait <= 1
    assert scenarios.beside_the_owed(textbook()).wait == math.inf


def test_whoever_was_alone_owes_at_most_a_job_per_worker() -> None:
    met = scenarios.after_alone(pool())
    assert met.ahead <= WORKERS * scenarios.HOUR
    assert met.parts == pytest.approx([0.5, 0.5], abs=0.03)


@pytest.mark.parametrize("seed", range(6))
def test_the_bounds_hold_in_a_random_crowd(seed: int) -> None:
    """Two tenants that always wait have the same time, newcomers are next, and no worker idles, whatever others do."""
    crowd = RandomCrowd(pool(), seed)
    crowd.run()
    assert crowd.widest() <= 1
    assert max(crowd.went_before(newcomer) for newcomer in crowd.newcomers) == 0
    assert crowd.pool.wasted == 0


def test_control_the_random_crowd_finds_what_turns_do_not_keep() -> None:
    crowds = [RandomCrowd(pool(RoundRobin()), seed) for seed in range(6)]
    for crowd in crowds:
        crowd.run()
    assert any(crowd.went_before(newcomer) for crowd in crowds for newcomer in crowd.newcomers)
    assert any(crowd.widest() > 1 for crowd in crowds)


class RandomCrowd:
    """Two tenants without limits that always wait, some with limits and shares, some that come and go, newcomers."""

    SECONDS = 1000

    def __init__(self, served: Pool, seed: int) -> None:
        self.pool = served
        self.chance = random.Random(seed)
        self.leads: list[float] = []
        self.steady = [self._add(NO_LIMIT, 1) for _ in range(2)]
        for _ in range(self.chance.randrange(4)):
            self._add(self.chance.choice((1, 1, 2, 3, 50)), self.chance.choice((1, 1, 3)))
        self.visitors = [served.add(Tenant(f"visitor{n}", self.chance.choice((1, 2, 50)))) for n in range(3)]
        for visitor in self.visitors:
            self._come_and_go(visitor)
        self.newcomers = [served.add(Tenant(f"newcomer{n}", 5)) for n in range(12)]
        for number, newcomer in enumerate(self.newcomers):
            served.at(50 + 70 * number, lambda newcomer=newcomer: served.enqueue(newcomer, 1.0))

    def run(self) -> None:
        for second in range(1, self.SECONDS + 1):
            self.pool.run(second)
            one, other = (tenant.used(self.pool.now) for tenant in self.steady)
            self.leads.append(one - other)

    def widest(self) -> float:
        """How far the two that always wait were apart over an interval, in their longest jobs on each worker."""
        longest = sum(max(job.seconds for job in tenant.started) for tenant in self.steady)
        return (max(self.leads) - min(self.leads)) / (WORKERS * longest)

    def went_before(self, newcomer: Tenant) -> int:
        """How many jobs started while it waited, other than of those that may be newcomers themselves."""
        (job,) = newcomer.started
        others = set(self.pool.tenants) - set(self.newcomers) - set(self.visitors)
        return sum(self._is_between(each, job) for tenant in others for each in tenant.started)

    def _is_between(self, each: Job, job: Job) -> bool:
        return job.enqueued < each.started < job.started

    def _add(self, limit: int, share: int) -> Tenant:
        return self.pool.add(Tenant(f"tenant{len(self.pool.tenants)}", limit, share, endless=self._seconds()))

    def _seconds(self) -> Callable[[], float]:
        chance = self.chance
        return chance.choice(
            [
                lambda: chance.uniform(0.05, 0.15),
                lambda: chance.uniform(0.5, 1.5),
                lambda: chance.uniform(5, 15),
                lambda: 30.0 if chance.random() < 0.05 else 0.1,
                lambda: min(60.0, chance.expovariate(1 / 20)),
            ]
        )

    def _come_and_go(self, visitor: Tenant) -> None:
        seconds, moment = self._seconds(), 0.0
        while (moment := moment + self.chance.expovariate(1 / 30)) < self.SECONDS:
            jobs = [seconds() for _ in range(self.chance.randrange(1, 9))]
            self.pool.at(moment, lambda jobs=jobs: self.pool.enqueue(visitor, *jobs))
