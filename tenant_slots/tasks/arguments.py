"""What may be stored as a job's arguments and result: JSON that comes back equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from tenant_slots.conf import app_settings
from tenant_slots.exact_json import size_of
from tenant_slots.exceptions import ArgumentNotJSON, ArgumentsTooLarge
from tenant_slots.tasks.task import TaskCall
from tenant_slots.validation import LARGEST_INT_BITS, text_problem

DEEPEST = 500
"""Levels of lists and dicts in each other that are read again wherever the job runs: Python's own limit is for all that
is under way in a thread, and a process may have a higher one than the next.
"""

TOO_DEEP = f"it is nested more than {DEEPEST} levels deep, or holds itself"


def require_storable(call: TaskCall) -> None:
    """Raises ArgumentNotJSON or ArgumentsTooLarge, naming the argument or the size in bytes.

    ``**kwargs`` of a function may have any text for a name.
    """
    for name, value in _named(call):
        if problem := text_problem(name) or json_problem(value):
            raise ArgumentNotJSON(argument=name, task=call.task.path, problem=problem)
    size = size_of([call.stored_args, call.kwargs])
    limit = app_settings.MAX_ARGS_BYTES
    if size > limit:
        raise ArgumentsTooLarge(task=call.task.path, size=size, limit=limit)


def _named(call: TaskCall) -> Iterator[tuple[str, Any]]:
    positional = list(call.task.signature.parameters)[1 if call.task.is_method else 0 :]
    for position, value in enumerate(call.stored_args):
        yield positional[position] if position < len(positional) else f"*args[{position}]", value
    yield from call.kwargs.items()


def json_problem(value: Any) -> str:
    """Why a value would not survive the way through JSON and a database column; empty when it does.

    Nothing of the value is in it, as it is logged of a job's result.
    """
    try:
        return _problem(value, DEEPEST)
    except RecursionError:
        return TOO_DEEP
    except Exception as error:  # of a class of its own that pretends to be one of these
        return f"reading it raises {type(error).__name__}"


def _problem(value: Any, levels: int) -> str:
    if levels < 0:
        return TOO_DEEP
    kind = type(value)  # which a lazy object says of itself, whatever `isinstance` is told
    if issubclass(kind, int):
        return "" if value.bit_length() <= LARGEST_INT_BITS else "it holds a number of thousands of digits"
    if value is None:
        return ""
    if issubclass(kind, str):
        return text_problem(value)
    if issubclass(kind, float):
        return "" if math.isfinite(value) else f"{value!r} is not a JSON number"
    if issubclass(kind, list):
        return next(filter(None, map(_problem, value, repeat(levels - 1))), "")
    if issubclass(kind, dict):
        return _dict_problem(value, levels - 1)
    hint = "; pass a list" if issubclass(kind, (tuple, set, frozenset)) else "; pass its key or its text"
    return f"it holds a {kind.__name__}{hint}"


def _dict_problem(value: dict[Any, Any], levels: int) -> str:
    for key, item in value.items():
        if not isinstance(key, str):
            return f"it holds a dict with a key of type {type(key).__name__}; JSON keys are texts"
        problem = text_problem(key) or _problem(item, levels)
        if problem:
            return problem
    return ""
