"""``unique_for``: instead of storing a duplicate, the identical job that is under way is returned.

With ``unique_until="start"`` it is under way until it starts: whoever changes something while it runs gets another job,
which sees the change. A caller who has not committed yet keeps the job that he was given from starting until then.

The partial unique constraint ``tenant_slots_one_per_unique_key`` decides, whoever enqueues at the same moment and in
whatever transaction: an INSERT waits for another one's commit or rollback, and looks again when it has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction
from django.db.models import Q, QuerySet

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.db.clock import ago
from tenant_slots.db.compiled import among
from tenant_slots.db.sessions import outside
from tenant_slots.enqueueing import bulk
from tenant_slots.enqueueing.new_job import NewJob, Stored
from tenant_slots.exceptions import DuplicateNotVisible
from tenant_slots.models import State, TenantJob
from tenant_slots.models.states import UNADMITTED, UNSTARTED
from tenant_slots.tasks.duplicates import START
from tenant_slots.tasks.task import TenantTask

TRIES_AT_ONCE = 2
"""Each lost try means that somebody else stored one of the jobs meanwhile. Of many jobs somebody always does."""

TRIES = 20
"""How often a single job may be stored and ended by others between our look and our INSERT; more means that we cannot
see it.
"""

OVERTAKEN = ("23505", "23503")
"""PostgreSQL's SQLSTATEs of a duplicate that somebody has stored, and of a tenant queue that somebody has deleted."""

KEYS_PER_QUERY = 1000

LOCK_TIMEOUT_MS = 200
"""A worker's transaction holds a job's row for milliseconds; longer means that the caller's own transaction does."""


T = TypeVar("T")

Insert = Callable[[list[TenantJob]], object]
Store = Callable[[Insert, list[NewJob]], object]
"""Prepares jobs to be stored, and has them inserted in the given way."""


def stored_once(task: TenantTask[..., Any], new_jobs: list[NewJob], store: Store) -> Stored:
    """Store the jobs that are no duplicates, all or none: at once, or one after the other if somebody is in the way.

    Args:
        task: what they are jobs of; it says until when a job stands for later ones.
        new_jobs: what the calls became, with their digests.
        store: not called without jobs.

    Raises:
        DuplicateNotVisible: the caller's transaction cannot see what others have committed, as with REPEATABLE READ.
    """
    assert task.unique_for is not None
    wanted = _Wanted(_Window(task.unique_for, task.unique_until == START and _is_open()), new_jobs)
    last: DatabaseError
    for number in range(TRIES):
        in_order = number >= TRIES_AT_ONCE and transactions.sees_others(app_settings.DATABASE)
        try:
            wanted.store_in_order(store) if in_order else wanted.store_at_once(store)
            return wanted.stored()
        except (IntegrityError, OperationalError) as error:
            if not is_lost(error):
                raise
            last = error
    raise DuplicateNotVisible(task=task.path) from last


def is_lost(error: DatabaseError) -> bool:
    """Whether somebody was in the way, and another try can do better.

    A transaction of ours that was undone has done nothing else. That of a caller has done more. A constraint or trigger
    of the project refuses the job at each try; on SQLite, and where the error is ours, there is no code that says so.
    """
    if isinstance(error, IntegrityError):
        return transactions.sqlstate(error) in (None, *OVERTAKEN)
    return transactions.is_undone(error) and not _is_open()


class _Window(NamedTuple):
    """Until when a job stands for later ones."""

    unique_for: timedelta
    """How old it may be."""
    holds: bool
    """Whether it must not start before the caller's transaction has ended. One that has a slot counts as started: that
    slot would be kept from others meanwhile.
    """

    @property
    def is_over(self) -> Q:
        """A job whose time is over never runs, though nobody has come to cancel it yet."""
        is_old = Q(enqueued_at__lte=ago(self.unique_for.total_seconds()))
        is_expired = Q(expires_at__lte=ago(0), started_at=None, state__in=UNSTARTED)
        is_over = is_old | is_expired
        return is_over | Q(state=State.QUEUED) if self.holds else is_over


class _Wanted:
    """The jobs that one call wants, and what it has got of them so far, by digest."""

    def __init__(self, window: _Window, new_jobs: list[NewJob]) -> None:
        self._window, self._calls = window, new_jobs
        self._known: dict[str, TenantJob] = {}
        self._stored: dict[str, TenantJob] = {}

    def stored(self) -> Stored:
        found = {**self._known, **self._stored}
        return Stored(
            jobs=[found[new.job.unique_key] for new in self._calls],
            new=[new.job for new in self._calls if self._stored.get(new.job.unique_key) is new.job],
            held=list(self._known.values()) if self._window.holds else [],
        )

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
            if found := _under_way(self._window, {job.unique_key}):
                self._known |= found
                return False
        raise IntegrityError("the constraint on unique_key refuses a job whose duplicate nobody sees")

    def _look(self) -> list[NewJob]:
        """Begin anew: what is under way, and those that are not."""
        firsts = _firsts(self._calls)
        self._known, self._stored = _under_way(self._window, firsts.keys()), {}
        return [new for digest, new in firsts.items() if digest not in self._known]


def revive(ended: QuerySet[TenantJob], **changes: Any) -> int:
    """Change jobs that have ended to ones that have not. A duplicate of one under way is no longer unique."""
    try:
        with transaction.atomic(using=app_settings.DATABASE):
            return ended.update(**changes)
    except IntegrityError:
        return ended.update(**changes, unique_key="")


def _firsts(new_jobs: Iterable[NewJob]) -> dict[str, NewJob]:
    """The first of each digest, in their order."""
    firsts: dict[str, NewJob] = {}
    for new in new_jobs:
        firsts.setdefault(new.job.unique_key, new)
    return firsts


def _under_way(window: _Window, digests: AbstractSet[str]) -> dict[str, TenantJob]:
    """The jobs that stand for later ones, by digest. Others lose their digest, so that another may be stored."""
    found: dict[str, TenantJob] = {}
    old = []
    for job in looked_for(digests, is_over=window.is_over):
        if job.is_over:
            old.append(job.pk)
        else:
            found[job.unique_key] = job
    if old:
        forget(active().filter(window.is_over), old)
    return _held(found) if window.holds else found


def _held(found: dict[str, TenantJob]) -> dict[str, TenantJob]:
    """Those that have not started, and cannot before the caller's transaction has ended: others may find them too.

    The lock waits for a start that is not committed yet. On SQLite nobody starts a job while the caller writes.
    """
    connection = connections[app_settings.DATABASE]
    if connection.vendor != "postgresql" or not found:
        return found
    rows = active().filter(among([job.pk for job in found.values()]), state__in=UNADMITTED)
    query = rows.order_by("pk").values_list("unique_key").query
    sql, parameters = query.get_compiler(connection.alias).as_sql()
    with connection.cursor() as cursor:
        cursor.execute(f"{sql} FOR SHARE", parameters)
        there = {digest for (digest,) in cursor.fetchall()}
    return {digest: job for digest, job in found.items() if digest in there}


def looked_for(digests: Iterable[str], **annotated: Any) -> list[Any]:
    """The jobs with these digests that have not ended, as they are now."""
    jobs = active().select_related("tenant_queue").annotate(**annotated)
    return [job for some in chunks(sorted(digests)) for job in jobs.filter(unique_key__in=some)]


def active() -> QuerySet[TenantJob]:
    """The very condition of the constraint, so that its index is used."""
    active: QuerySet[TenantJob] = TenantJob.objects.not_ended().exclude(unique_key="")
    return active


def forget(old: QuerySet[TenantJob], keys: list[int]) -> None:
    """Take the digests from these jobs, one transaction each.

    Not in a transaction of the caller, where that is possible: the job's row would stay locked until its end, and the
    worker that runs the job could not even send a heartbeat. Nor a second time there: at a strict isolation level it
    would meet a row that has changed since it began.
    """
    connection = connections[app_settings.DATABASE]
    done: set[int] = set()
    if connection.vendor == "postgresql" and transactions.is_open(connection.alias):
        done = outside(partial(_forget_outside, old, keys))
    for key in keys:
        if key not in done:
            _forget_one(old, key)


def _forget_one(old: QuerySet[TenantJob], key: int) -> bool:
    with transactions.seeing_others(app_settings.DATABASE):
        return bool(old.filter(pk=key).update(unique_key=""))


def _forget_outside(old: QuerySet[TenantJob], keys: list[int]) -> set[int]:
    """In a session of its own. Rows that the caller's transaction made or locked are left to the caller.

    Not at a strict level that sessions may have: PostgreSQL would undo the caller, who has read what is changed here.

    Returns:
        The others, and those that were forgotten before: the caller may still see them as they were.
    """
    done = set()
    for key in keys:
        with suppress(OperationalError), transactions.seeing_others(app_settings.DATABASE):
            transactions.send(app_settings.DATABASE, [f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_MS}ms'"])
            if _forget_one(old, key) or TenantJob.objects.filter(pk=key, unique_key="").exists():
                done.add(key)
    return done


def _is_open() -> bool:
    return transactions.is_open(app_settings.DATABASE)


def chunks(keys: list[T]) -> Iterator[list[T]]:
    """So many as one query may name: a server that binds the parameters takes 65,535 of them."""
    for start in range(0, len(keys), KEYS_PER_QUERY):
        yield keys[start : start + KEYS_PER_QUERY]
