"""Running what waits in this process, without a worker and without Redis: in tests, and in immediate mode."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

from django.db.models import Min

from tenant_slots import chains, logs, slots, transitions
from tenant_slots.db import transactions
from tenant_slots.db.clock import ago
from tenant_slots.enqueueing import expiry
from tenant_slots.fair_order import Freed
from tenant_slots.hand_over import Choosing
from tenant_slots.models import State, TenantJob, TenantJobQuerySet, rq_queue_of
from tenant_slots.owners import Owner
from tenant_slots.releases import Admission
from tenant_slots.running.asking import ask_promoted
from tenant_slots.running.coroutines import called_here
from tenant_slots.running.run import Run
from tenant_slots.running.runner import run_in_slot, run_stored
from tenant_slots.tasks.tenant_busy import TenantBusy

logger = logging.getLogger("tenant_slots")

Lane = tuple[int, str]
"""The primary key of a tenant queue, and an RQ queue in which its jobs wait."""

Turns = Counter[int]
"""How many turns each tenant queue has had."""

HAS_RAISED = "%s for %r raised"
"""What the log says of a job that fails here: its error is in its row, and may have been told by its context."""

_offered: ContextVar[set[int] | None] = ContextVar("tenant_slots_offered", default=None)
"""While jobs run at once: the tenant queues that have something to run."""


def run_at_once(tenant_queues: Collection[int]) -> None:
    """Immediate mode: run what these tenant queues may start, until nothing may.

    What a job enqueues runs when the job has ended. Errors are in the log and in the jobs.
    """
    offered = _offered.get()
    if offered is not None:
        offered.update(tenant_queues)
        return
    offered, turns = set(tenant_queues), Turns()
    token = _offered.set(offered)
    try:
        while run_next("immediate", turns, among=offered):
            pass
    finally:
        _offered.reset(token)


def run_next(
    worker: str,
    turns: Turns,
    *,
    scheduled: bool = False,
    among: Collection[int] | None = None,
    choosing: Choosing = lambda job: None,
) -> TenantJob | None:
    """Run one job, of the tenant queue that has had the fewest turns. None when no job may start.

    Args:
        worker: what the job has as its worker.
        turns: counted here.
        scheduled: also what is scheduled for later, as if its time had come.
        among: these tenant queues only.
        choosing: called with the job before it is marked as running. If it raises, the job stays as it is.
    """
    _promote(_of(among), scheduled)
    ask_promoted(_of(among))
    for lane in sorted(_lanes(_of(among)), key=lambda lane: turns[lane[0]]):
        run = _RunHere(worker, choosing)
        if job := run.take_first(lane):
            turns[lane[0]] += 1
            try:
                with called_here():
                    run_in_slot(run, _run_apart)
            except TenantBusy:
                pass
            except BaseException as error:  # the row has it
                if _ends_more_than_the_job(error):
                    raise
                logger.exception(HAS_RAISED, job, job.tenant_queue.tenant, extra=logs.about(job))
            return job
    return None


def _ends_more_than_the_job(error: BaseException) -> bool:
    """Somebody at the keyboard, or a test that has come to its end inside the job."""
    pytest = sys.modules.get("pytest")
    outcomes = (pytest.fail.Exception, pytest.skip.Exception) if pytest else ()
    return isinstance(error, (KeyboardInterrupt, *outcomes))


class _RunHere(Run):
    """Nobody waits for what becomes free: the next job is looked for when this one has ended."""

    def __init__(self, worker: str, choosing: Choosing) -> None:
        super().__init__(worker)
        self._choosing = choosing

    def take_first(self, lane: Lane) -> TenantJob | None:
        """One that was admitted for a worker goes first. Where commits are real this happens at once."""
        if not any(self.begin(job.uuid, job.attempt) for job in _admitted(lane)):
            self._admit_first(lane)
        return self.job

    def _admit_first(self, lane: Lane) -> None:
        """Others may have a slot before it: plain RQ jobs, which RQ is to run then, and reservations."""
        self._prepare()
        owner = self.owner
        admission = Admission(has_more=True)
        while self.job is None and admission.has_more:
            admission = slots.admit_and_start(*lane, owner, partial(self._taking, owner=owner))
            self._has_taken(admission, owner)
            transitions.push(admission.jobs, lane[1])
        if self.job is not None:
            self.tell_started(self.job)

    def _taking(self, job: TenantJob, owner: Owner) -> None:
        self._choosing(job)
        super()._taking(job, owner)

    def tell_started(self, job: TenantJob) -> None:
        with transactions.kept_unbroken():
            super().tell_started(job)

    def _free(self, slot: Freed) -> None:
        """Its tenant gets no turn by it."""


def _run_apart(job: TenantJob) -> Any:
    """An error of the database would otherwise take a transaction along that is open here, as in a `TestCase`."""
    with transactions.kept_unbroken():
        return run_stored(job)


def _of(tenant_queues: Collection[int] | None) -> TenantJobQuerySet:
    """Those that nobody else runs: a reservation has no function, and RQ has its own."""
    found: TenantJobQuerySet = TenantJob.objects.jobs().filter(rq_job_id="")
    return found if tenant_queues is None else found.filter(tenant_queue__in=tenant_queues)


def _promote(jobs: TenantJobQuerySet, scheduled: bool) -> None:
    expired = jobs.expired() | jobs.expired_with_slot()
    for tenant_queue_id in list(expired.values_list("tenant_queue", flat=True).distinct()):
        while expiry.cancel_expired(tenant_queue_id):
            pass
    while tenants := chains.concerned():  # no transaction may have committed, after which they would have been told
        for tenant_queue_id in tenants:
            transitions.tell_some(tenant_queue_id)
    due = jobs.scheduled().filter(**{"run_after__isnull": False} if scheduled else {"run_after__lte": ago(0)})
    due.update(state=State.WAITING)


def _admitted(lane: Lane) -> Iterator[TenantJob]:
    """Those of a lane that wait for a worker, each once: one that does not begin is put back, and lets another come."""
    seen: set[int] = set()
    admitted = _of([lane[0]]).queued().select_related("tenant_queue").order_by("-priority", "pk")
    while job := next((job for job in admitted.exclude(pk__in=seen) if job.rq_queue_name == lane[1]), None):
        seen.add(job.pk)
        yield job


def _lanes(jobs: TenantJobQuerySet) -> Iterator[Lane]:
    """Where jobs wait or were admitted, the one that has waited for longest first."""
    ready = jobs.filter(state__in=(State.WAITING, State.QUEUED))
    lanes = ready.values_list("tenant_queue_id", "tenant_queue__queue", "rq_queue").annotate(first=Min("pk"))
    for pk, queue, overflow_queue, _ in lanes.order_by("first"):
        yield pk, rq_queue_of(overflow_queue, queue)
