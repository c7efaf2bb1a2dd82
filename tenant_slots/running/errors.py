"""What a function raised, as text for its row and as something that RQ can record.

Formatting an error runs code of the error's class, and fails with it. Recording how a job ended must not.
"""

from __future__ import annotations

import traceback

from tenant_slots.exceptions import ErrorNotFormattable
from tenant_slots.models.tenant_job import ERROR_CLASS_LENGTH
from tenant_slots.validation import storable


def described(error: BaseException) -> tuple[str, BaseException]:
    """The traceback of an error, and the error itself, or one in its place that RQ can format and encode.

    RQ formats the error again (RQ 2.12, Worker.perform_job); a work-horse dies when that raises, and so does a worker
    without work-horses.
    """
    text = ""
    try:
        text = "".join(traceback.format_exception(error))
        text.encode()
    except BaseException as problem:
        instead = _instead_of(error, problem)
        return text or "".join(traceback.format_exception(instead)), instead
    return text, error


def class_path(error: BaseException) -> str:
    """The dotted path of its class; empty where that cannot be read, as a metaclass may have its own idea of it."""
    kind = type(error)
    try:
        return storable(f"{kind.__module__}.{kind.__qualname__}")
    except Exception:
        return ""


def class_of(error: BaseException) -> str:
    """The name of its class, with the module as in a traceback. By it failed jobs are grouped."""
    return class_path(error).removeprefix("builtins.").removeprefix("__main__.")[:ERROR_CLASS_LENGTH]


def last_line(error: BaseException) -> str:
    """An error without its traceback."""
    try:
        return traceback.format_exception_only(error)[-1].strip()
    except BaseException as problem:
        return str(_instead_of(error, problem))


def _instead_of(error: BaseException, problem: BaseException) -> BaseException:
    return ErrorNotFormattable(kind=class_path(error), problem=type(problem).__name__).with_traceback(
        error.__traceback__
    )
