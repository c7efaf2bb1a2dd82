"""What a value must be, said once: every other check of a type or a range is built from these.

A bool is no number here: ``True`` as a limit is a mistake, although Python counts it as an int.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from types import FunctionType
from typing import Any, TypeGuard, TypeVar
from uuid import UUID

T = TypeVar("T")

EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""Of these, and what is between them, every time zone has a time in the years 1 to 9999, which Python can express."""


LARGEST_INT_BITS = 10_000
"""Python refuses to write integers of more than 4,300 digits, which is 14,000 bits, as text."""

LONGEST_SHOWN = 200
"""Characters of a value in a message."""


def _is_of(value: object, kind: type[T]) -> TypeGuard[T]:
    """By its own type. A lazy object claims that of what it stands for, and no database driver takes it."""
    return issubclass(type(value), kind)


def is_whole(value: object, lowest: int | None = None, highest: int | None = None) -> TypeGuard[int]:
    """Whether it is an int within these bounds, both included."""
    return _is_of(value, int) and not isinstance(value, bool) and _is_within(value, lowest, highest)


def is_number(value: object, lowest: float | None = None, highest: float | None = None) -> TypeGuard[int | float]:
    """Whether it is an int or a finite float within these bounds, both included."""
    is_one = _is_of(value, int) or (_is_of(value, float) and math.isfinite(value))
    return is_one and not isinstance(value, bool) and _is_within(value, lowest, highest)


def is_positive(value: object, highest: float | None = None) -> TypeGuard[int | float]:
    """Whether it is a number above 0, up to `highest`."""
    return is_number(value, 0, highest) and value > 0


def is_name(value: object) -> TypeGuard[str | int | UUID]:
    """Whether it can name a tenant or a concurrency key: a text, a whole number that can be written, or a UUID."""
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() <= LARGEST_INT_BITS
    return isinstance(value, (str, UUID))


def name_text(value: object) -> str:
    """How a name or a number is written. A member of an Enum as its value is, which JSON keeps in the arguments; a lazy
    object as what it stands for.
    """
    return str(value.value if isinstance(value, Enum) else value)


def is_flag(value: object) -> TypeGuard[bool]:
    return isinstance(value, bool)


def type_problem(value: object, kind: type) -> str:
    """Empty when the value is of this type."""
    fits = issubclass(type(value), kind) and (kind is bool or not isinstance(value, bool))
    return "" if fits else f"it must be of type {kind.__name__}"


def name_problem(value: object) -> str:
    """Empty when `name_text` gives the text that is meant, as of a lazy object that stands for one."""
    return "" if isinstance(value, str) else "it must be of type str"


def time_problem(value: object, *, aware: bool = True) -> str:
    """Why it is no time that a database keeps and every page can show; empty when it is.

    Args:
        aware: whether it must have a time zone, or none.
    """
    if not _is_of(value, datetime):
        return "it must be of type datetime"
    if (value.utcoffset() is not None) is not aware:
        return "it has no time zone" if aware else "it has a time zone, but USE_TZ is off"
    return "" if is_in_calendar(value) else "it is not within the years 1 to 9999 in every time zone"


def is_in_calendar(value: datetime) -> bool:
    """Whether every time zone can express it."""
    if value.utcoffset() is None:
        value = value.replace(tzinfo=UTC)
    try:
        return EARLIEST <= value <= LATEST
    except OverflowError:
        return False


def text_problem(text: str) -> str:
    """Why a database would not take a text; empty when it does."""
    if "\0" in text:
        return "its text holds a NUL character, which PostgreSQL cannot store"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "its text holds half of a surrogate pair"
    return ""


def storable(text: str) -> str:
    """The text as every database takes it."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


@contextmanager
def _any() -> Iterator[None]:
    yield


OF_CONTEXT_MANAGERS = _any.__code__
"""What `contextlib.contextmanager` puts around a function, which is given all that this is called with."""


def call_problem(function: Callable[..., object], *arguments: str) -> str:
    """Why it cannot be called with these arguments; empty where it can, or where nobody knows what it takes, as of some
    that are written in C, or where a decorator is between that may add arguments of its own.
    """
    while isinstance(function, FunctionType) and function.__code__ is OF_CONTEXT_MANAGERS:
        function = function.__wrapped__  # type: ignore[attr-defined]
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError, NameError):  # the last one from Python 3.14 on, of a type that checkers alone import
        return ""
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"{signature} cannot be called with ({', '.join(arguments)}): {error}"
    return ""


def shown(value: object) -> str:
    """Its ``repr`` for a message: short, and of whatever somebody may have given."""
    try:
        text = repr(value)
    except Exception:  # of a class of the project's; and Python refuses to write numbers of thousands of digits
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _is_within(value: Any, lowest: Any, highest: Any) -> bool:
    # Not the negation of "outside": a NaN is neither inside nor outside.
    return (lowest is None or value >= lowest) and (highest is None or value <= highest)


HIGHEST_COUNT = 2**31 - 1
"""That a column for a count takes."""


HIGHEST_TOTAL = 2**63 - 1
"""The same of one that only grows."""


def one_more(count: int) -> int:
    """Of what a row counts; one that SQL from outside has put at its end stays there."""
    return min(count + 1, HIGHEST_COUNT)
