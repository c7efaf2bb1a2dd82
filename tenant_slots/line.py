"""The waiting line: everything that moves a job without holding a slot."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import F
from django.utils import timezone
from rq.job import Job

from tenant_slots import (
    backpressure,
    bulk,
    dispatch,
    duplicates,
    lanes,
    methods,
    signals,
    slots,
    tenants,
    turning_away,
)
from tenant_slots.arguments import require_storable
from tenant_slots.busy import WAIT
from tenant_slots.conf import app_settings
from tenant_slots.decorators import Call, TenantTask
from tenant_slots.exceptions import InvalidOption, NotMigrated, NotRetryable
from tenant_slots.models import ENDED, DatabaseNow, State, TenantJob, TenantQueue
from tenant_slots.options import priority_problem

logger = logging.getLogger("tenant_slots")

JOBS_PER_STEP = 1000
"""Most jobs that leave the line in one transaction, so that the tenant's row is not locked for long."""


def enqueue_many(task: TenantTask[..., Any], calls: Iterable[Call]) -> list[TenantJob]:
    """Store the jobs of these calls, all or none, and admit them when that commits.

    Returns:
        The job of every call: of one whose like is under way, that one.
    """
    checked = [_checked(task, call) for call in calls]
    with naming_missing_tables():
        if task.unique_for is None:
            lanes.choose(task, checked)
            jobs = fresh = _stored(task, checked)
        else:
            jobs, fresh = duplicates.stored_once(task.unique_for, checked, _counting_once(task))
    if fresh:
        after_commit(partial(_send, signals.jobs_enqueued, jobs=fresh))
    of_row: dict[int, list[TenantJob]] = {}
    for job in fresh:
        of_row.setdefault(job.tenant_queue_id, []).append(job)
    for row, own in of_row.items():
        after_commit(partial(admit, row))
        if task.on_busy != WAIT:
            after_commit(partial(turn_away, row, own))
    return jobs


def admit(tenant_queue_id: int) -> None:
    """Let the head of a tenant's line into its free slots, and push to RQ."""
    push(slots.admit(tenant_queue_id))


def turn_away(tenant_queue_id: int, jobs: list[TenantJob], ask_until: float = math.inf) -> list[TenantJob]:
    """Have those of a tenant queue's jobs that found no free slot do what their `on_busy` says.

    Args:
        tenant_queue_id, jobs, ask_until: as of `turning_away.turn_away`.

    Returns:
        The discarded ones.
    """
    ended = []
    for discarded, admitted in turning_away.turn_away(tenant_queue_id, jobs, ask_until):
        push(admitted)
        for job in discarded:
            end_signal(job, State.CANCELED, job.error)
        ended += discarded
    return ended


def push(admitted: list[TenantJob]) -> None:
    """Hand admitted jobs to RQ once the admission is committed."""
    if admitted:
        after_commit(partial(dispatch.push, admitted))
        after_commit(partial(_send, signals.jobs_admitted, jobs=admitted))


def cancel(job: TenantJob) -> bool:
    """See `TenantJob.cancel`."""
    while True:
        job.refresh_from_db()
        if job.has_ended:
            return False
        if _ask_to_stop(job) if job.state == State.RUNNING else _cancel_unstarted(job):
            return True


def cancel_waiting(tenant_queue: TenantQueue, *, up_to: int) -> int:
    """Take a tenant's waiting jobs out of line, those that were enqueued later than the job `up_to` aside.

    Returns:
        How many. A job that got a slot meanwhile is not one of them.
    """
    canceled = 0
    while chunk := _cancel_chunk(tenant_queue, up_to):
        canceled += len(chunk)
    return canceled


def set_priority(job: TenantJob, priority: int) -> bool:
    """See `TenantJob.set_priority`."""
    if problem := priority_problem(priority):
        raise InvalidOption(option="priority", value=priority, task=job.task, problem=problem)
    with slots.locked(job.tenant_queue_id):
        unadmitted = TenantJob.objects.filter(pk=job.pk, state__in=(State.SCHEDULED, State.WAITING))
        changed = bool(unadmitted.update(priority=priority))
    job.refresh_from_db(fields=["priority", "state"])
    return changed


def retry(job: TenantJob) -> None:
    """See `TenantJob.retry`."""
    fresh = {
        "state": State.WAITING,
        "crashes": 0,
        "failures": 0,
        "cancel_requested_at": None,
        "ended_at": None,
    }
    if not duplicates.revive(TenantJob.objects.retryable().filter(pk=job.pk), **fresh):
        job.refresh_from_db()
        raise NotRetryable(job=job.uuid, state=_why_not_retryable(job))
    after_commit(partial(admit, job.tenant_queue_id))
    job.refresh_from_db()


def _why_not_retryable(job: TenantJob) -> str:
    if job.is_hold:
        return "a slot that other code held, so there is nothing to run"
    return "RQ's own, to be requeued there" if job.rq_job_id else job.state


def join(tenant_queue: TenantQueue, task: TenantTask[..., Any], rq_job: Job, key: str = "") -> TenantJob:
    """The place in line of a job that came through plain RQ: its own from an earlier try, else a new one at the end."""
    placed = TenantJob.objects.exclude(state__in=ENDED).filter(rq_job_id=rq_job.id).select_related("tenant_queue")
    found: TenantJob | None = placed.first()
    if found is None:
        try:
            with transaction.atomic(using=app_settings.DATABASE):
                found = TenantJob.objects.create(
                    tenant_queue=tenant_queue, task=task.path, rq_job_id=rq_job.id, rq_queue=rq_job.origin, key=key
                )
        except IntegrityError:
            found = placed.get()
    if found.state == State.SCHEDULED:
        TenantJob.objects.scheduled().filter(pk=found.pk).update(state=State.WAITING)
        found.refresh_from_db(fields=["state"])
    return found


def end_signal(job: TenantJob, state: State | None, error: str = "") -> None:
    """Tell the receivers where a job went that left its slot or the line."""
    job.state = state or job.state
    job.error = error
    if job.has_ended:
        after_commit(partial(_send, signals.job_ended, job=job))
    else:
        after_commit(partial(_send, signals.job_put_back, job=job, reason=error))


def after_commit(function: Callable[[], object]) -> None:
    """Run when the current transaction of our database has committed, at once without one.

    What was committed stands whatever happens here, so an error is logged and left to the sweep.
    """

    def run() -> None:
        try:
            function()
        except Exception:
            logger.exception("a step after a commit failed; the sweep will make up for it")

    transaction.on_commit(run, using=app_settings.DATABASE)


def _checked(task: TenantTask[..., Any], call: Call) -> tuple[str, TenantJob]:
    given, kwargs = tuple(call[0]), dict(call[1])
    on = methods.object_fields(task, given)
    args = list(given[1:] if on else given)
    tenant = tenants.tenant_of(task, given, kwargs)
    require_storable(task, args, kwargs)
    state = State.SCHEDULED if task.run_after and task.run_after > timezone.now() else State.WAITING
    job = TenantJob(
        task=task.path,
        args=args,
        kwargs=kwargs,
        options=task.stored_options,
        state=state,
        priority=task.priority,
        run_after=task.run_after,
        key=tenants.key_of(task, given, kwargs),
        unique_key=duplicates.digest_of(task, tenant, given, kwargs, on),
        **on,
    )
    return tenant, job


def _stored(task: TenantTask[..., Any], checked: list[tuple[str, TenantJob]]) -> list[TenantJob]:
    """The jobs, once they are in the database."""
    try:
        return _insert(task, checked)
    except IntegrityError:
        # Somebody deleted a tenant's row between our reading it and our commit. A second look makes it anew.
        if connections[app_settings.DATABASE].in_atomic_block:
            raise
        return _insert(task, checked)


def _counting_once(task: TenantTask[..., Any]) -> Callable[[list[tuple[str, TenantJob]]], object]:
    """An insert that may be tried again without counting a job for its lane a second time."""
    counted: set[int] = set()

    def insert(checked: list[tuple[str, TenantJob]]) -> list[TenantJob]:
        lanes.choose(task, [(tenant, job) for tenant, job in checked if id(job) not in counted])
        counted.update(id(job) for _, job in checked)
        return _insert(task, checked)

    return insert


def _insert(task: TenantTask[..., Any], checked: list[tuple[str, TenantJob]]) -> list[TenantJob]:
    names = sorted({tenant for tenant, _ in checked})
    rows = {tenant: tenants.tenant_queue_for(tenant, task.queue) for tenant in names}
    for name, number in Counter(tenant for tenant, job in checked if job.state == State.WAITING).items():
        backpressure.require_room(rows[name], number)
    for tenant, job in checked:
        job.tenant_queue, job.pk = rows[tenant], None
    jobs = [job for _, job in checked]
    with transaction.atomic(using=app_settings.DATABASE):
        bulk.insert(jobs)
    return jobs


@contextmanager
def naming_missing_tables() -> Iterator[None]:
    """Turns "relation does not exist" into the one thing to do about it."""
    try:
        yield
    except DatabaseError as error:
        if _tables_are_missing():
            raise NotMigrated(database=app_settings.DATABASE) from error
        raise


def _tables_are_missing() -> bool:
    connection = connections[app_settings.DATABASE]
    if connection.needs_rollback:
        return False
    return TenantJob._meta.db_table not in connection.introspection.table_names()


def _cancel_unstarted(job: TenantJob) -> bool:
    """False when the job moved on meanwhile."""
    if job.state == State.QUEUED:
        released = slots.release(job, states=(State.QUEUED,), state=State.CANCELED)
        push(released.admitted)
        done = bool(released)
    else:
        done = leave(job)
    if done:
        after_commit(partial(dispatch.remove, job))
        job.refresh_from_db()
        end_signal(job, State.CANCELED, job.error)
    return done


def leave(job: TenantJob, error: str = "") -> bool:
    """Take a job out of line. False when it is not there any more; then it may hold a slot."""
    with slots.locked(job.tenant_queue_id):
        unstarted = TenantJob.objects.filter(pk=job.pk, state__in=(State.SCHEDULED, State.WAITING))
        return bool(unstarted.update(state=State.CANCELED, ended_at=DatabaseNow(), error=error or F("error")))


def _cancel_chunk(tenant_queue: TenantQueue, up_to: int) -> list[TenantJob]:
    with slots.locked(tenant_queue.pk) as row:
        line = row.jobs.waiting().filter(pk__lte=up_to).defer("args", "kwargs", "result", "error")
        jobs = list(line.order_by("pk")[:JOBS_PER_STEP])
        ended = {"state": State.CANCELED, "ended_at": DatabaseNow()}
        TenantJob.objects.waiting().filter(pk__in=[job.pk for job in jobs]).update(**ended)
    for job in jobs:
        job.tenant_queue = row
        if job.rq_job_id:
            after_commit(partial(dispatch.remove, job))
        end_signal(job, State.CANCELED)
    return jobs


def _ask_to_stop(job: TenantJob) -> bool:
    """False when the job ended, or went back to wait, meanwhile."""
    with slots.locked(job.tenant_queue_id):
        asked = TenantJob.objects.held_as(job).update(cancel_requested_at=DatabaseNow())
    if not asked:
        return False
    after_commit(partial(dispatch.stop, job))
    return True


def _send(signal: Any, **facts: Any) -> None:
    signal.send_robust(sender=TenantJob, **facts)
