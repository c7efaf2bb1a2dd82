"""An UPDATE of one row and all that follows from it, or several UPDATEs, in one statement and with the commit.

PostgreSQL only, where the driver binds the parameters.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError, connections
from django.db.models import BooleanField, Func, Model

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.compiled import Asked, Compiled, Statement, execute
from tenant_slots.db.transactions import sqlstate

NO_NUMBER = "22P02"
"""PostgreSQL's SQLSTATE of a text that is to be a number and is none, by which `update_all` has nothing done."""


class Consequence(NamedTuple):
    """What an UPDATE of one row has as its consequence, and nothing has where it changes no row."""

    sql: str
    parameters: list[Any]


def inserted_then(model: type[Model], values: Mapping[str, Any]) -> Consequence:
    """A new row of a model, of these attributes; `DatabaseNow` among them is the database's clock."""
    by_clock = tuple(name for name, value in values.items() if isinstance(value, DatabaseNow))
    sql, fields = _insert_then(model, tuple(values), by_clock, app_settings.DATABASE)
    connection = connections[app_settings.DATABASE]
    return Consequence(sql, [field.get_db_prep_save(values[name], connection) for name, field in fields])


@functools.lru_cache(maxsize=16)
def _insert_then(
    model: type[Model], names: tuple[str, ...], by_clock: tuple[str, ...], alias: str
) -> tuple[str, list[tuple[str, Any]]]:
    """The INSERT, and the fields of its parameters by the names of their attributes."""
    connection = connections[alias]
    fields: dict[str, Any] = {field.attname: field for field in model._meta.concrete_fields}
    columns = [connection.ops.quote_name(str(fields[name].column)) for name in names]
    casts = [f"%s::{fields[name].db_type(connection)}" for name in names]
    selected = ["CLOCK_TIMESTAMP()" if name in by_clock else cast for name, cast in zip(names, casts, strict=True)]
    table = connection.ops.quote_name(model._meta.db_table)
    sql = f"INSERT INTO {table} ({', '.join(columns)}) SELECT {', '.join(selected)} FROM changed"  # noqa: S608 - names
    return sql, [(name, fields[name]) for name in names if name not in by_clock]


def updated_then(asked: Statement, **values: Any) -> Consequence:
    """The changes of another UPDATE, whose condition is to name the rows of ``changed``; see `HasChanged`."""
    sql, parameters = asked.bound(connections[app_settings.DATABASE], values)
    return Consequence(sql, parameters)


class HasChanged(Func):
    """Whether the UPDATE that this is a consequence of has changed its row."""

    output_field = BooleanField()
    template = "EXISTS (SELECT 1 FROM changed)"
    arity = 0


def update_with(
    before: Sequence[str], statement: Statement, consequences: Sequence[Consequence], **values: Any
) -> bool:
    """Update one row, with what follows, as a transaction of its own.

    Args:
        before: statements without parameters to execute first.
        statement: the UPDATE.
        values: of its parameters.

    Returns:
        Whether the row was changed.
    """
    connection = connections[app_settings.DATABASE]
    sql, parameters = statement.bound(connection, values)
    parts = [f"changed AS ({sql} RETURNING 1)", *_numbered_parts(then.sql for then in consequences)]
    parameters = [*parameters, *(value for then in consequences for value in then.parameters)]
    with connection.cursor() as cursor:
        execute(cursor, before, f"WITH {', '.join(parts)} SELECT count(*) FROM changed", parameters)  # noqa: S608 - ours
        return bool(cursor.fetchone()[0])


def update_unless_locked(
    before: Sequence[str], row: Asked, update: Asked, consequences: Sequence[Asked]
) -> tuple[bool, list[Any]]:
    """Lock one row, update another one, with what follows, and commit, unless somebody has the first one locked.

    Args:
        before: what begins the transaction.
        row: a SELECT that passes over a row that is locked.
        update: the UPDATE, which gives back its row.
        consequences: further UPDATEs, as of `updated_then`.

    Returns:
        Whether the lock was free, and the changed row in a list.
    """
    connection = connections[app_settings.DATABASE]
    free, has_changed, *changed = _committed(before, _unless_locked, (row, update, *consequences))
    return bool(free), update.statement.read(connection, [changed] if has_changed else [])


@functools.lru_cache(maxsize=64)
def _unless_locked(alias: str, row: Statement, update: Statement, *consequences: Statement) -> Compiled:
    """About as many as there are ways in which a job leaves."""
    changes = update.compiled(alias)
    is_free = "EXISTS (SELECT 1 FROM held)"
    parts = [
        f"held AS MATERIALIZED ({row.compiled(alias).sql})",
        f"changed AS ({changes.sql} AND {is_free} RETURNING {changes.returning})",
        *_numbered_parts(then.compiled(alias).sql for then in consequences),
    ]
    answer = f"{is_free}, {HasChanged.template}, changed.* FROM (SELECT) AS once LEFT JOIN changed ON true"
    return _of(alias, (row, update, *consequences), f"WITH {', '.join(parts)} SELECT {answer}")


def update_all(updates: Sequence[Asked]) -> list[Any] | None:
    """Update one row with each of these, and commit, or do nothing.

    Args:
        updates: of rows that differ, none of which depends on what another one does.

    Returns:
        What each gives: the number of its rows, which is 1, or its row in a list. None where one of them has found
        none: the transaction can only be rolled back then.
    """
    try:
        _, *found = _committed((), _all_or_none, updates)
    except DatabaseError as error:
        if sqlstate(error) != NO_NUMBER:
            raise
        return None
    left = iter(found)
    return [_its_answer(one.statement, left) for one in updates]


def _its_answer(statement: Statement, found: Iterator[Any]) -> Any:
    """What one of them gives, taken from what is left of what all of them have."""
    connection = connections[app_settings.DATABASE]
    row = list(itertools.islice(found, len(statement.compiled(connection.alias).columns)))
    return statement.read(connection, [row]) if row else 1


@functools.lru_cache(maxsize=64)
def _all_or_none(alias: str, *updates: Statement) -> Compiled:
    """About as many as there are ways in which a job leaves.

    The server's log has the text that is no number.
    """
    whole = [one.compiled(alias) for one in updates]
    parts = _numbered_parts(f"{one.sql} RETURNING {one.returning or 1}" for one in whole)
    names = [f"then_{number}" for number in range(len(whole))]
    given = [name for name, one in zip(names, whole, strict=True) if one.returning]
    changed = " + ".join(f"(SELECT count(*) FROM {name})" for name in names)  # noqa: S608 - ours
    refused = "('tenant_slots: not as expected, once more step by step: ' || once.changed)::integer"
    answer = ", ".join(
        [f"CASE once.changed WHEN {len(whole)} THEN 1 ELSE {refused} END", *(f"{one}.*" for one in given)]
    )
    source = " ".join([f"(SELECT {changed} AS changed) AS once", *(f"LEFT JOIN {one} ON true" for one in given)])
    sql = f"WITH {', '.join(parts)} SELECT {answer} FROM {source}"  # noqa: S608 - ours
    return _of(alias, updates, sql)


def _committed(before: Sequence[str], compile_whole: Callable[..., Compiled], asked: Sequence[Asked]) -> Sequence[Any]:
    """The row that the one statement of all of these gives, which ends the transaction."""
    connection = connections[app_settings.DATABASE]
    values = [value for one in asked for value in one.statement.given(connection, one.values)]
    whole = compile_whole(connection.alias, *(one.statement for one in asked))
    sql, parameters = whole.called_with(connection, values)
    with connection.cursor() as cursor:
        execute(cursor, before, f"{sql}; COMMIT", parameters)
        row: Sequence[Any] = cursor.fetchone()
    return row


def _of(alias: str, statements: Sequence[Statement], sql: str) -> Compiled:
    """One that has the parameters of all of these, in their order."""
    parts = [one.compiled(alias) for one in statements]
    parameters = tuple(parameter for part in parts for parameter in part.parameters)
    return Compiled(alias, sql, parameters, is_prepared=all(part.is_prepared for part in parts))


def _numbered_parts(statements: Iterable[str]) -> Iterator[str]:
    return (f"then_{number} AS ({sql})" for number, sql in enumerate(statements))
