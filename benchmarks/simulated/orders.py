"""The orders that are compared: first come first served, turns, fair by worker time, and that by the book."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from itertools import count

from benchmarks.simulated.pool import Job, Tenant

RECENT = 0.2
"""Weight of the last job in a mean run time."""

UNKNOWN_SECONDS = 1.0
"""What a job is expected to take while the queue has not seen one end."""


class Fifo:
    """Each job that its tenant's limit allows joins one list at once."""

    window = math.inf

    def __init__(self) -> None:
        self._changed: deque[Tenant] = deque()

    def may_have_changed(self, tenant: Tenant, now: float) -> None:
        self._changed.append(tenant)

    def choose(self, now: float) -> Tenant | None:
        while self._changed:
            if self._changed[0].may_run:
                return self._changed[0]
            self._changed.popleft()
        return None

    def admitted(self, job: Job, now: float) -> None:
        pass

    def ended(self, job: Job, now: float) -> None:
        self.may_have_changed(job.tenant, now)

    def sweep(self, tenants: list[Tenant], now: float) -> None:
        pass


class RoundRobin:
    """Tenants take turns: a worker that gets free starts one job of the next tenant."""

    window = 0.0

    def __init__(self) -> None:
        self._turns: dict[Tenant, None] = {}

    def may_have_changed(self, tenant: Tenant, now: float) -> None:
        if tenant.may_run:
            self._turns.setdefault(tenant)

    def choose(self, now: float) -> Tenant | None:
        while self._turns:
            tenant = next(iter(self._turns))
            del self._turns[tenant]
            if tenant.may_run:
                return tenant
        return None

    def admitted(self, job: Job, now: float) -> None:
        self.may_have_changed(job.tenant, now)

    def ended(self, job: Job, now: float) -> None:
        self.may_have_changed(job.tenant, now)

    def sweep(self, tenants: list[Tenant], now: float) -> None:
        pass


Place = tuple[float, int]
"""Virtual time; and who came first, where that is the same."""


@dataclass(slots=True)
class Standing:
    """What the fair order knows of a tenant. Times are worker seconds, divided by the share where they are virtual."""

    settled: float = 0.0
    """Virtual: measured time of ended jobs, and what was added when it came back."""
    charged: float = 0.0
    """For all admitted jobs that have not ended."""
    mean: float | None = None
    left_at: float = -math.inf
    left_with: float = 0.0
    """`measured` when it dropped out."""
    left_empty: bool = True
    in_order: bool = False
    place: Place = (0.0, 0)


class Fair:
    """The tenant that has had the least worker time for its share is next. See docs/explanation/fair-order.md."""

    def __init__(self, workers: int, window: float = 0.0, sorted_window: bool = False) -> None:
        self.window = window
        self._sorted_window = sorted_window
        self.clock = 0.0
        self._workers = workers
        self._mean: float | None = None
        self._standings: dict[Tenant, Standing] = {}
        self._places: list[tuple[Place, Tenant]] = []
        self._number = count()

    def may_have_changed(self, tenant: Tenant, now: float) -> None:
        standing = self._of(tenant)
        if tenant.may_run and not standing.in_order:
            self._come_back(tenant, standing, now)

    def choose(self, now: float) -> Tenant | None:
        while (tenant := self._first()) is not None:
            if tenant.may_run:
                return tenant
            self._drop_out(tenant, now)
        return None

    def admitted(self, job: Job, now: float) -> None:
        tenant, standing = job.tenant, self._of(job.tenant)
        self.clock = max(self.clock, self._reached(tenant, now))
        job.urgency = standing.place[0] if self._sorted_window else 0.0
        job.charge = self._expected(standing)
        standing.charged += job.charge
        if tenant.may_run:
            self._take_place(tenant, standing)
        else:
            self._drop_out(tenant, now)

    def ended(self, job: Job, now: float) -> None:
        standing, seconds = self._of(job.tenant), now - job.started
        standing.charged -= job.charge
        standing.settled += seconds / job.tenant.share
        standing.mean = _moved(standing.mean, seconds)
        self._mean = _moved(self._mean, seconds)
        if standing.in_order:
            self._take_place(job.tenant, standing)
        self.may_have_changed(job.tenant, now)

    def sweep(self, tenants: list[Tenant], now: float) -> None:
        """Charge running jobs for what they have taken; move the clock when nobody who waits moves it."""
        for tenant in tenants:
            more = sum(self._charge_again(job, now) for job in tenant.running)
            if more and self._of(tenant).in_order:
                self._take_place(tenant, self._of(tenant))
        self._move_clock(tenants, now)

    def measured(self, tenant: Tenant, now: float) -> float:
        """Its virtual time without what is only expected."""
        return self._of(tenant).settled + sum(now - job.started for job in tenant.running) / tenant.share

    def charged(self, tenant: Tenant) -> float:
        """Its virtual time, by which tenants stand in order."""
        standing = self._of(tenant)
        return standing.settled + standing.charged / tenant.share

    def _reached(self, chosen: Tenant, now: float) -> float:
        """Where the clock is when this tenant is chosen. What is only expected does not count: see the stale mean."""
        return self.measured(chosen, now)

    def _move_clock(self, tenants: list[Tenant], now: float) -> None:
        if self._first() is None:
            reached = [self.measured(tenant, now) for tenant in tenants if tenant.running]
            self.clock = max(self.clock, min(reached, default=0.0))

    def _start_of(self, standing: Standing, now: float) -> float:
        """Where a tenant begins that comes back: at the clock, but it loses no more than it can have missed."""
        return min(self.clock, standing.left_with + self._workers * (now - standing.left_at))

    def _is_newcomer(self, tenant: Tenant, standing: Standing) -> bool:
        """It had nothing to run and has had no more than its share: only other newcomers go before it."""
        return standing.left_empty and not tenant.held and self.charged(tenant) <= self.clock

    def _come_back(self, tenant: Tenant, standing: Standing, now: float) -> None:
        standing.settled += max(0.0, self._start_of(standing, now) - self.charged(tenant))
        self._take_place(tenant, standing, first=self._is_newcomer(tenant, standing))

    def _take_place(self, tenant: Tenant, standing: Standing, first: bool = False) -> None:
        standing.in_order = True
        standing.place = (-math.inf if first else self.charged(tenant), next(self._number))
        heapq.heappush(self._places, (standing.place, tenant))

    def _drop_out(self, tenant: Tenant, now: float) -> None:
        standing = self._of(tenant)
        standing.in_order = False
        standing.left_at, standing.left_with = now, self.measured(tenant, now)
        standing.left_empty = not (tenant.backlog or tenant.endless)

    def _first(self) -> Tenant | None:
        while self._places:
            place, tenant = self._places[0]
            standing = self._of(tenant)
            if standing.in_order and standing.place == place:
                return tenant
            heapq.heappop(self._places)
        return None

    def _expected(self, standing: Standing) -> float:
        known = standing.mean if standing.mean is not None else self._mean
        return UNKNOWN_SECONDS if known is None else known

    def _charge_again(self, job: Job, now: float) -> float:
        more = max(0.0, now - job.started - job.charge)
        job.charge += more
        self._of(job.tenant).charged += more
        return more

    def _of(self, tenant: Tenant) -> Standing:
        return self._standings.setdefault(tenant, Standing())


class Textbook(Fair):
    """Start-time fair queueing as it is for packets, with expected sizes for known ones. A control: it can be gamed."""

    def _reached(self, chosen: Tenant, now: float) -> float:
        return self.charged(chosen)

    def _move_clock(self, tenants: list[Tenant], now: float) -> None:
        pass

    def _start_of(self, standing: Standing, now: float) -> float:
        return self.clock

    def _is_newcomer(self, tenant: Tenant, standing: Standing) -> bool:
        return False


def _moved(mean: float | None, seconds: float) -> float:
    return seconds if mean is None else mean + RECENT * (seconds - mean)
