"""What each key of ``TENANT_SLOTS`` may be set to: a rule says what is wrong with a value, or nothing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from django.utils.module_loading import import_string

from tenant_slots import rates
from tenant_slots.exceptions import InvalidRate
from tenant_slots.models import HIGHEST_LIMIT, HIGHEST_SHARE
from tenant_slots.models.queue_minute import VERSION_LENGTH
from tenant_slots.named import NOT_IMPORTABLE
from tenant_slots.tenants import is_limit, is_share
from tenant_slots.validation import call_problem, is_flag, is_number, is_positive, is_whole

Problem = str | None

MOST_TENANTS_WITH_METRICS = 1000
"""Each is ten time series that Prometheus keeps."""

LONGEST = 100 * 366 * 24 * 3600
"""Seconds, a hundred years: what reaches further leads out of the calendar, and a database computes no time from it."""

SHORTEST_LEASE, LONGEST_LEASE = 1, 24 * 24 * 3600
"""Seconds: 24 days. A database is given a fraction of a lease to answer. Timers of the system count milliseconds up to
2**31, and a worker that has one set to more ends.
"""

HIGHEST_WEIGHT = sys.float_info.max
"""A worker that computes with a higher one, which only an int can be, ends with an OverflowError."""


def _seconds(value: object) -> Problem:
    return None if is_positive(value, LONGEST) else f"Give a number of seconds above 0, at most {LONGEST}."


def _lease(value: object) -> Problem:
    fits = is_number(value, SHORTEST_LEASE, LONGEST_LEASE)
    return None if fits else f"Give a number of seconds from {SHORTEST_LEASE} to {LONGEST_LEASE}."


def _seconds_or_none(value: object) -> Problem:
    return None if is_number(value, 0, LONGEST) else f"Give a number of seconds from 0 to {LONGEST}."


def _flag(value: object) -> Problem:
    return None if is_flag(value) else "Give True or False."


def _count(value: object) -> Problem:
    return None if is_whole(value, 0) else "Give a whole number, 0 or above."


def _positive_count(value: object) -> Problem:
    return None if is_whole(value, 1) else "Give a whole number, 1 or above."


def _bytes_or_none(value: object) -> Problem:
    return None if value is None or is_whole(value, 1) else "Give a number of bytes, or None for no bound."


def _limit(value: object) -> Problem:
    return _default(value, is_limit, f"a number from 0 to {HIGHEST_LIMIT}, a dict of such numbers by queue")


def _share(value: object) -> Problem:
    return _default(value, is_share, f"a number from 1 to {HIGHEST_SHARE}, a dict of such numbers by queue")


def _rate(value: object) -> Problem:
    if isinstance(value, str) and not rates.is_notation(value):
        return _callable(value, "tenant", "queue")
    try:
        for rate in value.values() if isinstance(value, Mapping) else [value]:
            if rate is not None:
                rates.parse(rate)
    except InvalidRate as error:
        return f"{error} Or give a dict of rates by queue, the path of a callable, or None."
    return None


def _default(value: object, is_right: Callable[[object], bool], right: str) -> Problem:
    if isinstance(value, str):
        return _callable(value, "tenant", "queue")
    values = list(value.values()) if isinstance(value, Mapping) else [value]
    return None if all(map(is_right, values)) else f"Give {right}, or the path of a callable."


def _importable(path: str) -> Problem:
    try:
        return None if callable(import_string(path)) else f"{path} is not callable."
    except NOT_IMPORTABLE as error:
        return f"It cannot be imported: {error}."


def _callable(path: str, *arguments: str) -> Problem:
    return _importable(path) or _called_with(path, *arguments)


def _called_with(path: str, *arguments: str) -> Problem:
    """What takes others would be an error with each call, and of no job in particular."""
    problem = call_problem(import_string(path), *arguments)
    return f"{path}{problem}." if problem else None


def _may_view_job(value: object) -> Problem:
    return _decision(value, "request", "job")


def _may_view_health(value: object) -> Problem:
    return _decision(value, "request")


def _decision(value: object, *arguments: str) -> Problem:
    if not isinstance(value, str):
        return f"Give the dotted path of a callable({', '.join(arguments)}) -> bool."
    problem = _callable(value, *arguments) if value else None
    if value and not problem and inspect.iscoroutinefunction(import_string(value)):
        return f"{value} is async; give a plain function."
    return problem


def _text(value: object) -> Problem:
    return None if isinstance(value, str) else "Give the alias of a database."


def _queue(value: object) -> Problem:
    return None if isinstance(value, str) else "Give the name of a queue of RQ_QUEUES."


def _version(value: object) -> Problem:
    valid = isinstance(value, str) and len(value) <= VERSION_LENGTH and "\0" not in value
    return None if valid else f"Give a text of at most {VERSION_LENGTH} characters, such as the deployed commit."


def _on_lost_database(value: object) -> Problem:
    return None if value in ("continue", "stop") else 'Give "continue" or "stop".'


def _weights(value: object) -> Problem:
    valid = isinstance(value, Mapping) and all(is_positive(weight, HIGHEST_WEIGHT) for weight in value.values())
    return None if valid else "Give a dict of numbers above 0 by queue."


def _names(value: object) -> Problem:
    valid = isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in value)
    return None if valid else "Give a list of names of arguments."


def _tenants_with_metrics(value: object) -> Problem:
    valid = is_whole(value, 0, MOST_TENANTS_WITH_METRICS) or not _names(value)
    return (
        None
        if valid
        else (f"Give how many tenant queues, from 0 to {MOST_TENANTS_WITH_METRICS}, or a list of tenants as texts.")
    )


def _capture_context(value: object) -> Problem:
    return _callables(value, "() -> dict", ())


def _job_context(value: object) -> Problem:
    return _callables(value, "(job) that gives a context manager", ("job",), _no_context_manager)


def _no_context_manager(path: str, entering: Any) -> Problem:
    if inspect.isgeneratorfunction(entering):
        return f"{path} is a generator; decorate it with contextlib.contextmanager."
    if inspect.isasyncgenfunction(inspect.unwrap(entering)):
        return f"{path} is async; write a plain generator, and decorate it with contextlib.contextmanager."
    if isinstance(entering, type) and not hasattr(entering, "__enter__"):
        return f"{path} is a class that is no context manager; give it __enter__ and __exit__."
    return None


def _callables(
    value: object,
    signature: str,
    arguments: tuple[str, ...],
    also: Callable[[str, object], Problem] = lambda path, found: None,
) -> Problem:
    paths = ([value] if value else []) if isinstance(value, str) else value
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        return f"Give the dotted path of a callable {signature}, or a list of such paths."
    return next(filter(None, (_plain_callable(path, arguments, also) for path in paths)), None)


def _plain_callable(path: str, arguments: tuple[str, ...], also: Callable[[str, object], Problem]) -> Problem:
    if problem := _importable(path):
        return problem
    found = import_string(path)
    if inspect.iscoroutinefunction(found):
        return f"{path} is async; give a plain function."
    return also(path, found) or _called_with(path, *arguments)


RULES: dict[str, Callable[[object], Problem]] = {
    "DEFAULT_MAX_JOB": _limit,
    "DEFAULT_SHARE": _share,
    "DEFAULT_RATE": _rate,
    "AUTO_CREATE": _flag,
    "REQUIRE_TENANT": _flag,
    "IMMEDIATE": _flag,
    "DATABASE": _text,
    "RESCHEDULE_DELAY": _seconds,
    "BEAT_INTERVAL": _seconds,
    "LEASE_TTL": _lease,
    "SWEEP_INTERVAL": _seconds,
    "MAX_CRASHES": _count,
    "JOBS_PER_HORSE": _positive_count,
    "HORSE_MAX_RSS": _bytes_or_none,
    "MAX_INTERRUPTIONS": _count,
    "UNKNOWN_TASK_WAIT": _seconds_or_none,
    "ON_LOST_DATABASE": _on_lost_database,
    "MAX_ARGS_BYTES": _count,
    "RETENTION": _seconds,
    "QUEUE_WEIGHTS": _weights,
    "HIDDEN_ARGUMENTS": _names,
    "CAPTURE_CONTEXT": _capture_context,
    "JOB_CONTEXT": _job_context,
    "ADMIN_QUEUE": _queue,
    "PROJECT_VERSION": _version,
    "MAY_VIEW_JOB": _may_view_job,
    "MAY_VIEW_HEALTH": _may_view_health,
    "MAY_VIEW_METRICS": _may_view_health,
    "METRICS_TENANTS": _tenants_with_metrics,
}
