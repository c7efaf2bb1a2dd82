"""Enqueueing: check the calls, store their jobs, all or none, and admit them once that has committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from tenant_slots import tenants, transitions
from tenant_slots.db import clock
from tenant_slots.db.commits import after_commit
from tenant_slots.db.migrated import naming_missing_tables
from tenant_slots.enqueueing import after, backlog_limit, bulk, debounce, identity, on_busy, overflow, unique
from tenant_slots.enqueueing.new_job import NewJob, Stored, job_like, job_with
from tenant_slots.exceptions import ImproperJob, InvalidOption
from tenant_slots.models import State, TenantJob
from tenant_slots.tasks import methods
from tenant_slots.tasks.arguments import require_storable
from tenant_slots.tasks.context import capture_context
from tenant_slots.tasks.on_busy import WAIT
from tenant_slots.tasks.registry import place_problem
from tenant_slots.tasks.task import Arguments, TenantTask


def enqueue_many(task: TenantTask[..., Any], calls: Iterable[Arguments]) -> list[TenantJob]:
    """Store the jobs of these calls, all or none, and admit them when that commits.

    Returns:
        The job of every call: of a duplicate, the one that is under way.

    Raises:
        ImproperJob: no worker can import the function.
    """
    _require_importable(task)
    with naming_missing_tables():
        after.require_stored(task.path, task.after)
        run_after, later = _times(task)
        state = State.SCHEDULED if later or task.after else State.WAITING
        alike = job_with(
            task=task.path,
            options=task.stored_options | (after.not_before(later) if later and task.after else {}),
            context=capture_context(),
            asks=state == State.SCHEDULED and task.on_busy != WAIT,
            state=state,
            priority=task.priority,
            run_after=None if task.after else run_after,
            expires_at=_end_of_wait(task, later),
        )
        new_jobs = [_checked(task, call, alike) for call in calls]
        jobs, fresh, held = _stored(task, new_jobs)
    if fresh:
        transitions.stored(fresh)
        if task.after:
            transitions.await_jobs(task.after)
    waiting = [job for job in fresh if job.state == State.WAITING] + held
    for rq_queue, tenants_there in _turns(waiting).items():
        after_commit(partial(transitions.offer_many, rq_queue, tenants_there))
    if task.on_busy != WAIT:
        for row, own in _by_tenant_queue(fresh).items():
            after_commit(partial(on_busy.turn_away_new, row, own))
    return jobs


def _require_importable(task: TenantTask[..., Any]) -> None:
    """Raises ImproperJob for a function that no worker can find, so that its jobs would wait for one in vain."""
    if problem := place_problem(task.path):
        raise ImproperJob(name=task.function.__qualname__, problem=problem)


def _times(task: TenantTask[..., Any]) -> tuple[datetime | None, datetime | None]:
    """Before which the jobs do not start, and the same if that is still to come."""
    if task.debounce is not None:
        later = clock.now() + task.debounce
        return later, later
    return task.run_after, task.run_after if task.run_after and task.run_after > clock.now() else None


def _end_of_wait(task: TenantTask[..., Any], later: datetime | None) -> datetime | None:
    """Raises InvalidOption where that comes before the jobs may start."""
    if task.expires is None:
        return None
    end = clock.now() + task.expires
    if later is not None and later >= end:
        problem = f"it would expire before it may start: run_after is {later}"
        raise InvalidOption(option="expires", value=task.expires, task=task.path, problem=problem)
    return end


def _stored(task: TenantTask[..., Any], new_jobs: list[NewJob]) -> Stored:
    if task.unique_for is not None:
        return unique.stored_once(task, new_jobs, partial(_store, task))
    if task.debounce is not None:
        return debounce.stored_or_moved(task, new_jobs, partial(_store, task))
    is_one = len(new_jobs) == 1 and not task.after
    store = partial(_store_one, task, new_jobs[0]) if is_one else partial(_store, task, bulk.insert, new_jobs)
    tenants.though_deleted(store)
    jobs = [new.job for new in new_jobs]
    return Stored(jobs, jobs, [])


def _turns(jobs: list[TenantJob]) -> dict[str, list[tuple[int, int]]]:
    """Which tenants have something to run by RQ queue, each once, with their share."""
    turns: dict[str, dict[tuple[int, int], None]] = {}
    for job in jobs:
        turns.setdefault(job.rq_queue_name, {})[job.tenant_queue_id, job.tenant_queue.share] = None
    return {rq_queue: list(own) for rq_queue, own in turns.items()}


def _checked(task: TenantTask[..., Any], arguments: Arguments, alike: TenantJob) -> NewJob:
    """The job of a call. It has from `alike` what all of them have."""
    args = tuple(arguments[0])
    on = methods.object_fields(task, args)
    call = task.called_with(args, arguments[1])
    tenant = tenants.tenant_of(call)
    require_storable(call)
    own = {
        "uuid": uuid4(),
        "args": call.stored_args,
        "kwargs": call.kwargs,
        "key": tenants.key_of(call),
        "unique_key": identity.digest_of(call, tenant, on),
        "stats": {},
        **on,
    }
    return NewJob(tenant, job_like(alike, own))


def _store_one(task: TenantTask[..., Any], new: NewJob) -> None:
    """As `_store`. For most of them the tenant queue need not be known before."""
    overflow.choose(task, [new])
    tenants.require_queue(task.queue)
    if not bulk.insert_for_tenant(new.job, new.tenant, task.queue):
        _store(task, bulk.insert, [new])


def _store(task: TenantTask[..., Any], insert: unique.Insert, new_jobs: list[NewJob]) -> None:
    overflow.choose(task, new_jobs)
    rows = tenants.tenant_queues_for({new.tenant for new in new_jobs}, task.queue)
    for tenant, number in Counter(new.tenant for new in new_jobs if new.job.state == State.WAITING).items():
        backlog_limit.require_room(rows[tenant], number)
    for new in new_jobs:
        new.job.tenant_queue = rows[new.tenant]
    jobs = [new.job for new in new_jobs]
    after.insert_waiting(task, insert, jobs) if task.after else insert(jobs)


def _by_tenant_queue(jobs: list[TenantJob]) -> dict[int, list[TenantJob]]:
    rows: dict[int, list[TenantJob]] = {}
    for job in jobs:
        rows.setdefault(job.tenant_queue_id, []).append(job)
    return rows
