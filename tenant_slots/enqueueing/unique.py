"""``unique_for``: instead of storing a duplicate, the identical job that is under way is returned.

The partial unique constraint ``tenant_slots_one_per_unique_key`` decides, whoever enqueues at the same moment and in
whatever transaction: an INSERT waits for another one's commit or rollback, and looks again when it has lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Q, QuerySet

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.db.clock import ago
from tenant_slots.enqueueing.new_job import NewJob
from tenant_slots.exceptions import InvalidKey
from tenant_slots.models import TenantJob
from tenant_slots.tasks.arguments import json_problem
from tenant_slots.tasks.task import TaskCall
from tenant_slots.validation import is_name

TRIES = 20
"""Each lost try means that somebody else stored such a job; more than a few in a row means that we cannot see it."""

KEYS_PER_QUERY = 1000

LOCK_TIMEOUT_MS = 200
"""A worker's transaction holds a job's row for milliseconds; longer means that the caller's own transaction does."""


def digest_of(call: TaskCall, tenant: str, on: Mapping[str, str]) -> str:
    """What two identical jobs have in common; "" for a task without ``unique_for``.

    Args:
        call, tenant: the call and its tenant.
        on: the fields that keep a method's object.

    Raises:
        InvalidKey: ``unique_key`` gave something else than a str, an int or a UUID.
    """
    task = call.task
    if task.unique_for is None:
        return ""
    identity = [*on.values(), _arguments(call)] if task.unique_key is None else _key(call)
    text = json.dumps([task.path, tenant, identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def stored_once(
    unique_for: timedelta, new_jobs: list[NewJob], store: Callable[[list[NewJob]], object]
) -> tuple[list[TenantJob], list[TenantJob]]:
    """Store the jobs that are no duplicates.

    Args:
        unique_for: how old a job may be to stand for a later one.
        new_jobs: what the calls became, with their digests.
        store: stores the jobs that it is given, all or none; not called without any.

    Returns:
        The job of every call, and those among them that are new.

    Raises:
        IntegrityError: the caller's transaction cannot see what others have committed, as with REPEATABLE READ.
    """
    for tries_left in reversed(range(TRIES)):
        known = _under_way(unique_for, {new.job.unique_key for new in new_jobs})
        fresh = _firsts(new for new in new_jobs if new.job.unique_key not in known)
        try:
            if fresh:
                store(list(fresh.values()))
        except IntegrityError:
            if not tries_left:
                raise
        else:
            break
    stored = {digest: new.job for digest, new in fresh.items()}
    jobs = {**known, **stored}
    return [jobs[new.job.unique_key] for new in new_jobs], list(stored.values())


def revive(ended: QuerySet[TenantJob], **changes: Any) -> int:
    """Change jobs that have ended to ones that have not. A duplicate of one under way is no longer unique."""
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            return ended.update(**changes)
    except IntegrityError:
        return ended.update(**changes, unique_key="")


def _key(call: TaskCall) -> str:
    assert call.task.unique_key is not None
    value = call.answer_of(call.task.unique_key)
    if not is_name(value):
        raise InvalidKey(value=value, task=call.task.path, problem="unique_key must give a str, an int or a UUID")
    return str(value)


def _arguments(call: TaskCall) -> dict[str, Any]:
    """The arguments by name, however they were passed, with the defaults of the others.

    A default that is not JSON is left out: nobody can pass it, so it is the same in every call that leaves it out.
    """
    named = call.stored_arguments.items()
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in named}
    return {name: value for name, value in plain.items() if not json_problem(value)}


def _firsts(new_jobs: Iterable[NewJob]) -> dict[str, NewJob]:
    """The first of each digest, in their order."""
    firsts: dict[str, NewJob] = {}
    for new in new_jobs:
        firsts.setdefault(new.job.unique_key, new)
    return firsts


def _under_way(unique_for: timedelta, digests: set[str]) -> dict[str, TenantJob]:
    """The jobs that stand for later ones, by digest. Older ones lose their digest, so that another may be stored."""
    is_old = Q(enqueued_at__lte=ago(unique_for.total_seconds()))
    found: dict[str, TenantJob] = {}
    old = []
    for some in _chunks(sorted(digests)):
        for job in _active().filter(unique_key__in=some).select_related("tenant_queue").annotate(is_old=is_old):
            if job.is_old:
                old.append(job.pk)
            else:
                found[job.unique_key] = job
    if old:
        _forget(_active().filter(is_old), old)
    return found


def _active() -> QuerySet[TenantJob]:
    """The very condition of the constraint, so that its index is used."""
    active: QuerySet[TenantJob] = TenantJob.objects.not_ended().exclude(unique_key="")
    return active


def _forget(old: QuerySet[TenantJob], keys: list[int]) -> None:
    """Take the digests from these jobs, one transaction each.

    Not in a transaction of the caller, where that is possible: the job's row would stay locked until its end, and the
    worker that runs the job could not even send a heartbeat.
    """
    connection = connections[app_settings.DATABASE]
    if connection.vendor == "postgresql" and transactions.is_open(connection.alias):
        transactions.outside(partial(_forget_outside, old, keys))
    _forget_each(old, keys)


def _forget_each(old: QuerySet[TenantJob], keys: list[int]) -> None:
    for key in keys:
        old.filter(pk=key).update(unique_key="")


def _forget_outside(old: QuerySet[TenantJob], keys: list[int]) -> None:
    """In a session of its own. Rows that the caller's transaction made or locked are left to the caller."""
    for key in keys:
        with suppress(OperationalError), transaction.atomic(using=app_settings.DATABASE):
            transactions.send(app_settings.DATABASE, [f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_MS}ms'"])
            _forget_each(old, [key])


def _chunks(digests: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(digests), KEYS_PER_QUERY):
        yield digests[start : start + KEYS_PER_QUERY]
