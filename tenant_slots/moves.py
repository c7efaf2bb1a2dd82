"""What is written when a job moves into a slot or out of it, while its tenant queue is locked.

Nearly always all of it is sent `at_once`, because others wait for the row during each round trip. That expects each
statement to change what it names. Where one does not, `NotAsExpected` ends the transaction, so that nothing has
happened, and whoever began it does the same again step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tenant_slots import locks, tenant_rows
from tenant_slots.db.compiled import Asked, together
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.releases import Release
from tenant_slots.statements import (
    CLAIM,
    CLAIM_ALL,
    CLAIM_AND_START,
    CLAIMED,
    GIVE_BACK,
    GIVE_BACK_THEN,
    GIVE_TOKEN_BACK,
    TAKE,
    TAKE_AT_RATE,
    UNHELD,
    leaving,
)
from tenant_slots.tasks import attempts

ENDED_BEFORE = "it had ended before it could be stopped"

OF_TENANT_QUEUE: Any = TenantJob._meta.get_field("tenant_queue")

MOMENT = timedelta(milliseconds=1)
"""After a heartbeat, and before any other one. SQLite compares times as text, of more or fewer digits."""


class NotAsExpected(Exception):
    """One of the statements that were sent together has changed nothing: the transaction must not be committed."""


def at_once(*writes: Asked, is_last: bool = False) -> list[Any]:
    """Send these in one round trip, and give what each gives.

    Args:
        is_last: nothing else is asked in this transaction, which may be committed by the way.

    Raises:
        NotAsExpected: one of them has changed no row.
    """
    answers = locks.update_last(*writes) if is_last else together((), *writes)
    if answers is None or not all(answers):
        raise NotAsExpected
    return answers


@dataclass(frozen=True)
class Leaving:
    """A job that is to leave its slot."""

    job: TenantJob
    """As this process started or read it: nothing changes unless the row has the same `attempt` and `token`."""
    states: tuple[State, ...]
    """Nothing changes unless the job is in one of these."""
    values: dict[str, Any]
    """The new values of fields; `state` is one of them."""
    later: float | None = None
    """Seconds from now until the job's new `run_after`."""
    unbegun: bool = False
    """It was marked as running, and goes back because its function was never called."""
    silent: bool = False
    """Nothing changes if a heartbeat has come since the job was read."""

    @property
    def state(self) -> State:
        """Where it goes."""
        return State(self.values["state"])

    def canceled(self, row: TenantJob) -> Leaving:
        """The same, to where a job goes whose cancel was requested. A run that has ended well by then is kept too."""
        values = {**self.values, "state": State.CANCELED}
        if "runs" not in values and row.has_begun and not self.unbegun:
            values |= attempts.noted(row, attempts.CANCELED, ENDED_BEFORE, row.worker, None)
        return replace(self, values=values, later=None, unbegun=False)

    def asked(self) -> Asked:
        """What writes it."""
        values = as_ended(self.values)
        statement = leaving(self.states, self.state, self.later is not None, self.unbegun, self.silent, tuple(values))
        fence = {"pk": self.job.pk, "attempt": self.job.attempt, "token": self.job.token}
        if self.silent:
            fence["heard_at"] = self.job.beat_at + MOMENT
        return Asked(statement, {**values, **fence, "later": timedelta(seconds=self.later or 0)})


def leave_if_free(leaver: Leaving) -> Release:
    """As `leave`, with the slot given back, as a transaction of its own and in one round trip. Falsy: nothing was done.

    Only where nothing else follows for the tenant queue, which nobody holds, and whose name the job knows already.
    """
    job = leaver.job
    if not OF_TENANT_QUEUE.is_cached(job):
        return Release(None)
    counting = Asked(GIVE_BACK_THEN, {"pk": job.tenant_queue_id, "slots": 1})
    found = locks.update_if_free(job.tenant_queue_id, leaver.asked(), counting)
    if not found:
        return Release(None)
    row = job.tenant_queue  # whose names receivers ask for; what else was known of it is old by now
    job.tenant_queue = tenant_rows.named(id=row.pk, tenant=row.tenant, queue=row.queue)
    return _released(leaver, found)


def leave_at_once(
    leaver: Leaving, tenant_queue: TenantQueue, *also: Asked, is_last: bool = False
) -> tuple[Release, list[Any]]:
    """As `leave`, together with what else is written; gives the answers to that too.

    Args:
        is_last: as of `at_once`.

    Raises:
        NotAsExpected: as `at_once`.
    """
    leaver.job.tenant_queue = tenant_queue
    left, *answers = at_once(leaver.asked(), *also, is_last=is_last)
    return _released(leaver, left), answers


def leave(leaver: Leaving, tenant_queue: TenantQueue) -> Release:
    """Where the job went: to the state that it was to go to, or to canceled if that was requested meanwhile.

    `leaving` refuses a job whose cancel was requested: it does not run again, and whoever was told that it will be
    canceled does not see that it has finished.
    """
    leaver.job.tenant_queue = tenant_queue  # whoever is told of the end asks for the tenant
    if released := _left(leaver):
        return released
    wanted = TenantJob.objects.held_as(leaver.job).exclude(cancel_requested_at=None).first()
    return _left(leaver.canceled(wanted)) if wanted is not None else Release(None)


def as_ended(values: dict[str, Any]) -> dict[str, Any]:
    """The new values of a job that leaves: each failed one has the class of its error, and no other one has."""
    if values["state"] == State.FAILED:
        return {"error_class": "", **values}
    return {name: value for name, value in values.items() if name != "error_class"}


def freed_by_one(tenant_queue: TenantQueue) -> int:
    """A job leaves its slot. A counter of 0 was wrong before, and is not lowered: the sweep sets it right."""
    freed = min(1, tenant_queue.current_job)
    tenant_queue.current_job -= freed
    return freed


def counting(tenant_queue: TenantQueue, freed: int, taken: int) -> list[Asked]:
    """What writes how many slots were taken, `freed` of which the counter still has as taken.

    Where exactly these change hands, the row is not written. It was read under its lock, so what it says of the limit,
    of the pause and of the counter is what the database has until this transaction ends.
    """
    pk = tenant_queue.pk
    if taken and tenant_queue.rate_number is not None:
        return [Asked(TAKE_AT_RATE, {"pk": pk, "slots": taken - freed, "starts": taken})]
    if taken > freed:
        return [Asked(TAKE, {"pk": pk, "slots": taken - freed})]
    if taken < freed:
        return [Asked(GIVE_BACK, {"pk": pk, "slots": freed - taken})]
    return []


def count(tenant_queue: TenantQueue, freed: int, taken: int) -> bool:
    """Send `counting`. False: the slots are not free."""
    return all(together((), *counting(tenant_queue, freed, taken)))


def starting(job: TenantJob, owner: Owner) -> Asked:
    """What admits a job and marks it as running, and gives its row."""
    return Asked(CLAIM_AND_START, {"pk": job.pk, **owner.as_fields()})


def start_one(tenant_queue: TenantQueue, job: TenantJob, owner: Owner) -> TenantJob | None:
    """Send `starting` for a job that was counted. None: it has vanished, and is counted no more."""
    started: TenantJob | None = next(iter(together((), starting(job, owner))[0]), None)
    if started is None:
        _uncount(tenant_queue, 1)
    else:
        started.tenant_queue = tenant_queue
    return started


def claimed(tenant_queue: TenantQueue, heads: list[TenantJob]) -> list[TenantJob]:
    """Mark the heads as queued; returns those that were.

    The lock keeps nobody from deleting a job's row by SQL, or from enqueueing a debounced call that moves it.
    """
    found = _claim(heads)
    if vanished := len(heads) - len(found):
        _uncount(tenant_queue, vanished)
    for job in found:
        job.tenant_queue, job.state, job.attempt = tenant_queue, State.QUEUED, job.attempt + 1
    return found


def unheld(jobs: list[TenantJob]) -> list[TenantJob]:
    """Those of these waiting jobs that nobody else has locked, to claim them in this transaction."""
    if not jobs:
        return []
    there = {pk for (pk,) in UNHELD.lists(pks=[job.pk for job in jobs])}
    return [job for job in jobs if job.pk in there]


def _uncount(tenant_queue: TenantQueue, vanished: int) -> None:
    """Of jobs that were counted so many have no slot after all, and never start with the tokens that they took."""
    GIVE_BACK.update(pk=tenant_queue.pk, slots=vanished)
    if tenant_queue.rate_number is not None:
        for _ in range(vanished):
            GIVE_TOKEN_BACK.update(pk=tenant_queue.pk)


def _claim(heads: list[TenantJob]) -> list[TenantJob]:
    if len(heads) <= 1:
        return [job for job in heads if CLAIM.update(pk=job.pk)]
    pks = [job.pk for job in heads]
    if CLAIM_ALL.update(pks=pks) == len(heads):
        return heads
    there = {pk for (pk,) in CLAIMED.lists(pks=pks)}
    return [job for job in heads if job.pk in there]


def _left(leaver: Leaving) -> Release:
    (found,) = together((), leaver.asked())
    return _released(leaver, found) if found else Release(None)


def _released(leaver: Leaving, found: list[Any]) -> Release:
    if "runs" in leaver.values:
        leaver.job.runs = leaver.values["runs"]  # as its row has them: whoever is told of the end may look there
    ((_, is_awaited),) = found
    return Release(leaver.state, is_awaited=is_awaited)
