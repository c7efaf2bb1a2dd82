"""Every interleaving of small systems: admit, start, finish, crash, sweep, cancel and a stale finisher, step by step.

The model is the protocol of ``slots.py`` in plain Python. A transaction under the tenant's row lock is one step, as the
lock makes it, and so is a script in Redis; what the protocol does between these (offer, ask whose turn it is, admit,
push, deliver, run, say that the tenant has no more) is a step of its own, so that anything may come in between.
Variants that leave out one rule are the controls: the search finds where they break.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest


class Run(NamedTuple):
    """A process that runs an attempt of a job."""

    job: int
    attempt: int
    alive: bool = True
    fenced: bool = False
    """Its lease is lost; it ends itself with its next heartbeat, and until then may still try to finish."""


class Job(NamedTuple):
    state: str = "absent"
    attempt: int = 0
    crashes: int = 0


class ToDrop(NamedTuple):
    """A feeder was told that the tenant has no more to run, and has not said so to the order."""

    is_shut: bool = False
    """What it was told is that all slots are taken, so that one more job changes nothing."""
    was_offered: bool = False
    """The tenant, since the feeder had its turn."""
    was_freed: bool = False
    """A slot of it, since then."""
    has_place: bool = False
    """Its turn came to nothing, and still counts as one in the window."""


class System(NamedTuple):
    jobs: tuple[Job, ...]
    limit: int
    counter: int = 0
    redis: frozenset[tuple[int, int]] = frozenset()
    runs: frozenset[Run] = frozenset()
    handed: tuple[tuple[int, int], ...] = ()
    """Admitted and committed, but not pushed yet."""
    to_offer: bool = False
    """Somebody has committed an enqueue, and has not offered the tenant yet. Of several that offer it one after another
    the last one alone would do."""
    to_free: bool = False
    """Likewise a release."""
    in_order: bool = False
    is_shut: bool = False
    """The order knows that all slots were taken: an enqueue gives the tenant no turn."""
    feeds: bool = False
    """Somebody is about to look whether the window has room."""
    turns: int = 0
    """Feeders that have the tenant's turn, and have not asked the database yet."""
    to_drop: tuple[ToDrop, ...] = ()
    faults: int = 0

    @property
    def ahead(self) -> int:
        return len(self.redis) + len(self.handed)

    @property
    def has_room(self) -> bool:
        return self.ahead + self.turns + sum(feeder.has_place for feeder in self.to_drop) < WINDOW


WINDOW = 1


@dataclass(frozen=True)
class Protocol:
    """The rules; each can be left out."""

    fence: bool = True
    gate: bool = True
    together: bool = True
    dead_only: bool = True
    sweep: bool = True
    remembers: bool = True
    """A tenant that was offered since somebody asked for it is not dropped."""
    knows_frees: bool = True
    """Of what is told to the order, a free slot is told apart from a new job."""
    looks_when_ignored: bool = True
    keeps_places: bool = True
    """A turn counts in the window from when it is given."""
    looks_again: bool = True
    """A feeder looks once more when its turn is over: others may have found no room because of it."""
    most_faults: int = 2
    most_crashes: int = 2

    def steps(self, system: System) -> Iterator[tuple[str, System]]:
        for number, job in enumerate(system.jobs):
            yield from self.steps_of_job(system, number, job)
        for attempt in system.redis:
            yield from self.deliveries(system, attempt)
        for run in system.runs:
            yield from self.steps_of_run(system, run)
        yield from self.steps_of_system(system)

    def steps_of_job(self, system: System, number: int, job: Job) -> Iterator[tuple[str, System]]:
        if job.state == "absent" and all(other.state != "absent" for other in system.jobs[:number]):
            enqueued = with_job(system, number, job._replace(state="waiting"))
            yield f"enqueue {number}", to_offer(enqueued)
            if system.faults < self.most_faults:
                yield f"enqueue {number}, die before the offer", fault(enqueued)
        if job.state == "waiting":
            yield f"cancel waiting {number}", with_job(system, number, job._replace(state="canceled"))
        if job.state == "queued":
            yield f"cancel queued {number}", self.release(system, number, job.attempt, "canceled", ("queued",))

    def deliveries(self, system: System, delivered: tuple[int, int]) -> Iterator[tuple[str, System]]:
        number, attempt = delivered
        taken = system._replace(redis=system.redis - {delivered})
        yield f"deliver {number}/{attempt}", self.start(taken, number, attempt)
        if system.faults < self.most_faults:
            yield f"deliver {number}/{attempt} twice", fault(self.start(system, number, attempt))
            yield f"lose {number}/{attempt} between pop and start", fault(taken)

    def start(self, system: System, number: int, attempt: int) -> System:
        job = system.jobs[number]
        if self.fence and (job.state, job.attempt) != ("queued", attempt):
            return system._replace(feeds=self.looks_when_ignored or system.feeds)
        started = with_job(system, number, job._replace(state="running"))
        return started._replace(feeds=True, runs=system.runs | {Run(number, attempt)})

    def steps_of_run(self, system: System, run: Run) -> Iterator[tuple[str, System]]:
        if run.alive:
            ended = system._replace(runs=system.runs - {run})
            finished = self.release(ended, run.job, run.attempt, "finished", ("queued", "running"))
            yield f"finish {run.job}/{run.attempt}", finished
            if system.faults < self.most_faults:
                dead = system.runs - {run} | {run._replace(alive=False)}
                yield f"kill {run.job}/{run.attempt}", fault(system._replace(runs=dead))
                if not run.fenced:
                    yield f"staleness of {run.job}/{run.attempt}", fault(self.reclaim_stale(system, run))
        if run.fenced:
            yield f"heartbeat of stale {run.job}/{run.attempt}", system._replace(runs=system.runs - {run})

    def reclaim_stale(self, system: System, run: Run) -> System:
        """An owner on another host that sent no heartbeat: it is fenced, and may still be running."""
        fenced = system._replace(runs=system.runs - {run} | {run._replace(fenced=True)})
        return self.put_back(fenced, run)

    def put_back(self, system: System, run: Run) -> System:
        job = system.jobs[run.job]
        if (job.state, job.attempt) != ("running", run.attempt):
            return system
        state = "waiting" if job.crashes < self.most_crashes else "failed"
        crashed = with_job(system, run.job, job._replace(crashes=job.crashes + 1))
        return self.release(crashed, run.job, run.attempt, state, ("running",))

    def steps_of_system(self, system: System) -> Iterator[tuple[str, System]]:
        yield from self.steps_of_order(system)
        if system.handed:
            first, *rest = system.handed
            pushed = system._replace(handed=tuple(rest), redis=system.redis | {first})
            yield f"push {first}", pushed
            if system.faults < self.most_faults:
                yield f"die before push of {first}", fault(system._replace(handed=tuple(rest)))
        if system.redis and system.faults < self.most_faults:
            yield "FLUSHALL", fault(system._replace(redis=frozenset(), in_order=False, is_shut=False))
        if self.sweep:
            swept = self.sweep_once(system)
            if swept != system:
                yield "sweep", swept

    def sweep_once(self, system: System) -> System:
        for run in sorted(system.runs, key=str):
            if not run.alive or not self.dead_only:
                without = system._replace(runs=system.runs - {run}) if not run.alive else system
                system = self.put_back(without, run)
        known = system.redis | set(system.handed)
        queued = [(number, job.attempt) for number, job in enumerate(system.jobs) if job.state == "queued"]
        lost = frozenset(queued) - known
        system = system._replace(redis=system.redis | lost)
        return self.free(system) if could_run(system) else system

    def steps_of_order(self, system: System) -> Iterator[tuple[str, System]]:
        if system.to_offer:
            yield "offer", self.offer(system._replace(to_offer=False))
            if system.faults < self.most_faults:
                yield "die before the offer", fault(system._replace(to_offer=False))
        if system.to_free:
            yield "free", self.free(system._replace(to_free=False))
            if system.faults < self.most_faults:
                yield "die before the free slot is told", fault(system._replace(to_free=False))
        if system.feeds:
            yield "ask", self.ask(system)
        if system.turns:
            yield "admit", self.admit(system._replace(turns=system.turns - 1))
            if system.faults < self.most_faults:
                yield "die with the turn, which is over after a second", fault(system._replace(turns=system.turns - 1))
        for at, feeder in enumerate(system.to_drop):
            left = system._replace(to_drop=system.to_drop[:at] + system.to_drop[at + 1 :])
            is_news = feeder.was_freed if feeder.is_shut and self.knows_frees else feeder.was_offered
            stays = is_news and self.remembers
            left = left._replace(in_order=stays, is_shut=feeder.is_shut and not stays)
            yield "drop", self.look_again(left) if feeder.has_place else left

    def offer(self, system: System) -> System:
        told = tuple(feeder._replace(was_offered=True) for feeder in system.to_drop)
        if system.is_shut:
            return system._replace(to_drop=told)
        return self.enter(system._replace(to_drop=told))

    def free(self, system: System) -> System:
        told = tuple(feeder._replace(was_offered=True, was_freed=True) for feeder in system.to_drop)
        if not self.knows_frees:
            return self.offer(system)
        return self.enter(system._replace(to_drop=told))

    def enter(self, system: System) -> System:
        offered = system._replace(in_order=True, is_shut=False)
        return offered._replace(feeds=True) if self.finds_room(offered) else offered

    def finds_room(self, system: System) -> bool:
        return system.has_room if self.keeps_places else system.ahead < WINDOW

    def ask(self, system: System) -> System:
        """Whoever comes meanwhile looks for itself, if it finds room."""
        has_turn = system.in_order and self.finds_room(system)
        return system._replace(feeds=False, turns=system.turns + has_turn)

    def admit(self, system: System) -> System:
        """The database admits the head of the backlog, or says that there is nothing to admit."""
        waiting = [number for number, job in enumerate(system.jobs) if job.state == "waiting"]
        if not waiting or (self.gate and system.counter >= system.limit):
            return self.has_no_more(system, has_place=True)
        number = waiting[0]
        admitted = system.jobs[number]._replace(state="queued", attempt=system.jobs[number].attempt + 1)
        system = with_job(system, number, admitted)._replace(
            counter=system.counter + 1,
            handed=(*system.handed, (number, admitted.attempt)),
        )
        system = self.look_again(system)
        return system if could_run(system) else self.has_no_more(system, has_place=False)

    def has_no_more(self, system: System, *, has_place: bool) -> System:
        """Of feeders that have not said so yet, one is enough to say it too late, beside those that have a place."""
        before = tuple(feeder for feeder in system.to_drop if feeder.has_place)
        is_shut = system.counter >= system.limit
        return system._replace(to_drop=(*before, ToDrop(is_shut=is_shut, has_place=has_place)))

    def look_again(self, system: System) -> System:
        return system._replace(feeds=self.looks_again or system.feeds)

    def release(self, system: System, number: int, attempt: int, state: str, expected: tuple[str, ...]) -> System:
        job = system.jobs[number]
        if self.fence and (job.attempt != attempt or job.state not in expected):
            return system
        counter = system.counter - 1 if self.together else system.counter
        released = with_job(system, number, job._replace(state=state))
        return released._replace(counter=max(0, counter), to_free=True)


def with_job(system: System, number: int, job: Job) -> System:
    return system._replace(jobs=(*system.jobs[:number], job, *system.jobs[number + 1 :]))


def to_offer(system: System) -> System:
    return system._replace(to_offer=True)


def could_run(system: System) -> bool:
    return system.counter < system.limit and any(job.state == "waiting" for job in system.jobs)


def fault(system: System) -> System:
    return system._replace(faults=system.faults + 1)


def breach(system: System) -> str:
    """What is wrong in this state, whatever comes next."""
    held = sum(job.state in ("queued", "running") for job in system.jobs)
    if system.counter != held:
        return f"I6: counted {system.counter}, held {held}"
    if held > system.limit:
        return f"I1: {held} hold slots of {system.limit}"
    running = [run for run in system.runs if run.alive and not run.fenced]
    if len(running) > system.limit:
        return f"I1: {len(running)} run at once"
    if len({run.job for run in running}) < len(running):
        return "I4: a job runs twice at once"
    if system.ahead > WINDOW and not system.faults:
        return f"I12: {system.ahead} are admitted ahead, and nothing failed"
    if could_run(system) and not system.faults and not (system.to_offer or system.to_free):
        if not system.in_order:
            return "I7: a job waits beside a free slot, nothing failed, and the order has forgotten its tenant"
        if system.has_room and not system.feeds:
            return "I7: a job waits beside a free slot and room in the window, and nobody looks"
    return ""


def stuck(system: System) -> str:
    """What is wrong in a state from which no step leads on."""
    unended = [job for job in system.jobs if job.state not in ("finished", "failed", "canceled")]
    return f"I3: {unended} never end" if unended else ""


def first_breach(protocol: Protocol, start: System) -> tuple[str, int]:
    """Searches all states that can be reached; the first breach with the way to it, and how many states there were."""
    came_from: dict[System, tuple[System, str] | None] = {start: None}
    frontier = deque([start])
    while frontier:
        system = frontier.popleft()
        steps = list(protocol.steps(system))
        wrong = breach(system) or ("" if steps else stuck(system))
        if wrong:
            return f"{wrong} after: {'; '.join(way_to(system, came_from))}", len(came_from)
        for name, following in steps:
            if following not in came_from:
                came_from[following] = (system, name)
                frontier.append(following)
    return "", len(came_from)


def way_to(system: System, came_from: dict[System, tuple[System, str] | None]) -> list[str]:
    names = []
    while (step := came_from[system]) is not None:
        system, name = step
        names.append(name)
    return names[::-1]


SYSTEMS = {
    "one job": System(jobs=(Job(),), limit=1),
    "two jobs, one slot": System(jobs=(Job(), Job()), limit=1),
    "two jobs, two slots": System(jobs=(Job(), Job()), limit=2),
    "three jobs, two slots": System(jobs=(Job(), Job(), Job()), limit=2),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_i1_i3_i4_i6_i7_i12_hold_in_every_state_that_can_be_reached(name: str) -> None:
    faults = {1: 4, 2: 2, 3: 1}[len(SYSTEMS[name].jobs)]
    wrong, states = first_breach(Protocol(most_faults=faults), SYSTEMS[name])
    assert wrong == ""
    assert states > 100


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_job_can_still_end_from_every_state(name: str) -> None:
    """No state is a trap from which only endless circles lead: I3 for a system that is repaired at last."""
    protocol = Protocol(most_faults=1)
    seen, frontier = {SYSTEMS[name]}, [SYSTEMS[name]]
    comes_from: dict[System, list[System]] = {SYSTEMS[name]: []}
    while frontier:
        system = frontier.pop()
        for following in {following for _, following in protocol.steps(system)}:
            comes_from.setdefault(following, []).append(system)
            if following not in seen:
                seen.add(following)
                frontier.append(following)
    frontier = [system for system in seen if not stuck(system)]
    good = set(frontier)
    while frontier:
        before = set(comes_from[frontier.pop()]) - good
        good |= before
        frontier += before
    assert good == seen


@pytest.mark.parametrize(
    ("left_out", "finds"),
    [
        ({"fence": False}, ("I1", "I4", "I6")),
        ({"gate": False}, ("I1",)),
        ({"together": False}, ("I6",)),
        ({"dead_only": False}, ("I1", "I4")),
        ({"sweep": False}, ("I3",)),
        ({"remembers": False}, ("I7",)),
        ({"knows_frees": False}, ("I7",)),
        ({"looks_when_ignored": False}, ("I7",)),
        ({"keeps_places": False}, ("I12",)),
        ({"looks_again": False}, ("I7",)),
    ],
    ids=[
        "no fence",
        "no gate",
        "counter apart from the row",
        "reclaims the living",
        "no sweep",
        "forgets an offer",
        "takes a free slot for a new job",
        "leaves the window empty",
        "a turn has no place",
        "leaves its place to nobody",
    ],
)
def test_control_without_a_rule_the_search_finds_the_breach(left_out: dict[str, bool], finds: tuple[str, ...]) -> None:
    wrong, _ = first_breach(Protocol(**left_out), SYSTEMS["two jobs, one slot"])
    assert wrong.startswith(finds), wrong
