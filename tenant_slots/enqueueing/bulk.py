"""Storing new jobs: one by a compiled INSERT, many by COPY on PostgreSQL, which takes a third of the time of Django's
bulk_create.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from django.db import connections, transaction

from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import Insertion
from tenant_slots.db.transactions import is_open
from tenant_slots.models import TenantJob

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


def insert(jobs: list[TenantJob]) -> None:
    """Store new jobs in their order, all or none, and give them their keys.

    Raises:
        IntegrityError: a duplicate is under way.
    """
    for job in jobs:
        job.pk = None  # of an earlier try
    if len(jobs) == 1 and not is_open(app_settings.DATABASE):
        _insert_one(*jobs)  # by itself it is a transaction, and needs no round trips for its begin and end
        return
    with transaction.atomic(using=app_settings.DATABASE):
        _insert_one(*jobs) if len(jobs) == 1 else _insert_many(jobs)


def _insert_one(job: TenantJob) -> None:
    ((job.pk, job.enqueued_at),) = INSERT_JOB.lists(**{name: getattr(job, name) for name in GIVEN})
    _is_stored(job)


def _insert_many(jobs: list[TenantJob]) -> None:
    on_postgresql = connections[app_settings.DATABASE].vendor == "postgresql"
    if on_postgresql and jobs and jobs[0].unique_key:
        # Who enqueues the same jobs in another order waits for us at the first one that we share, and not we for them.
        give_keys(jobs)
        jobs = sorted(jobs, key=attrgetter("unique_key"))
    if on_postgresql and len(jobs) >= COPY_FROM:
        _copy(jobs)
    else:
        TenantJob.objects.bulk_create(jobs, batch_size=ROWS_PER_INSERT)


def insert_unless_duplicate(job: TenantJob) -> bool:
    """Store a job, perhaps with a key, unless a duplicate of it is under way. See `insert`.

    Where another transaction is about to store one, or to end it, this waits until it has done so or has not.
    """
    TenantJob.objects.bulk_create([job], ignore_conflicts=True)
    stored = TenantJob.objects.filter(uuid=job.uuid).values_list("pk", "enqueued_at").first()
    if stored is None:
        return False
    job.pk, job.enqueued_at = stored
    return True


def _copy(jobs: list[TenantJob]) -> None:
    connection = connections[app_settings.DATABASE]
    table = connection.ops.quote_name(TenantJob._meta.db_table)
    fields = [field for field in TenantJob._meta.concrete_fields if field.column in COLUMNS]
    if not jobs[0].pk:
        give_keys(jobs)
    command = f"COPY {table} ({', '.join(str(field.column) for field in fields)}) FROM STDIN"
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(command) as copy:
        for values in _prepared(jobs, fields):
            copy.write_row(values)
    for job in jobs:
        _is_stored(job)


def _prepared(jobs: list[TenantJob], fields: list[Any]) -> Iterator[list[Any]]:
    """The values of each job as the driver takes them. One that is the last job's own is not prepared again."""
    connection = connections[app_settings.DATABASE]
    last: dict[str, tuple[Any, Any]] = {}
    for job in jobs:
        for field in fields:
            value = getattr(job, field.attname)
            if field.attname not in last or last[field.attname][0] is not value:
                last[field.attname] = value, field.get_db_prep_save(value, connection)
        yield [last[field.attname][1] for field in fields]


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
