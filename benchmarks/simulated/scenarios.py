"""What is asked of an order of service. Each function simulates one situation and returns figures in seconds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.simulated.pool import Job, Pool, Tenant

HOUR = 3600.0
NO_LIMIT = 10_000

TEN_MINUTES_HIDDEN = [0.05] * 60 + [600.0] * 4
"""The short jobs lower the tenant's mean run time, so that the long ones look short when they start."""


def whale(pool: Pool, limit: int, seconds: float = 300.0) -> list[float]:
    """Waits of 20 small tenants beside a whale with 10,000 jobs; with a limit of 0 it is as if it were not there."""
    chance = random.Random(1)
    big = pool.add(Tenant("whale", limit))
    pool.enqueue(big, *(_about(chance, 1.0) for _ in range(10_000)))
    small = [pool.add(Tenant(f"small{number}", 4)) for number in range(20)]
    for tenant in small:
        for _ in range(15):
            pool.at(chance.uniform(10, seconds - 30), _enqueues(pool, tenant, [_about(chance, 1.0)]))
    pool.run(seconds)
    return [job.wait for tenant in small for job in tenant.started] + [
        pool.now - job.enqueued for tenant in small for job in tenant.backlog
    ]


def crowd(pool: Pool, spread: float) -> float:
    """The longest wait of ten newcomers, one after the other, beside 200 tenants with backlogs and the limit 5."""
    chance = random.Random(2)
    for number in range(200):
        pool.enqueue(pool.add(Tenant(f"old{number}", 5)), *(chance.uniform(1 - spread, 1 + spread) for _ in range(40)))
    newcomers = [pool.add(Tenant(f"new{number}", 5)) for number in range(10)]
    for number, tenant in enumerate(newcomers):
        pool.at(100.5 + 37.3 * number, _enqueues(pool, tenant, [1.0]))
    pool.run(1000)
    return max(_first_wait(pool, tenant) for tenant in newcomers)


def division(pool: Pool, tenants: Sequence[tuple[float, int, int]], seconds: float) -> list[float]:
    """Parts of the worker time of tenants with endless backlogs: (seconds of a job, limit, share) of each."""
    chance = random.Random(3)
    added = [
        pool.add(Tenant(f"{number}", limit, share, endless=lambda mean=mean: _about(chance, mean)))  # type: ignore[misc]
        for number, (mean, limit, share) in enumerate(tenants)
    ]
    pool.run(seconds)
    return _parts(pool, added)


def jain(values: Sequence[float]) -> float:
    """Jain's index: 1 when all are the same, 1/n when one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


@dataclass(frozen=True)
class Trick:
    """A way in which a tenant may try to get more than a neighbour that always has jobs of one second."""

    name: str
    play: Callable[[Pool, Tenant, random.Random], None]
    longest: float
    """Seconds of the longest job of the two."""
    limit: int = 50
    measured_from: float = 0.0
    seconds: float = 1200.0


def gain(pool: Pool, trick: Trick) -> float:
    """The most worker time, at any moment, that the trick's player has had more than its neighbour."""
    chance = random.Random(4)
    neighbour = pool.add(Tenant("neighbour", 50, endless=lambda: _about(chance, 1.0)))
    player = pool.add(Tenant("player", trick.limit))
    trick.play(pool, player, chance)
    pool.run(trick.measured_from)
    before = player.used(pool.now) - neighbour.used(pool.now)
    most = 0.0
    for step in range(1, 101):
        pool.run(trick.measured_from + step * (trick.seconds - trick.measured_from) / 100)
        most = max(most, player.used(pool.now) - neighbour.used(pool.now) - before)
    return most


def _bursts(jobs: int, seconds: float, pause: float) -> Callable[[Pool, Tenant, random.Random], None]:
    """Comes with so many jobs at once, and again a pause after all have ended."""

    def play(pool: Pool, player: Tenant, chance: random.Random) -> None:
        def burst() -> None:
            pool.enqueue(player, *(_about(chance, seconds) for _ in range(jobs)))

        def ended(job: Job) -> None:
            if job.tenant is player and not player.held and not player.backlog:
                pool.at(pool.now + pause, burst)

        pool.when_ended = ended
        pool.at(1.0, burst)

    return play


def _returns_after_long(pool: Pool, player: Tenant, chance: random.Random) -> None:
    pool.enqueue(player, *[1.0] * 10)
    pool.at(1000.0, _enqueues(pool, player, [1.0] * 2000))


def _has_its_limit_raised(pool: Pool, player: Tenant, chance: random.Random) -> None:
    pool.enqueue(player, *[0.2] * 20_000)
    pool.at(1000.0, lambda: pool.set_limit(player, 50))


def _hides_hours(pool: Pool, player: Tenant, chance: random.Random) -> None:
    pool.enqueue(player, *([0.05] * 60 + [HOUR] * 4) * 6)


TRICKS = (
    Trick("bursts of 100 jobs of 50 ms, 5 s apart", _bursts(100, 0.05, 5.0), 1.0),
    Trick("work split into jobs of 50 ms without end", _bursts(50_000, 0.05, 0.0), 1.0, seconds=600),
    Trick("on and off, one job of 1 s at a time", _bursts(1, 1.0, 0.01), 1.0),
    Trick("on and off, eight jobs of 5 s", _bursts(8, 5.0, 10.0), 5.0),
    Trick("on and off, four jobs of 30 s", _bursts(4, 30.0, 20.0), 30.0),
    Trick("back after a long idle time", _returns_after_long, 1.0, measured_from=1000.0),
    Trick("limit raised from 1 to 50", _has_its_limit_raised, 1.0, 1, measured_from=1000.0),
    Trick("first jobs, of unknown length, last an hour", _bursts(20, HOUR, 0.0), HOUR, seconds=8 * HOUR),
    Trick("jobs of an hour hidden behind short ones", _hides_hours, HOUR, seconds=8 * HOUR),
)


def batches(pool: Pool, limit: int) -> float:
    """The part of the worker time that a neighbour with this limit has beside batches of long and short jobs.

    Another tenant's backlog is 60 jobs of 50 ms and then 4 of ten minutes, over and over.
    """
    neighbour = pool.add(Tenant("neighbour", limit, endless=lambda: 1.0))
    pool.at(5.0, _enqueues(pool, pool.add(Tenant("batches", NO_LIMIT)), TEN_MINUTES_HIDDEN * 40))
    pool.run(8 * 600.0)
    return neighbour.used(pool.now) / (pool.workers * pool.now)


@dataclass(frozen=True)
class Arrival:
    """What a newcomer met."""

    wait: float
    ahead: float
    """Worker seconds that it got before the other tenant's next start."""
    parts: list[float]
    """Of the worker time since then: the other's, the newcomer's."""


def after_alone(pool: Pool) -> Arrival:
    """A tenant has had the pool for itself for ten hours, with jobs of about an hour. Then a newcomer comes."""
    chance = random.Random(5)
    first = pool.add(Tenant("first", NO_LIMIT, endless=lambda: chance.uniform(0.7, 1.3) * HOUR))
    return _arrive(pool, [first], 10.5 * HOUR, 8 * HOUR)


def stale_mean(pool: Pool) -> Arrival:
    """A tenant's jobs took an hour each; now it has many of a second. Then a newcomer comes."""
    first = pool.add(Tenant("first", NO_LIMIT))
    pool.enqueue(first, *[HOUR] * pool.workers)
    pool.at(4000.0, _enqueues(pool, first, [1.0] * 10_000))
    return _arrive(pool, [first], 4001.5, 600.0)


def beside_the_owed(pool: Pool) -> Arrival:
    """Jobs of ten minutes have just kept a tenant with limit 2 out, which is owed that time. Then a newcomer comes."""
    owed = pool.add(Tenant("owed", 2, endless=lambda: 1.0))
    pool.at(5.0, _enqueues(pool, pool.add(Tenant("batches", NO_LIMIT)), TEN_MINUTES_HIDDEN * 10))
    return _arrive(pool, [owed], 640.5, 300.0)


def _arrive(pool: Pool, others: list[Tenant], moment: float, seconds: float) -> Arrival:
    newcomer = pool.add(Tenant("newcomer", NO_LIMIT))
    pool.run(moment)
    before = [tenant.used(moment) for tenant in others]
    pool.enqueue(newcomer, *[1.0] * int(pool.workers * seconds + 1))
    others_started = [len(tenant.started) for tenant in others]
    ahead: float | None = None
    for step in range(1, 301):
        pool.run(moment + step * seconds / 300)
        if ahead is None and any(len(tenant.started) > had for tenant, had in zip(others, others_started, strict=True)):
            ahead = newcomer.used(pool.now)
    used = [tenant.used(pool.now) - had for tenant, had in zip(others, before, strict=True)]
    used.append(newcomer.used(pool.now))
    return Arrival(
        _first_wait(pool, newcomer),
        newcomer.used(pool.now) if ahead is None else ahead,
        [each / (pool.workers * seconds) for each in used],
    )


def _first_wait(pool: Pool, tenant: Tenant) -> float:
    """Endless if it has not started yet."""
    return tenant.started[0].wait if tenant.started else math.inf


def _parts(pool: Pool, tenants: Iterable[Tenant]) -> list[float]:
    return [tenant.used(pool.now) / (pool.workers * pool.now) for tenant in tenants]


def _enqueues(pool: Pool, tenant: Tenant, seconds: Sequence[float]) -> Callable[[], None]:
    return lambda: pool.enqueue(tenant, *seconds)


def _about(chance: random.Random, mean: float) -> float:
    return mean * chance.uniform(0.8, 1.2)
