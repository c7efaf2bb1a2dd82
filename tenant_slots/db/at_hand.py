"""Numbers by primary key that are in this process, for a query to sort by."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import FloatField, Func


class AtHand(Func):
    """The number of each row; 0 for one that has none.

    Args:
        numbers: asked for them when a query is compiled that has a use for them, and only then.
    """

    output_field = FloatField()

    def __init__(self, numbers: Callable[[], Mapping[int, float]]) -> None:
        super().__init__("pk")
        self._numbers = numbers

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self._looked_up(compiler, connection, "COALESCE((%s::jsonb ->> ({})::text)::double precision, 0)")

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self._looked_up(compiler, connection, "COALESCE(JSON_EXTRACT(%s, '$.\"' || {} || '\"'), 0)")

    def _looked_up(self, compiler: Any, connection: Any, template: str) -> tuple[str, list[Any]]:
        key, none = compiler.compile(self.source_expressions[0])
        return template.format(key), [json.dumps(self._numbers()), *none]
