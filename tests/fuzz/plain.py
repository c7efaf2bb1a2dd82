"""Plain RQ jobs under one id, with all that somebody may tell RQ of it, and what must come of that."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import django_rq
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus

from tenant_slots import tenant_job
from tenant_slots.models import TenantJob, TenantQueue
from tests.factories import tenant_queue
from tests.fuzz.actors import alone
from tests.fuzz.baton import actor_here

IDS = ("nightly", "weekly")

TENANT = "acme"


REFUSED = (NoSuchJobError, InvalidJobOperation, ValueError)
"""What RQ says of a job that is gone, or has ended meanwhile, or of its execution (2.12)."""


class Event(NamedTuple):
    what: str
    rq_id: str
    number: int


history: list[Event] = []
"""Of tellings and runs, in their order."""


def note(what: str, rq_id: str, number: int = 0) -> None:
    history.append(Event(what, rq_id, number))
    if actor := actor_here():
        actor.note(f"{what} {rq_id} {number or ''}")


@tenant_job("imports", tenant="tenant")
def called(tenant: str, rq_id: str, number: int) -> None:
    note("start", rq_id, number)
    for _ in range(number % 3 * 2):
        if actor := actor_here():
            actor.rest()
    note("end", rq_id, number)


class Person:
    """Tells RQ of calls under a few ids, and changes the limit."""

    def __init__(self, chance: random.Random) -> None:
        history.clear()
        self.chance = random.Random(chance.random())
        self.deeds = chance.randrange(4, 16)
        self.ids = IDS[: chance.choice((1, 1, 2))]
        self.numbers: Counter[str] = Counter()
        self.is_over = False
        tenant_queue(TENANT, max_job=chance.choice((0, 1, 1, 2, 2)))

    def act(self) -> None:
        try:
            for _ in range(self.deeds):
                self._one()
                if actor := actor_here():
                    actor.rest() if self.chance.random() < 0.3 else actor.step("does the next")
        finally:
            self.is_over = True

    def _one(self) -> None:
        deeds: dict[Callable[[str], Any], int] = {
            self.enqueue: 7,
            self.enqueue_again: 3,
            self.schedule: 1,
            self.push_copy: 4,
            self.cancel_in_rq: 1,
            self.cancel: 1,
            self.delete: 1,
            self.set_limit: 2,
            self.pause: 1,
        }
        (deed,) = self.chance.choices(list(deeds), list(deeds.values()))
        with suppress(*REFUSED), alone():
            deed(self.chance.choice(self.ids))

    def enqueue(self, rq_id: str) -> None:
        queue = django_rq.get_queue(self.chance.choice(("imports", "imports", "imports", "imports_bulk")))
        queue.enqueue(called, TENANT, rq_id, self._told(rq_id), job_id=rq_id)

    def _told(self, rq_id: str, what: str = "told") -> int:
        self.numbers[rq_id] += 1
        note(what, rq_id, self.numbers[rq_id])
        return self.numbers[rq_id]

    def enqueue_again(self, rq_id: str) -> None:
        rq_job = _found(rq_id)
        note("told", rq_id, rq_job.args[2])
        django_rq.get_queue(rq_job.origin).enqueue_job(rq_job)

    def schedule(self, rq_id: str) -> None:
        number = self._told(rq_id, "told for later")
        django_rq.get_queue("imports").enqueue_in(timedelta(hours=1), called, TENANT, rq_id, number, job_id=rq_id)

    def push_copy(self, rq_id: str) -> None:
        """As RQ does where it has not heard that it has pushed one."""
        rq_job = _found(rq_id)
        if rq_job.get_status(refresh=False) == JobStatus.QUEUED:
            django_rq.get_queue(rq_job.origin).push_job_id(rq_id)

    def cancel_in_rq(self, rq_id: str) -> None:
        rq_job = _found(rq_id)
        note("canceled", rq_id)
        rq_job.cancel()

    def cancel(self, rq_id: str) -> None:
        for job in TenantJob.objects.not_ended().filter(rq_job_id=rq_id):
            note("canceled", rq_id)
            job.cancel()

    def delete(self, rq_id: str) -> None:
        rq_job = _found(rq_id)
        note("deleted", rq_id)
        rq_job.delete()

    def set_limit(self, _: str) -> None:
        _row().set_limit(self.chance.choice((0, 1, 1, 2, 2, 5)))

    def pause(self, _: str) -> None:
        found = _row()
        found.resume() if found.paused else found.pause()

    def let_all_run(self) -> None:
        found = _row()
        found.set_limit(5)
        found.resume()

    def breaches(self) -> Iterator[str]:
        for rq_id in self.ids:
            own = [event for event in history if event.rq_id == rq_id]
            yield from _runs_beside(rq_id, own)
            yield from _runs_too_often(rq_id, own)
            yield from _runs_too_seldom(rq_id, own)
            yield from _is_kept_for_ever(rq_id, own)


def _row() -> TenantQueue:
    found: TenantQueue = TenantQueue.objects.get(tenant=TENANT)
    return found


def _found(rq_id: str) -> Job:
    return Job.fetch(rq_id, connection=django_rq.get_connection("imports"))


def _runs_beside(rq_id: str, own: list[Event]) -> Iterator[str]:
    running = 0
    for event in own:
        running += (event.what == "start") - (event.what == "end")
        if running > 1:
            yield f"{rq_id}: call {event.number} runs beside another run"


def _runs_too_often(rq_id: str, own: list[Event]) -> Iterator[str]:
    """At the time for which RQ was told to schedule one call, it runs the one that it has then."""
    told = Counter(event.number for event in own if event.what.startswith("told"))
    started = Counter(event.number for event in own if event.what == "start")
    if any(event.what == "told for later" for event in own):
        told, started = Counter({0: told.total()}), Counter({0: started.total()})
    for number in sorted(started):
        if started[number] > told[number]:
            yield f"{rq_id}: call {number} was told {told[number]} times and ran {started[number]} times"


def _runs_too_seldom(rq_id: str, own: list[Event]) -> Iterator[str]:
    said = [place for place, event in enumerate(own) if event.what not in ("start", "end")]
    if not said or not own[said[-1]].what.startswith("told"):
        return
    last = own[said[-1]]
    if not any(event.what == "start" and event.number == last.number for event in own[said[-1] :]):
        yield f"{rq_id}: call {last.number} was told last, and did not run after that"


def _is_kept_for_ever(rq_id: str, own: list[Event]) -> Iterator[str]:
    """RQ keeps the result of a run for a while, also where somebody has deleted the job meanwhile."""
    redis = django_rq.get_connection("imports")
    key = Job.key_for(rq_id)
    said = [event.what for event in own if event.what not in ("start", "end")]
    is_over = redis.hget(key, "status") in (b"finished", b"failed") or said[-1:] == ["deleted"]
    if is_over and redis.ttl(key) == -1:
        yield f"{rq_id}: RQ keeps its record for ever: {redis.hgetall(key)}"
