"""Jobs of ours beside plain ones and reservations, with all that a person may do with them and with the limits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import django_rq
from rq import Retry

from tenant_slots import TenantBusy, hold_slot, tenant_job
from tenant_slots.exceptions import TenantSlotsError
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import tenant_queue
from tests.fuzz.actors import let_time_pass
from tests.fuzz.baton import actor_here

TENANTS = ("acme", "other")

KEYS = ("", "", "x", "y")

PLAIN = 0
"""In place of the number of a job whose arguments RQ has."""

MOST = 2
"""No limit is higher, so that no more of a tenant's jobs run at once."""


class Event(NamedTuple):
    what: str
    tenant: str
    number: int


history: list[Event] = []


def note(what: str, tenant: str, number: int) -> None:
    history.append(Event(what, tenant, number))
    if actor := actor_here():
        actor.note(f"{what} {tenant} {number}")


@tenant_job("imports", tenant="tenant", retry=Retry(max=1))
def does(tenant: str, number: int, how: str = "") -> None:
    note("start", tenant, number)
    for _ in range(number % 3):
        _rest()
    note("end", tenant, number)
    if how == "fails":
        raise ValueError(number)
    if how == "busy" and sum(event == Event("start", tenant, number) for event in history) == 1:
        raise TenantBusy("HTTP 429", seconds=1)


class Person:
    """Enqueues, and changes what was enqueued, and the limits."""

    def __init__(self, chance: random.Random) -> None:
        history.clear()
        self.chance = random.Random(chance.random())
        self.deeds = chance.randrange(6, 20)
        self.number = 0
        self.retried: Counter[int] = Counter()
        self.is_over = False
        for tenant in TENANTS:
            tenant_queue(tenant, max_job=chance.choice((0, 1, 1, 2)))

    def act(self) -> None:
        deeds: dict[Callable[[], Any], int] = {
            self.enqueue: 8,
            self.enqueue_many: 1,
            self.enqueue_plain: 2,
            self.hold: 2,
            self.cancel: 2,
            self.retry: 2,
            self.set_limit: 3,
            self.set_max_job_per_key: 1,
            self.set_priority: 1,
            self.pause: 1,
            self.time_passes: 2,
        }
        try:
            for deed in self.chance.choices(list(deeds), list(deeds.values()), k=self.deeds):
                with suppress(TenantSlotsError):
                    deed()
                if self.chance.random() < 0.3:
                    _rest()
        finally:
            self.is_over = True

    def _next(self) -> tuple[str, int]:
        self.number += 1
        return self.chance.choice(TENANTS), self.number

    def enqueue(self) -> None:
        call = does.using(priority=self.chance.choice((0, 0, 1)), key=self.chance.choice(KEYS))
        call.enqueue(*self._next(), self.chance.choice(("", "", "fails", "busy")))

    def enqueue_many(self) -> None:
        does.enqueue_many([(self._next(), {}) for _ in range(3)])

    def enqueue_plain(self) -> None:
        django_rq.get_queue(self.chance.choice(("imports", "imports_bulk"))).enqueue(does, *self._next())

    def hold(self) -> None:
        tenant, number = self._next()
        with hold_slot(tenant, "imports"):
            note("start", tenant, number)
            _rest()
            note("end", tenant, number)

    def _job(self, *states: State) -> TenantJob | None:
        """As it was a moment ago."""
        jobs = list(TenantJob.objects.jobs().filter(state__in=states).select_related("tenant_queue").order_by("pk"))
        _rest()
        return self.chance.choice(jobs) if jobs else None

    def cancel(self) -> None:
        if job := self._job(State.WAITING, State.SCHEDULED, State.QUEUED):
            tenant, number = (job.args or (job.tenant_queue.tenant, PLAIN))[:2]
            job.cancel()
            job.refresh_from_db()
            if job.state == State.CANCELED:  # and not asked to stop
                note("canceled", tenant, number)

    def retry(self) -> None:
        if job := self._job(State.FAILED, State.CANCELED):
            self.retried[job.args[1] if job.args else PLAIN] += 1
            job.retry()

    def set_priority(self) -> None:
        if job := self._job(State.WAITING, State.SCHEDULED):
            job.set_priority(self.chance.choice((0, 1, 2)))

    def _row(self) -> TenantQueue:
        """As it was a moment ago."""
        row: TenantQueue = TenantQueue.objects.get(tenant=self.chance.choice(TENANTS))
        _rest()
        return row

    def set_limit(self) -> None:
        self._row().set_limit(self.chance.choice((0, 1, 1, MOST)))

    def set_max_job_per_key(self) -> None:
        self._row().set_max_job_per_key(self.chance.choice((None, 1)))

    def pause(self) -> None:
        row = self._row()
        row.resume() if row.paused else row.pause()

    def time_passes(self) -> None:
        let_time_pass()

    def let_all_run(self) -> None:
        for row in TenantQueue.objects.all():
            row.set_limit(MOST)
            row.resume()

    def breaches(self) -> Iterator[str]:
        yield from _too_many_at_once()
        yield from self._runs_too_often()
        yield from _ends_without_a_run()

    def _runs_too_often(self) -> Iterator[str]:
        """Once, and once more after an error or where the tenant was busy; so each time that it is retried."""
        for number in {event.number for event in history if event.what == "canceled"} - self.retried.keys() - {PLAIN}:
            after = [event.what for event in history if event.number == number]
            if "start" in after[after.index("canceled") :]:
                yield f"job {number} started after it had been canceled"
        for number, starts in Counter(event.number for event in history if event.what == "start").items():
            if starts > 2 * (1 + self.retried[number]):
                yield f"job {number} ran {starts} times"


def _rest() -> None:
    if actor := actor_here():
        actor.rest()


def _too_many_at_once() -> Iterator[str]:
    running: Counter[str] = Counter()
    for event in history:
        running[event.tenant] += (event.what == "start") - (event.what == "end")
        if running[event.tenant] > MOST:
            yield f"{event.number}: more than {MOST} jobs of {event.tenant} run at once"


def _ends_without_a_run() -> Iterator[str]:
    started = {event.number for event in history if event.what == "start"}
    for job in TenantJob.objects.jobs().filter(state__in=(State.FINISHED, State.FAILED), rq_job_id=""):
        if job.args[1] not in started:
            yield f"job {job.args[1]} has {job.state}, and never ran: {job.error}"
