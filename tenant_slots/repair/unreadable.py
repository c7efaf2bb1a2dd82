"""Rows with what no code of ours has written: times out of the calendar, words that mean nothing here, JSON of another
form. They are read as something harmless; only the database knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import Any

from django.apps import apps
from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast, Length

from tenant_slots import limits, rates
from tenant_slots.db.clock import IsNoTime
from tenant_slots.models import (
    BulkChange,
    Ending,
    KeptChange,
    Kind,
    LimitSource,
    State,
    TenantJob,
    TenantJobQuerySet,
    TenantQueue,
)
from tenant_slots.models.fields import Moment, StoredJSON, Unreadable
from tenant_slots.repair.findings import UNREPAIRED
from tenant_slots.validation import EARLIEST, LATEST

WORDS: Mapping[type[Model], Mapping[str, Collection[str]]] = {
    TenantJob: {"kind": Kind.values, "state": State.values},
    TenantQueue: {"limit_source": LimitSource.values},
    KeptChange: {"what": limits.WHAT_CHANGES},
    BulkChange: {"ending": [one.value for one in Ending]},
}
"""Of each table the columns that have a word of a few, and these."""

JSON_OF_JOBS = ("args", "kwargs", "options", "context", "progress", "stats", "runs")
"""But for the result, which has any form."""

LONG_TEXT = 500
"""Characters. Numbers of too many digits, and lists in lists that are nested too deeply for Python, are longer."""

ROWS_AT_ONCE = 1000
"""How many rows of what may be a whole table are held in memory."""

RESULTS_AT_ONCE = 50
"""The same of results, each of which may take a megabyte."""

LATEST_JOBS = 10_000
"""Of so many the JSON is read even if they have ended, when nobody but pages and callers of `job_status` reads it."""


def jobs() -> Iterator[tuple[TenantJob, list[str]]]:
    """Jobs, and which of their columns are so: of the JSON of those that have ended only that of the latest."""
    rows: TenantJobQuerySet = TenantJob.objects.select_related("tenant_queue")
    for job in _odd_rows(rows).defer(*UNREPAIRED, "options", "error", "runs"):
        yield job, _odd(job)
    latest = Q(pk__gt=_before_latest_jobs())
    for some in (rows.not_ended(), rows.ended().filter(latest)):
        for job in _with_odd_json(some).defer("result", "error").iterator(ROWS_AT_ONCE):
            if columns := [name for name in JSON_OF_JOBS if isinstance(getattr(job, name), Unreadable)]:
                yield job, columns
    for job in _with_long_result(rows.filter(latest)).iterator(RESULTS_AT_ONCE):
        if job.result is None:
            yield job, ["result"]


def tenant_queues() -> Iterator[tuple[TenantQueue, list[str]]]:
    """The same of tenant queues."""
    for row in _odd_rows(TenantQueue.objects.all()):
        yield row, _odd(row)
    for row in TenantQueue.objects.exclude(limit_history__isnull=True).iterator(ROWS_AT_ONCE):
        if isinstance(row.limit_history, Unreadable):
            yield row, ["limit_history"]
    with_rate: QuerySet[Any] = TenantQueue.objects.exclude(rate_number=None).annotate(step=rates.NanosecondsPerToken())
    for row in with_rate.only("tenant", "queue", *rates.SETTINGS).iterator(ROWS_AT_ONCE):
        if row.rate is not None and row.step != row.rate.step:  # an interval with years, which have several lengths
            yield row, ["rate_per"]


def elsewhere() -> Iterator[tuple[Model, list[str]]]:
    """The same of the tables that only pages and sweeps read."""
    for model in apps.get_app_config("tenant_slots").get_models():
        if model not in (TenantJob, TenantQueue):
            yield from _of_small_table(model)


def _of_small_table(model: type[Model]) -> Iterator[tuple[Model, list[str]]]:
    if _conditions(model):
        for row in _odd_rows(model._base_manager.all()).iterator(ROWS_AT_ONCE):
            yield row, _odd(row)
    if names := _fields_of(model, StoredJSON):
        for row in model._base_manager.iterator(ROWS_AT_ONCE):
            if columns := [name for name in names if isinstance(getattr(row, name), Unreadable)]:
                yield row, columns


def _odd_rows(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Those with such a time or such a word, for `_odd`."""
    conditions = _conditions(rows.model)
    flags = {f"{name}_is_odd": condition for name, condition in conditions.items()}
    found: QuerySet[Any] = rows.annotate(**flags).filter(reduce(or_, conditions.values(), Q()))
    return found


def _conditions(model: type[Model]) -> dict[str, Q]:
    """By column. Only the database knows: such a time reads as another one, or as none."""
    odd = {
        name: Q((f"{name}__lt", EARLIEST)) | Q((f"{name}__gt", LATEST)) | Q(IsNoTime(name))
        for name in _fields_of(model, Moment)
    }
    return odd | {name: ~Q((f"{name}__in", list(known))) for name, known in WORDS.get(model, {}).items()}


def _odd(row: Model) -> list[str]:
    return [name for name in _conditions(type(row)) if getattr(row, f"{name}_is_odd")]


def _fields_of(model: type[Model], kind: type[Moment] | type[StoredJSON]) -> list[str]:
    return [field.name for field in model._meta.concrete_fields if isinstance(field, kind)]


def _before_latest_jobs() -> int:
    """The primary key of the job before them, 0 where there are no more. An index has it, whatever is in the rows."""
    found: Any = TenantJob.objects.order_by("-pk").values_list("pk", flat=True)[LATEST_JOBS : LATEST_JOBS + 1]
    return next(iter(found), 0)


def _with_odd_json(rows: TenantJobQuerySet) -> TenantJobQuerySet:
    """Those whose JSON is worth reading, as it is long or is not what most jobs have: a backlog may be very long."""
    texts = {f"{name}_text": Cast(name, TextField()) for name in JSON_OF_JOBS}
    sizes = {f"{name}_size": Length(f"{name}_text") for name in ("args", "kwargs", "context")}
    is_long = Q(args_size__gt=LONG_TEXT) | Q(kwargs_size__gt=LONG_TEXT) | Q(context_size__gt=LONG_TEXT)
    is_odd = ~Q(args_text__startswith="[") | ~Q(kwargs_text__startswith="{")
    is_odd |= Q(context__isnull=False) & ~Q(context_text__startswith="{")
    is_rare = ~Q(options_text="{}") | ~Q(stats_text="{}") | Q(progress__isnull=False) | Q(runs__isnull=False)
    found: TenantJobQuerySet = rows.alias(**texts).alias(**sizes).filter(is_long | is_odd | is_rare)
    return found


def _with_long_result(rows: TenantJobQuerySet) -> TenantJobQuerySet:
    """The result alone says nothing by itself: one that cannot be read reads as none."""
    sized = rows.alias(result_size=Length(Cast("result", TextField()))).filter(result_size__gt=LONG_TEXT)
    found: TenantJobQuerySet = sized.defer(
        *(name for name in UNREPAIRED if name != "result"), "options", "error", "runs"
    )
    return found
