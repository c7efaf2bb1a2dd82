"""What the options of a job may be. A wrong value is refused where it is written: at import, or by `using()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rq import Retry

from tenant_slots.arguments import json_problem
from tenant_slots.busy import on_busy_problem
from tenant_slots.exceptions import ImproperJob, InvalidOption
from tenant_slots.models import TenantJob
from tenant_slots.throttling import Throttle

HIGHEST_PRIORITY = 1_000_000
LONGEST_KEY: int = TenantJob._meta.get_field("key").max_length or 0

LONGEST = timedelta(days=366)
"""For which two jobs count as identical; a longer time is a mistake."""

RQ_OPTIONS = ("timeout", "result_ttl", "failure_ttl", "description", "meta", "retry")

OWN_OPTIONS = ("on_busy", "throttle", "unique_for", "unique_key", "key")


def require_options(task: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidOption for the first of the decorator's options that cannot be meant."""
    for option, value in options.items():
        if problem := OPTION_RULES[option](value):
            raise InvalidOption(option=option, value=value, task=task, problem=problem)
    if "unique_key" in options and "unique_for" not in options:
        problem = "it says which jobs are equal; say for how long with unique_for too"
        raise InvalidOption(option="unique_key", value=options["unique_key"], task=task, problem=problem)


def require_overrides(task: str, given: Mapping[str, Any]) -> None:
    """Raises InvalidOption for the first value of `using()` that cannot be meant."""
    for option, value in given.items():
        if problem := OVERRIDE_RULES[option](value):
            raise InvalidOption(option=option, value=value, task=task, problem=problem)


def require_argument(function: Callable[..., Any], option: str, argument: object) -> None:
    """Raises ImproperJob unless the function has this single argument to take a `tenant` or a `key` from."""
    name = getattr(function, "__qualname__", repr(function))
    parameters = inspect.signature(function).parameters
    if not isinstance(argument, str) or argument not in parameters:
        has = ", ".join(parameters) or "none"
        raise ImproperJob(
            name=name, problem=f"it has no argument {argument!r} to take the {option} from (it has: {has})"
        )
    if parameters[argument].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise ImproperJob(name=name, problem=f"{argument!r} collects several arguments; name a single one")


def key_problem(value: object) -> str:
    if not isinstance(value, str):
        return "it must be of type str"
    if len(value) > LONGEST_KEY or "\0" in value:
        return f"it must be a text of at most {LONGEST_KEY} characters without NUL"
    return ""


def priority_problem(value: object) -> str:
    if problem := _kind_problem(value, int):
        return problem
    assert isinstance(value, int)
    return "" if abs(value) <= HIGHEST_PRIORITY else f"it must be from {-HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}"


def _kind_problem(value: object, kind: type) -> str:
    fits = isinstance(value, kind) and not isinstance(value, bool)
    return "" if fits else f"it must be of type {kind.__name__}"


def _of(kind: type) -> Callable[[Any], str]:
    return lambda value: _kind_problem(value, kind)


def _timeout_problem(value: Any) -> str:
    return _kind_problem(value, int) or ("give seconds, or -1 for no limit" if value == 0 else "")


def _meta_problem(value: Any) -> str:
    return _kind_problem(value, dict) or json_problem(value)


def _throttle_problem(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, Throttle) for one in value):
        return "give a list of Throttle"
    return ""


def _unique_for_problem(value: Any) -> str:
    problem = _kind_problem(value, timedelta)
    return problem or ("" if timedelta(0) < value <= LONGEST else f"it must be longer than nothing, at most {LONGEST}")


def _callable_problem(value: Any) -> str:
    return "" if callable(value) else "give a callable that gets the call's arguments"


def _key_source_problem(value: Any) -> str:
    return "" if callable(value) or isinstance(value, str) else "give the name of an argument, or a callable"


def _run_after_problem(value: Any) -> str:
    return _kind_problem(value, datetime) or ("it has no time zone" if value.tzinfo is None else "")


def _anything(value: Any) -> str:
    return ""


OPTION_RULES: dict[str, Callable[[Any], str]] = {
    "timeout": _timeout_problem,
    "result_ttl": _of(int),
    "failure_ttl": _of(int),
    "description": _of(str),
    "meta": _meta_problem,
    "retry": _of(Retry),
    "on_busy": on_busy_problem,
    "throttle": _throttle_problem,
    "unique_for": _unique_for_problem,
    "unique_key": _callable_problem,
    "key": _key_source_problem,
}

OVERRIDE_RULES: dict[str, Callable[[Any], str]] = {
    "priority": priority_problem,
    "run_after": _run_after_problem,
    "queue": _of(str),
    "explicit_tenant": _anything,
    "explicit_key": key_problem,
}
