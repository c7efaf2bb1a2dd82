"""Storing new jobs: one by a compiled INSERT, many by COPY on PostgreSQL, which takes a third of the time of Django's
bulk_create.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import TypeVar

from django.db import OperationalError, connections, transaction

from tenant_slots import tenant_rows
from tenant_slots.conf import app_settings
from tenant_slots.db import copying, transactions
from tenant_slots.db.compiled import Insertion, InsertionBeside
from tenant_slots.db.transactions import is_open
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import TenantJob, TenantQueue

T = TypeVar("T")

COPY_FROM = 100
"""Rows from which COPY is faster; below it the extra query for the keys outweighs it."""

ROWS_PER_INSERT = 1000
"""Keeps one INSERT of full-sized arguments under 100 MB."""

FROM_DATABASE = ("id", "enqueued_at")

GIVEN = (
    "uuid", "tenant_queue_id", "task", "args", "kwargs", "options", "context", "rq_queue", "asks", "state", "priority",
    "run_after", "expires_at", "key", "unique_key", "object_model", "object_pk",
)  # fmt: skip
"""All others of a new job have their database default."""

COLUMNS = (*FROM_DATABASE, *GIVEN)

INSERT_JOB = Insertion(TenantJob, GIVEN, FROM_DATABASE)

INSERT_FOR_TENANT = InsertionBeside(
    TenantJob, GIVEN, FROM_DATABASE, key="tenant_queue_id", other=tenant_rows.UNBOUNDED, others=["share"]
)


def insert(jobs: list[TenantJob]) -> None:
    """Store new jobs in their order, all or none, and give them their keys.

    Raises:
        IntegrityError: a duplicate is under way, or a tenant queue was deleted.
        TenantQueueLocked: somebody deletes a tenant queue, or locks it FOR UPDATE, for longer than our patience.
    """
    for job in jobs:
        job.pk = None  # of an earlier try
    if len(jobs) == 1 and not is_open(app_settings.DATABASE):
        _insert_by_itself(jobs[0])
        return
    with _kept(jobs):
        _insert_one(jobs[0]) if len(jobs) == 1 else _insert_many(jobs)


@contextmanager
def _kept(jobs: list[TenantJob], *, savepoint: bool = True) -> Iterator[None]:
    """A transaction where nobody deletes their tenant queues; or a part of the caller's, in which these were read."""
    is_part = is_open(app_settings.DATABASE)
    with transaction.atomic(using=app_settings.DATABASE, savepoint=savepoint):
        if not is_part:
            tenant_rows.keep({job.tenant_queue_id for job in jobs})
        yield


def insert_for_tenant(job: TenantJob, tenant: str, queue: str) -> bool:
    """Look for a tenant queue and store its new job, by one statement.

    False: there is no such tenant queue, or somebody has to look first whether its backlog has room; or it would not be
    a transaction of its own. Nor is it done on SQLite.

    Raises:
        IntegrityError, TenantQueueLocked: as `insert`.
    """
    alias = app_settings.DATABASE
    if connections[alias].vendor != "postgresql" or is_open(alias):
        return False
    values = {name: getattr(job, name) for name in GIVEN if name != "tenant_queue_id"}
    insert = partial(INSERT_FOR_TENANT.lists, tenant=tenant, queue=queue, **values)
    stored = _by_itself(insert, partial(tenant_rows.found, tenant, queue))
    for job.pk, job.enqueued_at, key, share in stored:
        job.tenant_queue = tenant_rows.named(id=key, tenant=tenant, queue=queue, share=share)
        _is_stored(job)
    return bool(stored)


def _insert_by_itself(job: TenantJob) -> None:
    _by_itself(partial(_insert_one, job), lambda: job.tenant_queue)


def _by_itself(insert: Callable[[Sequence[str]], T], find: Callable[[], TenantQueue | None]) -> T:
    """It is a transaction then, and needs no round trips for its begin and end, nor for a lock.

    It waits for a tenant queue as long as we have patience. For a duplicate it waits until it is known what becomes of
    it, or as long as the project lets its statements wait.

    Args:
        insert: stores a job, and is given the statements that go before.
        find: gives its tenant queue, if there still is one.
    """
    alias, patience = app_settings.DATABASE, transactions.patience.get()
    try:
        return insert(transactions.impatient_by_default(alias, patience))
    except OperationalError as error:
        if transactions.sqlstate(error) != transactions.LOCK_TIMEOUT:
            raise
        row = find()
        if row is not None and tenant_rows.is_locked(row.pk):
            raise TenantQueueLocked(tenant_queue=row, seconds=patience) from error
        if transactions.has_lock_timeout(alias):
            raise
        return insert(())


def _insert_one(job: TenantJob, before: Sequence[str] = ()) -> None:
    ((job.pk, job.enqueued_at),) = INSERT_JOB.lists(before, **{name: getattr(job, name) for name in GIVEN})
    _is_stored(job)


def _insert_many(jobs: list[TenantJob]) -> None:
    alias = app_settings.DATABASE
    if connections[alias].vendor == "postgresql" and jobs and jobs[0].unique_key:
        # Who enqueues the same jobs in another order waits for us at the first one that we share, and not we for them.
        give_keys(jobs)
        jobs = sorted(jobs, key=attrgetter("unique_key"))
    if len(jobs) >= COPY_FROM and copying.may_copy(TenantJob, alias):
        _copy(jobs)
    else:
        TenantJob.objects.bulk_create(jobs, batch_size=ROWS_PER_INSERT)


def insert_unless_duplicate(job: TenantJob) -> bool:
    """Store a job, perhaps with a key, unless a duplicate of it is under way. See `insert`.

    Where another transaction is about to store one, or to end it, this waits until it has done so or has not.
    """
    # No savepoint in a caller's transaction: who waits for one that is released waits for the whole transaction.
    with _kept([job], savepoint=False):
        TenantJob.objects.bulk_create([job], ignore_conflicts=True)
    stored = TenantJob.objects.filter(uuid=job.uuid).values_list("pk", "enqueued_at").first()
    if stored is None:
        return False
    job.pk, job.enqueued_at = stored
    return True


def _copy(jobs: list[TenantJob]) -> None:
    if not jobs[0].pk:
        give_keys(jobs)
    values = attrgetter(*COLUMNS)
    copying.copy(TenantJob, COLUMNS, (values(job) for job in jobs), app_settings.DATABASE)
    for job in jobs:
        _is_stored(job)


def _is_stored(job: TenantJob) -> None:
    job._state.adding, job._state.db = False, app_settings.DATABASE


def give_keys(jobs: list[TenantJob]) -> None:
    """Keys in the order of the jobs, and the time, where they cannot be had from the INSERT. Not on SQLite."""
    if connections[app_settings.DATABASE].vendor != "postgresql":
        return
    with connections[app_settings.DATABASE].cursor() as cursor:
        cursor.execute(
            "SELECT nextval(pg_get_serial_sequence(%s, 'id')), clock_timestamp() FROM generate_series(1, %s)",
            [TenantJob._meta.db_table, len(jobs)],
        )
        found = cursor.fetchall()
    for job, (key, now) in zip(jobs, found, strict=True):
        job.pk, job.enqueued_at = key, now
