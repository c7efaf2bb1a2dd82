"""``unique_for``: instead of storing a duplicate, the identical job that is under way is returned.

The partial unique constraint ``tenant_slots_one_per_unique_key`` decides, whoever enqueues at the same moment and in
whatever transaction: an INSERT waits for another one's commit or rollback, and looks again when it has lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Q, QuerySet

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.db.clock import ago
from tenant_slots.enqueueing import bulk
from tenant_slots.enqueueing.new_job import NewJob
from tenant_slots.exceptions import DuplicateNotVisible, InvalidKey
from tenant_slots.models import TenantJob
from tenant_slots.tasks.arguments import json_problem
from tenant_slots.tasks.task import TaskCall, TenantTask
from tenant_slots.validation import is_name

TRIES_AT_ONCE = 2
"""Each lost try means that somebody else stored one of the jobs meanwhile. Of many jobs somebody always does."""

TRIES = 20
"""How often a single job may be stored and ended by others between our look and our INSERT; more means that we cannot
see it.
"""

KEYS_PER_QUERY = 1000

LOCK_TIMEOUT_MS = 200
"""A worker's transaction holds a job's row for milliseconds; longer means that the caller's own transaction does."""


Insert = Callable[[list[TenantJob]], object]
Store = Callable[[Insert, list[NewJob]], object]
"""Prepares jobs to be stored, and has them inserted in the given way."""


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
    task: TenantTask[..., Any], new_jobs: list[NewJob], store: Store
) -> tuple[list[TenantJob], list[TenantJob]]:
    """Store the jobs that are no duplicates, all or none: at once, or one after the other if somebody is in the way.

    Args:
        task: what they are jobs of; its ``unique_for`` is how old a job may be to stand for a later one.
        new_jobs: what the calls became, with their digests.
        store: not called without jobs.

    Returns:
        The job of every call, and those among them that are new.

    Raises:
        DuplicateNotVisible: the caller's transaction cannot see what others have committed, as with REPEATABLE READ.
    """
    assert task.unique_for is not None
    wanted = _Wanted(task.unique_for, new_jobs)
    last: IntegrityError
    for number in range(TRIES):
        in_order = number >= TRIES_AT_ONCE and transactions.sees_others(app_settings.DATABASE)
        try:
            wanted.store_in_order(store) if in_order else wanted.store_at_once(store)
            return wanted.jobs, wanted.new_jobs
        except IntegrityError as error:
            last = error
    raise DuplicateNotVisible(task=task.path) from last


class _Wanted:
    """The jobs that one call wants, and what it has got of them so far, by digest."""

    def __init__(self, unique_for: timedelta, new_jobs: list[NewJob]) -> None:
        self._unique_for, self._calls = unique_for, new_jobs
        self._known: dict[str, TenantJob] = {}
        self._stored: dict[str, TenantJob] = {}

    @property
    def jobs(self) -> list[TenantJob]:
        """The job of every call."""
        found = {**self._known, **self._stored}
        return [found[new.job.unique_key] for new in self._calls]

    @property
    def new_jobs(self) -> list[TenantJob]:
        """Those that were stored, in the order of the calls."""
        return [new.job for new in self._calls if self._stored.get(new.job.unique_key) is new.job]

    def store_at_once(self, store: Store) -> None:
        """Raises IntegrityError when somebody has stored one of them since we looked."""
        fresh = self._look()
        if fresh:
            store(bulk.insert, fresh)
            self._stored = {new.job.unique_key: new.job for new in fresh}

    def store_in_order(self, store: Store) -> None:
        """What is stored stays stored, so that nobody else can store it while we come to the next one.

        Whoever waits for another one's job has only stored jobs with lower digests, so that nobody waits in a circle.

        Raises:
            IntegrityError: there is always another one whose job we do not see.
        """
        with transactions.seeing_others(app_settings.DATABASE):
            fresh = self._look()
            bulk.give_keys([new.job for new in fresh])  # the backlog is in the order of the calls
            if fresh:
                store(self._insert_in_order, sorted(fresh, key=lambda new: new.job.unique_key))

    def _insert_in_order(self, jobs: list[TenantJob]) -> None:
        """One by one: to wait with a higher one stored, and to take that back, would not wake who waits for it.

        (PostgreSQL lets them wait for the whole transaction once a savepoint inside another one is released.)
        """
        with transaction.atomic(using=app_settings.DATABASE):
            self._stored = {job.unique_key: job for job in jobs if self._insert(job)}

    def _insert(self, job: TenantJob) -> bool:
        """False when a duplicate is under way."""
        for _ in range(TRIES):
            if bulk.insert_unless_duplicate(job):
                return True
            if found := _under_way(self._unique_for, {job.unique_key}):
                self._known |= found
                return False
        raise IntegrityError("the constraint on unique_key refuses a job whose duplicate nobody sees")

    def _look(self) -> list[NewJob]:
        """Begin anew: what is under way, and those that are not."""
        firsts = _firsts(self._calls)
        self._known, self._stored = _under_way(self._unique_for, firsts.keys()), {}
        return [new for digest, new in firsts.items() if digest not in self._known]


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


def _under_way(unique_for: timedelta, digests: AbstractSet[str]) -> dict[str, TenantJob]:
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
