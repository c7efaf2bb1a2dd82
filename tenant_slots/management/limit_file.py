"""Many limits at once, from a file: read it, compare it with the rows, change what differs."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import Error, connections

from tenant_slots import limits, many_limits, tenant_rows, tenants
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import TenantSlotsError, UnknownTenantQueue
from tenant_slots.many_limits import Edited
from tenant_slots.models import LimitSource, TenantQueue
from tenant_slots.repair import faults

T = TypeVar("T")

TENANT, LIMIT = "tenant", "limit"

OF_LIMIT = ("max_job", "limit_source", "limit_set_by")
"""What the file says of a row."""

NUMBER = re.compile(r"\s*-?[0-9]{1,100}\s*")


@dataclass(frozen=True)
class Line:
    """What one line of the file wants."""

    number: int
    tenant: str
    max_job: int


@dataclass(frozen=True)
class Problem:
    """Why a line cannot be applied."""

    line: int
    problem: str


@dataclass(frozen=True)
class Changed:
    """A row whose limit differs from what its line wants."""

    line: Line
    row: TenantQueue
    old: int


class DatabaseAway(Exception):
    """The database cannot be reached any more, so that no further line can be applied."""

    def __init__(self, line: Line, error: Error) -> None:
        super().__init__(str(error).strip())
        self.line = line.number


@dataclass
class Difference:
    """What applying the lines would do, or has done."""

    changed: list[Changed] = field(default_factory=list)
    new: list[Line] = field(default_factory=list)
    unchanged: int = 0


def read(file: Iterable[str], queue: str) -> tuple[list[Line], list[Problem]]:
    """The good lines and what is wrong with the others. The file is CSV with the columns ``tenant`` and ``limit``.

    Raises:
        UnicodeDecodeError: the file is not UTF-8.
        UnknownQueue: RQ has no such queue.
    """
    tenants.require_queue(queue)
    lines: dict[str, Line] = {}
    problems: list[Problem] = []
    for number, values in _records(file, problems):
        try:
            line = _line(number, values, queue)
        except (TenantSlotsError, ValueError) as error:
            problems.append(Problem(number, str(error)))
            continue
        if line.tenant in lines:
            first = lines[line.tenant].number
            problems.append(Problem(number, f"tenant {line.tenant!r} is on line {first} already; keep one of them"))
        else:
            lines[line.tenant] = line
    return list(lines.values()), problems


def compare(lines: Iterable[Line], queue: str) -> Difference:
    """One query. A row with the wanted limit counts as changed while the limit is a temporary one."""
    found = TenantQueue.objects.filter(queue=queue).only("tenant", "queue", "max_job", "override_until")
    rows = {row.tenant: row for row in found.iterator()}
    difference = Difference()
    for line in lines:
        row = rows.get(line.tenant)
        if row is None:
            difference.new.append(line)
        elif row.max_job != line.max_job or row.override_until is not None:
            difference.changed.append(Changed(line, row, row.max_job))
        else:
            difference.unchanged += 1
    return difference


def missing_rows(new: Iterable[Line], queue: str) -> list[Problem]:
    """Lines of tenants that have no row, where none may be made."""
    if app_settings.AUTO_CREATE:
        return []
    return [Problem(line.number, str(UnknownTenantQueue(tenant=line.tenant, queue=queue))) for line in new]


@dataclass
class Applied:
    """What came of the lines. To apply them again does the rest."""

    done: Difference
    problems: list[Problem] = field(default_factory=list)
    away_at: int | None = None
    """The number of the line at which the database could not be reached any more; that one is a problem too."""


def apply(
    difference: Difference, queue: str, *, by: str, reason: str, tell: Callable[[Changed | Line], object]
) -> Applied:
    """Each change is a transaction of its own.

    Args:
        tell: called for each row once it has its limit.
    """
    applied = Applied(Difference(unchanged=difference.unchanged))
    try:
        for changes in _parts(difference.changed):
            for changed in _change(changes, by, reason, applied.problems):
                applied.done.changed.append(changed)
                tell(changed)
        for new in _parts(difference.new):
            for line in _make(new, queue, by, reason, applied.problems):
                applied.done.new.append(line)
                tell(line)
    except DatabaseAway as away:
        applied.away_at = away.line
        applied.problems.append(Problem(away.line, str(away)))
    return applied


def _parts(some: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(some), tenants.TENANTS_AT_ONCE):
        yield some[start : start + tenants.TENANTS_AT_ONCE]


def _change(some: Sequence[Changed], by: str, reason: str, problems: list[Problem]) -> Iterator[Changed]:
    """Those that have their limit then: each by one statement, unless somebody else changes it at that moment."""
    written = _written(some, by, reason, problems) if many_limits.is_possible() else set()
    failed = {problem.line for problem in problems}
    for changed in some:
        if changed.line.number in written:
            yield changed
        elif changed.line.number not in failed:
            with _noting(problems, changed.line):
                changed.row.set_limit(changed.line.max_job, by=by, reason=reason)
                yield changed


def _written(some: Sequence[Changed], by: str, reason: str, problems: list[Problem]) -> set[int]:
    """The numbers of their lines. Nobody is told of any before the disk has them all.

    So nobody is told of those before a line at which the database goes away, which may not have kept them.
    """
    with _unless_away(some[0].line):
        rows = TenantQueue.objects.in_bulk([changed.row.pk for changed in some])
    written: dict[int, Edited] = {}
    try:
        for line, row in [(changed.line, rows[changed.row.pk]) for changed in some if changed.row.pk in rows]:
            with _noting(problems, line):
                one = many_limits.edited(row, limits.limited(line.max_job, by), by, reason)
                if one.fields and many_limits.write(one):
                    written[line.number] = one
    except DatabaseAway:
        written = {}
        raise
    finally:
        if written:
            with _unless_away(some[0].line):
                many_limits.wait_for_disk()
                many_limits.follow([*written.values()])
    return {*written}


@contextmanager
def _noting(problems: list[Problem], line: Line) -> Iterator[None]:
    """One row that cannot be had, which a stuck transaction may hold, keeps no other from its limit.

    Raises:
        DatabaseAway: no other can be had either.
    """
    try:
        with _unless_away(line):
            yield
    except (TenantSlotsError, TenantQueue.DoesNotExist, Error) as error:
        problems.append(Problem(line.number, str(error).strip()))


@contextmanager
def _unless_away(line: Line) -> Iterator[None]:
    """Raises DatabaseAway where nothing else can succeed after an error in the block."""
    try:
        yield
    except Error as error:
        if not faults.ends_the_sweep(error):
            raise
        connections[app_settings.DATABASE].close()
        raise DatabaseAway(line, error) from error


def _make(some: Sequence[Line], queue: str, by: str, reason: str, problems: list[Problem]) -> Iterator[Line]:
    """Those whose new row has its limit then."""
    values = _values(some, queue, by, problems)
    rows = _made_together(queue, {line.tenant: own for line, own in values.items()})
    for line, own in values.items():
        with _noting(problems, line):
            row = rows.get(line.tenant) or tenants.get_or_create(line.tenant, queue, own)
            _set_unless_new(row, own, by, reason)
            yield line


def _values(lines: Iterable[Line], queue: str, by: str, problems: list[Problem]) -> dict[Line, dict[str, Any]]:
    """Of new rows, which have their limit from the start."""
    of_all = {"limit_source": LimitSource.SET, "limit_set_by": limits.stored_name(by)}
    values = {}
    for line in lines:
        try:
            with _unless_away(line):
                beside = tenants.defaults_beside_limit(line.tenant, queue)
            values[line] = {"max_job": line.max_job, **beside, **of_all}
        except DatabaseAway:
            raise
        except TenantSlotsError as error:
            problems.append(Problem(line.number, str(error)))
        except Exception as error:  # of a callable of the project
            why = f"DEFAULT_SHARE or DEFAULT_RATE raised {type(error).__name__}: {error}"
            problems.append(Problem(line.number, why.strip()))
    return values


def _made_together(queue: str, values: Mapping[str, dict[str, Any]]) -> dict[str, TenantQueue]:
    """None where this fails: somebody may keep one of them, and it is not to keep the others from their limits."""
    with suppress(TenantSlotsError, Error):
        tenants.create_missing(queue, values)
        return tenant_rows.found_among(values, queue)
    return {}


def _set_unless_new(row: TenantQueue, values: Mapping[str, Any], by: str, reason: str) -> None:
    """A job may have come first, which has made the row with another limit."""
    is_as_made = row.override_until is None and all(getattr(row, name) == values[name] for name in OF_LIMIT)
    if not is_as_made:
        row.set_limit(values["max_job"], by=by, reason=reason)


def _records(file: Iterable[str], problems: list[Problem]) -> Iterator[tuple[int, dict[str, str] | int]]:
    """What each line has by the names of the head; of one that does not fit it, how many columns the head has.

    A cell may have several lines of the file: the number is that of the first one.
    """
    reader = csv.reader(file, skipinitialspace=True, strict=True)
    read = 0
    try:
        names = [name.strip().lower() for name in next(reader, ())]
        if missing := [name for name in (TENANT, LIMIT) if names.count(name) != 1]:
            problems.append(Problem(1, f"the head of the file must name the column {missing[0]} once: tenant,limit"))
            return
        read = reader.line_num
        for cells in reader:
            begun, read = read + 1, reader.line_num
            if cells:
                yield begun, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else len(names)
    except csv.Error as error:  # of a quote that nobody closes, the reader itself would name the end of the file
        problems.append(Problem(read + 1, f"this is not CSV: {error}"))


def _line(number: int, values: dict[str, str] | int, queue: str) -> Line:
    """Raises ValueError or a TenantSlotsError for what is wrong with it."""
    if isinstance(values, int):
        raise ValueError(f"it has not as many columns as the head, {values}")
    tenant = tenants.require_tenant(values[TENANT].strip())
    if not tenant:
        raise ValueError("the tenant is missing")
    return Line(number, tenant, tenants.require_limit(number_or_text(values[LIMIT]), tenant, queue))


def number_or_text(value: object) -> object:
    """The number in a text, or the value itself for the error to show. Python would take ``1_0`` for 10.

    Options that `call_command` is given by keyword are none that Django has parsed: they may be numbers.
    """
    return int(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value
