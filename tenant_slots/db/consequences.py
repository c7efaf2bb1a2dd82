"""An UPDATE of one row and all that follows from it, in one statement: one round trip, its commit included.

PostgreSQL only, where the driver binds the parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import BooleanField, Func, Model

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.compiled import Asked, Compiled, Statement, execute


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
    asked = (row, update, *consequences)
    values = [value for one in asked for value in one.statement.given(connection, one.values)]
    compiled = _unless_locked(connection.alias, *(one.statement for one in asked))
    sql, parameters = compiled.called_with(connection, values)
    with connection.cursor() as cursor:
        execute(cursor, before, f"{sql}; COMMIT", parameters)
        free, has_changed, *changed = cursor.fetchone()
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
    whole = [part.compiled(alias) for part in (row, update, *consequences)]
    parameters = tuple(one for part in whole for one in part.parameters)
    is_prepared = all(part.is_prepared for part in whole)
    return Compiled(alias, f"WITH {', '.join(parts)} SELECT {answer}", parameters, is_prepared=is_prepared)


def _numbered_parts(statements: Iterable[str]) -> Iterator[str]:
    return (f"then_{number} AS ({sql})" for number, sql in enumerate(statements))
