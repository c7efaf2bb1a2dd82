"""``unique_for``: an identical job that is under way is returned instead of storing a second one.

The partial unique constraint ``tenant_slots_one_per_unique_key`` decides, whoever enqueues at the same moment and in
whatever transaction: an INSERT waits for another one's commit or rollback, and looks again when it has lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Q, QuerySet

from tenant_slots.arguments import json_problem
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import InvalidKey
from tenant_slots.models import ENDED, TenantJob
from tenant_slots.time_buckets import ago

if TYPE_CHECKING:
    from tenant_slots.decorators import TenantTask

Checked = tuple[str, TenantJob]
"""A tenant and its job that is not stored yet."""

TRIES = 20
"""Each lost try means that somebody else stored such a job; more than a few in a row means that we cannot see it."""

KEYS_PER_QUERY = 1000

LOCK_TIMEOUT_MS = 200
"""A worker's transaction holds a job's row for milliseconds; longer means that the caller's own transaction does."""


def digest_of(
    task: TenantTask[..., Any], tenant: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], on: Mapping[str, str]
) -> str:
    """What two identical jobs have in common; "" for a task without ``unique_for``.

    Args:
        task, tenant, args, kwargs: the call.
        on: the fields that keep a method's object.

    Raises:
        InvalidKey: ``unique_key`` gave something else than a str, an int or a UUID.
    """
    if task.unique_for is None:
        return ""
    identity = [*on.values(), _arguments(task, args, kwargs)] if task.unique_key is None else _key(task, args, kwargs)
    text = json.dumps([task.path, tenant, identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def stored_once(
    unique_for: timedelta, checked: list[Checked], store: Callable[[list[Checked]], object]
) -> tuple[list[TenantJob], list[TenantJob]]:
    """Store the jobs whose like is not under way.

    Args:
        unique_for: how old a job may be to stand for a later one.
        checked: the calls, whose jobs have their digests.
        store: stores the jobs that it is given, all or none; not called without any.

    Returns:
        The job of every call, and those among them that are new.

    Raises:
        IntegrityError: the caller's transaction cannot see what others have committed, as with REPEATABLE READ.
    """
    for tries_left in reversed(range(TRIES)):
        known = _under_way(unique_for, [job.unique_key for _, job in checked])
        fresh = _firsts([call for call in checked if call[1].unique_key not in known])
        try:
            if fresh:
                store(list(fresh.values()))
        except IntegrityError:
            if not tries_left:
                raise
        else:
            break
    new = {digest: job for digest, (_, job) in fresh.items()}
    jobs = {**known, **new}
    return [jobs[job.unique_key] for _, job in checked], list(new.values())


def revive(ended: QuerySet[TenantJob], **changes: Any) -> int:
    """Change jobs that have ended to ones that have not. One whose like is under way is no longer unique."""
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            return ended.update(**changes)
    except IntegrityError:
        return ended.update(**changes, unique_key="")


def _key(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    assert task.unique_key is not None
    value = task.unique_key(*args, **kwargs)
    if isinstance(value, bool) or not isinstance(value, (str, int, UUID)):
        raise InvalidKey(value=value, task=task.path, problem="unique_key must give a str, an int or a UUID")
    return str(value)


def _arguments(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, however they were passed, with the defaults of the others.

    A default that is not JSON is left out: nobody can pass it, so it is the same in every call that leaves it out.
    """
    call = task.signature.bind(*args, **kwargs)
    call.apply_defaults()
    named = list(call.arguments.items())[1 if task.is_method else 0 :]
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in named}
    return {name: value for name, value in plain.items() if not json_problem(value)}


def _firsts(calls: list[Checked]) -> dict[str, Checked]:
    """The first call of each digest, in the order of the calls."""
    firsts: dict[str, Checked] = {}
    for tenant, job in calls:
        firsts.setdefault(job.unique_key, (tenant, job))
    return firsts


def _under_way(unique_for: timedelta, digests: list[str]) -> dict[str, TenantJob]:
    """The jobs that stand for later ones, by digest. Older ones lose their digest, so that another may be stored."""
    is_old = Q(enqueued_at__lte=ago(unique_for.total_seconds()))
    found: dict[str, TenantJob] = {}
    old = []
    for some in _chunks(sorted(set(digests))):
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
    active: QuerySet[TenantJob] = TenantJob.objects.filter(~Q(unique_key="") & ~Q(state__in=ENDED))
    return active


def _forget(old: QuerySet[TenantJob], keys: list[int]) -> None:
    """Take the digests from these jobs, one transaction each.

    Not in a transaction of the caller, where that is possible: the job's row would stay locked until its end, and the
    worker that runs the job could not even beat.
    """
    connection = connections[app_settings.DATABASE]
    if connection.vendor == "postgresql" and connection.in_atomic_block:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(_forget_elsewhere, old, keys).result()
    _forget_each(old, keys)


def _forget_each(old: QuerySet[TenantJob], keys: list[int]) -> None:
    for key in keys:
        old.filter(pk=key).update(unique_key="")


def _forget_elsewhere(old: QuerySet[TenantJob], keys: list[int]) -> None:
    """In a session of this thread's own. What the caller's transaction made or locked is left to that."""
    connection = connections[app_settings.DATABASE]
    try:
        for key in keys:
            with suppress(OperationalError), transaction.atomic(using=connection.alias):
                with connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_MS}ms'")
                _forget_each(old, [key])
    finally:
        connection.close()


def _chunks(digests: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(digests), KEYS_PER_QUERY):
        yield digests[start : start + KEYS_PER_QUERY]
