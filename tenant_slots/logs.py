"""What a log record of ours says of its job, for programs: the fields `FIELDS`, as attributes of every record.

Never a job's arguments, its context or its result. And never a query: a record is often about a database that is away,
so a field has None where the row was read without it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import Error

from tenant_slots.models import TenantJob

FIELDS = ("task", "tenant", "queue", "job", "attempt")

MOST_REMEMBERED = 1000
"""Runs; a worker has one at a time, and more only while the database takes no ends."""

_remembered: OrderedDict[int, dict[str, Any]] = OrderedDict()

_here: ContextVar[TenantJob | None] = ContextVar("tenant_slots_job_here", default=None)
"""The job whose function, or another callable of the project, is called."""


def fields_of(job: TenantJob) -> dict[str, Any]:
    """The fields of a job: `queue` is RQ's, and `tenant` is empty for a call without one."""
    read = vars(job)
    row = job._state.fields_cache.get("tenant_queue")
    return {
        "task": read.get("task"),
        "tenant": row.tenant if row is not None else None,
        "queue": read.get("rq_queue") or (row.queue if row is not None else None),
        "job": str(job.uuid) if "uuid" in read else None,
        "attempt": read.get("attempt"),
    }


def about(*jobs: TenantJob | None) -> dict[str, Any]:
    """`extra` for a record about a job, or none; of several jobs what they have in common, and None for the rest."""
    return _extra(_in_common([fields_of(job) for job in jobs if job is not None]))


def about_run(pk: int) -> dict[str, Any]:
    """The same where only the primary key is at hand, of a job that runs or ran in this process."""
    return _extra(_remembered.get(pk, {}))


def about_here() -> dict[str, Any]:
    """The same where nothing is at hand: of the job in whose `called_for` this happens, if it does in one."""
    return about(_here.get())


def about_named(**known: Any) -> dict[str, Any]:
    """The same where no row is at hand, for those of `FIELDS` that are known."""
    return _extra(known)


def complete(record: logging.LogRecord) -> bool:
    """A filter of our logger that lets all pass: None for what a record does not say, so that a format may name it.

    And of the database's errors their first line: in further ones stands the row that it refuses, with its arguments.
    """
    for name in FIELDS:
        vars(record).setdefault(name, None)
    if isinstance(record.args, tuple):
        record.args = tuple(map(_without_row, record.args))
    return True


def _without_row(given: object) -> object:
    if not isinstance(given, Error):
        return given
    try:
        return str(given).partition("\n")[0]
    except Exception:  # of an object of the project's that it names: whoever logs would get that
        return type(given).__name__


@contextmanager
def called_for(job: TenantJob) -> Iterator[None]:
    """In the block, and in the coroutines and threads that it awaits, the project's code is called for this job."""
    token = _here.set(job)
    try:
        yield
    finally:
        _here.reset(token)


def remember(job: TenantJob) -> None:
    """This process runs it, or watches over its run: see `about_run`."""
    _remembered[job.pk] = fields_of(job)
    _remembered.move_to_end(job.pk)
    if len(_remembered) > MOST_REMEMBERED:
        _remembered.popitem(last=False)


def _in_common(all_fields: list[dict[str, Any]]) -> dict[str, Any]:
    first = all_fields[0] if all_fields else {}
    return {name: value for name, value in first.items() if all(other[name] == value for other in all_fields)}


def _extra(known: Mapping[str, Any]) -> dict[str, Any]:
    taken = _set_by_project()
    return {name: known.get(name) for name in FIELDS if name not in taken}


def _set_by_project() -> Mapping[str, Any]:
    """What a record factory of the project's sets: logging raises KeyError where `extra` has it too."""
    factory = logging.getLogRecordFactory()
    if factory is logging.LogRecord:
        return {}
    return vars(factory("tenant_slots", logging.INFO, "", 0, "", (), None, None, None))  # as logging calls it
