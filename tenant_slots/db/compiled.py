"""Django's statements, compiled once per process.

To build a QuerySet and its SQL takes Django five times the processor time of running it. The few statements that run
for every job, or for every poll of the admin's live list, are therefore written as ever, with named parameters in place
of values, and compiled at their first use.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, Expression, Field, Func, JSONField, Model, QuerySet, Value
from django.db.models.expressions import Col
from django.db.models.sql import UpdateQuery

from tenant_slots.conf import app_settings
from tenant_slots.db import prepared


class Parameter(Expression):
    """A value that is given when the statement runs, converted as that field's values are."""

    def __init__(self, name: str, output_field: Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)

    def prepared(self, value: Any, connection: Any) -> Any:
        return self.output_field.get_db_prep_save(value, connection)


class Keys(Parameter):
    """A list of primary keys, or of names, that is given when the statement runs."""

    def __init__(self, name: str) -> None:
        super().__init__(name, JSONField())

    def prepared(self, value: Any, connection: Any) -> Any:
        return list(value) if connection.vendor == "postgresql" else json.dumps(list(value))


class IsOneOf(Func):
    """Whether a key is one of `Keys`: ``IN`` with a text that does not depend on their number."""

    output_field = BooleanField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="%(expressions)s)", arg_joiner=" = ANY(", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        joiner = " IN (SELECT value FROM json_each("
        return self.as_sql(compiler, connection, template="%(expressions)s))", arg_joiner=joiner, **context)


class Listed(Value):
    """Primary keys for `IsOneOf` in a QuerySet: one parameter, however many they are."""

    def __init__(self, pks: Sequence[int]) -> None:
        super().__init__(list(pks))

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        if connection.vendor == "postgresql":
            return "%s::bigint[]", [f"{{{','.join(map(str, self.value))}}}"]  # a list would be adapted key by key
        return "%s", [json.dumps(self.value)]


def among(pks: Sequence[int], key: str = "pk") -> IsOneOf:
    """A condition: the primary key, or a key to another table, is one of these."""
    return IsOneOf(key, Listed(pks))


def fields_of(model: type[Model], names: Sequence[str]) -> dict[str, Parameter]:
    """Parameters for these fields of a model, under the fields' names."""
    fields = {field.name: field for field in model._meta.concrete_fields}
    return {name: Parameter(name, fields[name]) for name in names}


@dataclass(frozen=True)
class Compiled:
    alias: str
    sql: str
    parameters: tuple[Any, ...]
    model: type[Model] = Model
    columns: tuple[str, ...] = ()
    converters: tuple[tuple[int, Any, Any], ...] = ()
    """Position, converter and expression of the columns that need more than the driver does."""
    returning: str = ""
    """What an UPDATE gives back; its `sql` ends before that."""
    is_prepared: bool = False

    @property
    def text(self) -> str:
        return f"{self.sql} RETURNING {self.returning}" if self.returning else self.sql

    @cached_property
    def given(self) -> tuple[Parameter, ...]:
        """Those of its parameters that are not the same each time."""
        return tuple(one for one in self.parameters if isinstance(one, Parameter))

    def bound(self, values: Iterable[Any]) -> list[Any]:
        """What the driver takes for all of its parameters, by what it takes for those that are given."""
        following = iter(values)
        return [next(following) if isinstance(one, Parameter) else one for one in self.parameters]

    @cached_property
    def numbered(self) -> str:
        """Its text with a number in place of each parameter that is given. The others may be those of an index."""
        numbers = itertools.count(1)
        marks = [f"${next(numbers)}" if isinstance(one, Parameter) else "%s" for one in self.parameters]
        constants = [one for one in self.parameters if not isinstance(one, Parameter)]
        parts = zip(self.text.split("%s"), [*marks, ""], strict=True)
        ops: Any = connections[self.alias].ops
        return str(ops.compose_sql("".join(map("".join, parts)), constants))

    @cached_property
    def marks(self) -> str:
        """What stands for the given ones where it is executed by a name."""
        return f"({', '.join(['%s'] * len(self.given))})" if self.given else ""

    def called_with(self, connection: BaseDatabaseWrapper, values: Sequence[Any]) -> tuple[str, list[Any]]:
        """The text to be sent, and its parameters: those that are given alone where the session has prepared it.

        Args:
            values: of those that are given, as the driver takes them.
        """
        may_prepare = self.is_prepared and prepared.may_prepare(connection)
        name = prepared.name_of(connection, self.numbered) if may_prepare else None
        if name is None:
            return self.text, self.bound(values)
        return f"EXECUTE {name}{self.marks}", list(values)


class Statement:
    """A SELECT or, with `changes`, an UPDATE.

    Args:
        build: makes the QuerySet.
        changes: the new values by field.
        returning: the changed rows are read, as `rows` or `lists` gives them: all of their columns, or these fields
            after the primary key. `together` gives the latter as values.
        lock: how a SELECT locks its rows, where Django has no words for it; on PostgreSQL alone.
        prepared: whether it has one plan, however many rows there are and whatever the values: it finds its rows by a
            unique key, or reads them in the order of the only index that has it.
    """

    def __init__(
        self,
        build: Callable[[], QuerySet[Any]],
        changes: Mapping[str, Any] | None = None,
        *,
        returning: bool | Sequence[str] = False,
        lock: str = "",
        prepared: bool = False,
    ) -> None:
        self._build = build
        self._is_prepared = prepared
        self._lock = lock
        self._changes = changes
        self._returning = returning
        self._by_alias: dict[str, Compiled] = {}

    def update(self, before: Sequence[str] = (), **values: Any) -> int:
        """How many rows were changed. See `rows`."""
        connection = connections[app_settings.DATABASE]
        with connection.cursor() as cursor:
            execute(cursor, before, *self.called(connection, values))
            changed: int = cursor.rowcount
        return changed

    def rows(self, before: Sequence[str] = (), **values: Any) -> list[Any]:
        """The selected or returned rows as instances of the model; for plain columns of one model.

        Args:
            before: statements without parameters to execute first.
            values: of the parameters.
        """
        alias = app_settings.DATABASE
        return self._instances(alias, self.lists(before, **values))

    def _instances(self, alias: str, found: list[list[Any]]) -> list[Any]:
        compiled = self.compiled(alias)
        return [compiled.model.from_db(alias, compiled.columns, row) for row in found]

    def lists(self, before: Sequence[str] = (), **values: Any) -> list[list[Any]]:
        """The selected values of each row, in the order of ``values_list``. See `rows`."""
        connection = connections[app_settings.DATABASE]
        with connection.cursor() as cursor:
            execute(cursor, before, *self.called(connection, values))
            return self._fetched(connection, cursor.fetchall())

    def _answer(self, connection: BaseDatabaseWrapper, cursor: Any) -> Any:
        """The rows, or how many were changed where none are given back."""
        if self._changes and not self._returning:
            return cursor.rowcount
        return self.read(connection, cursor.fetchall())

    def read(self, connection: BaseDatabaseWrapper, fetched: Iterable[Sequence[Any]]) -> list[Any]:
        """Rows as the driver gives them, as instances; where `returning` names fields, as these."""
        found = self._fetched(connection, fetched)
        return self._instances(connection.alias, found) if isinstance(self._returning, bool) else found

    def _fetched(self, connection: BaseDatabaseWrapper, fetched: Iterable[Sequence[Any]]) -> list[list[Any]]:
        found = [list(row) for row in fetched]
        for position, convert, expression in self.compiled(connection.alias).converters:
            for row in found:
                row[position] = convert(row[position], expression, connection)
        return found

    def bound(self, connection: BaseDatabaseWrapper, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The text, and its parameters as the driver takes them."""
        compiled = self.compiled(connection.alias)
        return compiled.text, compiled.bound(self.given(connection, values))

    def called(self, connection: BaseDatabaseWrapper, values: Mapping[str, Any]) -> tuple[str, list[Any]]:
        """The same where it is sent by itself: see `Compiled.called_with`."""
        return self.compiled(connection.alias).called_with(connection, self.given(connection, values))

    def given(self, connection: BaseDatabaseWrapper, values: Mapping[str, Any]) -> list[Any]:
        """The values as the driver takes them, in the order of the text."""
        return [one.prepared(values[one.name], connection) for one in self.compiled(connection.alias).given]

    def compiled(self, alias: str) -> Compiled:
        if alias not in self._by_alias:
            self._by_alias[alias] = replace(self._compile(alias), is_prepared=self._is_prepared)
        return self._by_alias[alias]

    def _compile(self, alias: str) -> Compiled:
        if self._changes:
            return self._compile_update(alias)
        read = self._compile_select(alias, self._build())
        return replace(read, sql=f"{read.sql} {self._lock}") if self._lock else read

    def _compile_update(self, alias: str) -> Compiled:
        query: Any = self._build().query.chain(UpdateQuery)
        query.add_update_values(dict(self._changes or {}))
        sql, parameters = query.get_compiler(alias).as_sql()
        if not self._returning:
            return Compiled(alias, sql, tuple(parameters))
        changed = query.model._base_manager.all()
        read = self._compile_select(alias, changed if self._returning is True else changed.only(*self._returning))
        return replace(read, sql=sql, returning=_read_back(alias, read), parameters=tuple(parameters))

    def _compile_select(self, alias: str, queryset: QuerySet[Any]) -> Compiled:
        compiler = queryset.query.get_compiler(alias)
        sql, parameters = compiler.as_sql()
        expressions = [expression for expression, _, _ in compiler.select]
        converters = tuple(
            (position, convert, expression)
            for position, (found, expression) in compiler.get_converters(expressions).items()
            for convert in found
        )
        columns = tuple(expression.target.attname for expression in expressions if isinstance(expression, Col))
        return Compiled(alias, sql, tuple(parameters), queryset.model, columns, converters)


class Asked(NamedTuple):
    """A statement with its values."""

    statement: Statement
    values: dict[str, Any]


def together(before: Sequence[str], *asked: Asked) -> list[Any]:
    """What each of the statements gives: its rows, or how many it has changed.

    In one round trip, if the server takes several; see `execute`.
    """
    if not asked:
        return []
    connection = connections[app_settings.DATABASE]
    answers = []
    called = [one.statement.called(connection, one.values) for one in asked]
    with connection.cursor() as cursor:
        if len(asked) == 1 or takes_one_at_a_time(connection.alias):
            for one, (sql, parameters) in zip(asked, called, strict=True):
                execute(cursor, before, sql, parameters)
                answers.append(one.statement._answer(connection, cursor))
                before = ()
        else:
            parameters = [value for _, values in called for value in values]
            execute(cursor, before, "; ".join(sql for sql, _ in called), parameters)
            for one in asked:
                answers.append(one.statement._answer(connection, cursor))
                cursor.nextset()
    return answers


class Insertion(Statement):
    """An INSERT of one row. Each parameter has the name of a column's attribute, as ``tenant_queue_id``.

    Args:
        model: whose row it is.
        names: the attributes that are given; all other columns have their default of the database.
        returned: the fields that are read back.
    """

    def __init__(self, model: type[Model], names: Sequence[str], returned: Sequence[str]) -> None:
        super().__init__(lambda: model._base_manager.only(*returned))
        self._model, self._names = model, names

    def _compile(self, alias: str) -> Compiled:
        read = self._compile_select(alias, self._build())
        marks = ", ".join(["%s"] * len(self._names))
        sql = f"{self._into(alias, self._names)} VALUES ({marks}) RETURNING {_read_back(alias, read)}"
        return replace(read, sql=sql, parameters=self._given())

    def _into(self, alias: str, names: Sequence[str]) -> str:
        columns = _quoted_columns(alias, self._model)
        return f"INSERT INTO {_quoted_table(alias, self._model)} ({', '.join(columns[name] for name in names)})"

    def _given(self) -> tuple[Parameter, ...]:
        fields = {field.attname: field for field in self._model._meta.concrete_fields}
        return tuple(Parameter(name, fields[name]) for name in self._names)


class InsertionBeside(Insertion):
    """An `Insertion` of a row that belongs to another one, which the same statement looks for. For PostgreSQL alone.

    Args:
        model, returned: as of `Insertion`.
        names: the attributes that are given, and the one that gets the primary key of the other row.
        key: which of them is that. It is read back too.
        other: finds that primary key, by parameters that are given as well. Without one nothing is stored.
        others: the fields of the other row that are read back after that.
    """

    def __init__(
        self,
        model: type[Model],
        names: Sequence[str],
        returned: Sequence[str],
        *,
        key: str,
        other: Statement,
        others: Sequence[str],
    ) -> None:
        super().__init__(model, [name for name in names if name != key], returned)
        self._key, self._other, self._others = key, other, others

    def _compile(self, alias: str) -> Compiled:
        read, other = self._compile_select(alias, self._build()), self._other.compiled(alias)
        marks = ", ".join(["%s"] * len(self._names))
        key = f"{_quoted_table(alias, self._model)}.{_quoted_columns(alias, self._model)[self._key]}"
        back = ", ".join([_read_back(alias, read), key, *self._read_of(alias, other.model, key)])
        into = self._into(alias, [*self._names, self._key])
        sql = f"{into} SELECT {marks}, other.* FROM ({other.sql}) other RETURNING {back}"  # noqa: S608 - names of columns
        return replace(read, sql=sql, parameters=(*self._given(), *other.parameters))

    def _read_of(self, alias: str, other: type[Model], key: str) -> Iterator[str]:
        """What gives each of the fields of the other row that has this key."""
        table, columns = _quoted_table(alias, other), _quoted_columns(alias, other)
        primary = columns[other._meta.pk.attname]
        for name in self._others:
            yield f"(SELECT {columns[name]} FROM {table} other WHERE other.{primary} = {key})"  # noqa: S608 - names of columns


def _quoted_table(alias: str, model: type[Model]) -> str:
    return connections[alias].ops.quote_name(model._meta.db_table)


def _quoted_columns(alias: str, model: type[Model]) -> dict[str, str]:
    """By attribute."""
    quote = connections[alias].ops.quote_name
    return {field.attname: quote(str(field.column)) for field in model._meta.concrete_fields}


def _read_back(alias: str, read: Compiled) -> str:
    """The columns to be returned, each as its field has a SELECT read it."""
    compiler = read.model._base_manager.all().query.get_compiler(alias)
    fields = {field.attname: field for field in read.model._meta.concrete_fields}
    columns = _quoted_columns(alias, read.model)
    return ", ".join(fields[name].select_format(compiler, columns[name], ())[0] for name in read.columns)


def execute(cursor: Any, before: Sequence[str], sql: str, parameters: list[Any]) -> None:
    """In one round trip, unless the server takes one statement at a time. What goes before is of the transaction."""
    try:
        _execute(cursor, before, sql, parameters)
    except DatabaseError as error:
        prepared.tell_of_loss(cursor.db, error)
        raise


def _execute(cursor: Any, before: Sequence[str], sql: str, parameters: list[Any]) -> None:
    if before and takes_one_at_a_time(cursor.db.alias):
        with transaction.atomic(using=cursor.db.alias) if cursor.db.get_autocommit() else nullcontext():
            for statement in before:
                cursor.execute(statement)
            cursor.execute(sql, parameters)
        return
    cursor.execute("; ".join((*before, sql)), parameters)
    for _ in before:
        cursor.nextset()


def takes_one_at_a_time(alias: str) -> bool:
    """SQLite, and PostgreSQL where the server binds the parameters, and not the driver."""
    connection = connections[alias]
    return connection.vendor != "postgresql" or bool(connection.settings_dict["OPTIONS"].get("server_side_binding"))
