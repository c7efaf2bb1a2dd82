"""A pool of workers that serves tenants' jobs in simulated time, in the order that it is given."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

SWEEP_SECONDS = 5.0


@dataclass(eq=False, slots=True)
class Job:
    tenant: Tenant
    seconds: float
    enqueued: float
    started: float = 0.0
    charge: float = 0.0
    """What an order has charged the tenant for it so far."""
    urgency: float = 0.0
    """Of admitted jobs, that with the smallest starts first; of equal ones, that which was admitted first."""

    @property
    def wait(self) -> float:
        return self.started - self.enqueued


@dataclass(eq=False)
class Tenant:
    name: str
    limit: int
    share: int = 1
    endless: Callable[[], float] | None = None
    """Gives the seconds of the next job of a backlog without end."""
    backlog: deque[Job] = field(default_factory=deque)
    held: int = 0
    """Slots: admitted jobs and running ones."""
    running: set[Job] = field(default_factory=set)
    started: list[Job] = field(default_factory=list)
    ended_seconds: float = 0.0

    @property
    def may_run(self) -> bool:
        """Whether it has a waiting job and a free slot for it."""
        return self.held < self.limit and bool(self.backlog or self.endless)

    def next_job(self, now: float) -> Job:
        if self.backlog:
            return self.backlog.popleft()
        assert self.endless
        return Job(self, self.endless(), now)

    def used(self, now: float) -> float:
        """Worker seconds so far."""
        return self.ended_seconds + sum(now - job.started for job in self.running)


class Order(Protocol):
    """Who is next. The pool says what happens, and asks."""

    window: float
    """How many jobs may be admitted that no idle worker waits for."""

    def may_have_changed(self, tenant: Tenant, now: float) -> None:
        """The tenant has new jobs, a free slot or another limit."""

    def choose(self, now: float) -> Tenant | None:
        """The tenant whose next job is to be admitted; it may run."""

    def admitted(self, job: Job, now: float) -> None: ...

    def ended(self, job: Job, now: float) -> None: ...

    def sweep(self, tenants: list[Tenant], now: float) -> None: ...


class Pool:
    def __init__(self, workers: int, order: Order) -> None:
        self.now = 0.0
        self.workers = self.idle = workers
        self.order = order
        self.tenants: list[Tenant] = []
        self.when_ended: Callable[[Job], None] = lambda job: None
        self.wasted = 0.0
        """Worker seconds spent idle while a tenant had a waiting job and a free slot."""
        self._admitted: deque[Job] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._sweep()

    def add(self, tenant: Tenant) -> Tenant:
        self.tenants.append(tenant)
        self.order.may_have_changed(tenant, self.now)
        return tenant

    def at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._number), action))

    def enqueue(self, tenant: Tenant, *seconds: float) -> None:
        tenant.backlog.extend(Job(tenant, each, self.now) for each in seconds)
        self.order.may_have_changed(tenant, self.now)

    def set_limit(self, tenant: Tenant, limit: int) -> None:
        tenant.limit = limit
        self.order.may_have_changed(tenant, self.now)

    def run(self, until: float) -> None:
        self._serve()
        while self._events and self._events[0][0] <= until:
            moment, _, action = heapq.heappop(self._events)
            self._pass(moment)
            action()
            self._serve()
        self._pass(until)

    def _pass(self, moment: float) -> None:
        if moment > self.now and self.idle and any(tenant.may_run for tenant in self.tenants):
            self.wasted += self.idle * (moment - self.now)
        self.now = moment

    def _serve(self) -> None:
        self._fill_window()
        while self.idle and self._admitted:
            self._start(self._admitted.popleft())
            self._fill_window()

    def _fill_window(self) -> None:
        while len(self._admitted) < self.idle + self.order.window:
            tenant = self.order.choose(self.now)
            if tenant is None:
                return
            job = tenant.next_job(self.now)
            tenant.held += 1
            self.order.admitted(job, self.now)
            insort(self._admitted, job, key=lambda one: one.urgency)

    def _start(self, job: Job) -> None:
        job.started = self.now
        self.idle -= 1
        job.tenant.running.add(job)
        job.tenant.started.append(job)
        self.at(self.now + job.seconds, lambda: self._end(job))

    def _end(self, job: Job) -> None:
        self.idle += 1
        job.tenant.running.remove(job)
        job.tenant.held -= 1
        job.tenant.ended_seconds += job.seconds
        self.order.ended(job, self.now)
        self.when_ended(job)

    def _sweep(self) -> None:
        self.order.sweep(self.tenants, self.now)
        self.at(self.now + SWEEP_SECONDS, self._sweep)
