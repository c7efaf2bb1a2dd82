"""One seed: some actors let loose on each other, then all comes to its end, and somebody looks what came of it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import NamedTuple, Protocol

import django_rq
from django.db import connection, connections

from tenant_slots.models import TenantJob, TenantQueue
from tests.factories import counters_match, pretend_idle
from tests.fuzz import actors
from tests.fuzz.baton import Baton, actor_here
from tests.fuzz.points import points, watching_locks

KINDS = (actors.StockWorker, actors.OwnWorker)

ROUNDS = 12
"""In which all must come to an end. A job that has waited may have to find its slot, and then a worker."""


class Person(Protocol):
    """Who tells the others what to do."""

    is_over: bool

    def act(self) -> None:
        """Until nothing comes to mind any more: `is_over` then."""

    def let_all_run(self) -> None:
        """Limits and pauses keep nothing back from now on."""

    def breaches(self) -> Iterable[str]:
        """Once all has come to its end."""


class Played(NamedTuple):
    breaches: list[str]
    log: list[str]


def seeds(fewest: int) -> range:
    """FUZZ_SEEDS says how many, and FUZZ_FROM which is the first one."""
    first = int(os.environ.get("FUZZ_FROM", "0"))
    return range(first, first + int(os.environ.get("FUZZ_SEEDS", fewest)))


def play(seed: int, make_person: Callable[[random.Random], Person]) -> Played:
    """Others are played before: the first ones have to load scripts and to learn of the servers, by further steps."""
    _warm_up(make_person)
    return _play(seed, make_person)


@cache
def _warm_up(make_person: Callable[[random.Random], Person]) -> None:
    for seed in range(2):
        _play(seed, make_person)


def _play(seed: int, make_person: Callable[[random.Random], Person]) -> Played:
    _forget_all()
    chance = random.Random(seed)
    if chance.random() < 0.5:
        pretend_idle(100)
    person = make_person(chance)
    actions = {"person": person.act}
    for number in range(chance.choice((2, 3))):
        actions[f"worker {number}"] = partial(_work_until, person, chance.choice(KINDS))
    actions["scheduler"] = partial(_repeat, chance.randrange(3), actors.schedule)
    actions["sweep"] = partial(_repeat, chance.randrange(3), actors.sweep)
    with actors.one_process(), watching_locks(connection.get_connection_params()) as is_locked_out, points():
        baton = Baton(seed, is_locked_out)
        baton.run({name: partial(_in_own_session, action) for name, action in actions.items()})
        counters = [] if counters_match() else ["a counter is wrong before anybody has swept"]
        person.let_all_run()
        _end_all()
        return Played([*counters, *person.breaches(), *actors.remains(), *actors.damage()], baton.log)


def _forget_all() -> None:
    TenantJob.objects.all().delete()
    TenantQueue.objects.all().delete()
    django_rq.get_connection("imports").flushdb()
    actors.broken.clear()


def _work_until(person: Person, kind: type[actors.StockWorker] | type[actors.OwnWorker]) -> None:
    while not person.is_over:
        actors.work(kind)
        _rest()


def _repeat(times: int, action: Callable[[], None]) -> None:
    for _ in range(times):
        _rest()
        action()


def _rest() -> None:
    if actor := actor_here():
        actor.rest()


def _in_own_session(action: Callable[[], None]) -> None:
    try:
        action()
    finally:
        connections.close_all()


def _end_all() -> None:
    """Nobody is told anything any more: whatever can still run does, as there are workers for all of it."""
    pretend_idle(100)
    for _ in range(ROUNDS):
        actors.let_time_pass()
        actors.schedule()
        actors.sweep()
        actors.work(actors.StockWorker)
        if not actors.remains():
            return
