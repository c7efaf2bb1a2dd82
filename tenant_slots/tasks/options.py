"""What the options of a job may be. A wrong value is refused where it is written: at import, or by `using()`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction
from rq import Retry

from tenant_slots.conf import app_settings
from tenant_slots.exact_json import size_of
from tenant_slots.exceptions import ImproperJob, InvalidOption
from tenant_slots.models import TenantJob, shapes
from tenant_slots.tasks.arguments import json_problem
from tenant_slots.tasks.duplicates import unique_until_problem
from tenant_slots.tasks.on_busy import on_busy_problem
from tenant_slots.tasks.task import TenantTask
from tenant_slots.tasks.throttle import Throttle
from tenant_slots.validation import (
    HIGHEST_COUNT,
    call_problem,
    is_number,
    is_whole,
    name_problem,
    text_problem,
    time_problem,
    type_problem,
)

HIGHEST_PRIORITY = 1_000_000
LONGEST_KEY: int = TenantJob._meta.get_field("key").max_length or 0

LONGEST = timedelta(days=366)
"""For which two jobs count as identical, until a retry, and until a job expires; a longer time is a mistake."""


def key_problem(value: object) -> str:
    if problem := name_problem(value):
        return problem
    text = str(value)
    return f"it has more than {LONGEST_KEY} characters" if len(text) > LONGEST_KEY else text_problem(text)


def priority_problem(value: object) -> str:
    if problem := type_problem(value, int):
        return problem
    is_in_range = is_whole(value, -HIGHEST_PRIORITY, HIGHEST_PRIORITY)
    return "" if is_in_range else f"it must be from {-HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}"


def _of(kind: type) -> Callable[[Any], str]:
    return lambda value: type_problem(value, kind)


def _timeout_problem(value: Any) -> str:
    problem = f"give seconds, at most {shapes.MOST_SECONDS}, or {shapes.FOR_EVER} for no limit"
    return type_problem(value, int) or ("" if shapes.is_timeout(value) else problem)


def _ttl_problem(value: Any) -> str:
    problem = f"give seconds, from 0 to {shapes.MOST_SECONDS}, or {shapes.FOR_EVER} for ever"
    return type_problem(value, int) or ("" if shapes.is_ttl(value) else problem)


def _description_problem(value: Any) -> str:
    return type_problem(value, str) or text_problem(value)


def _meta_problem(value: Any) -> str:
    return type_problem(value, dict) or json_problem(value) or _size_problem(value)


def _size_problem(value: Any) -> str:
    """RQ keeps it in Redis for each attempt. A limit that is none is reported by a system check."""
    size, limit = size_of(value), app_settings.MAX_ARGS_BYTES
    if not is_whole(limit, 0) or size <= limit:
        return ""
    return f'it takes {size} bytes; TENANT_SLOTS["MAX_ARGS_BYTES"] allows {limit}'


def _retry_problem(value: Any) -> str:
    """RQ takes some that mean nothing (2.12)."""
    if problem := type_problem(value, Retry):
        return problem
    if not is_whole(value.max, 1, HIGHEST_COUNT):
        return f"its max is a whole number from 1 to {HIGHEST_COUNT}"
    if value.enqueue_at_front:
        return "a job that runs again keeps its place in the backlog; leave out enqueue_at_front"
    if not value.intervals:
        return "it has no interval; give 0 for none"
    is_short = all(is_number(seconds, 0, LONGEST.total_seconds()) for seconds in value.intervals)
    return "" if is_short else f"an interval is at most {LONGEST}"


def _retry_for_problem(value: Any) -> str:
    kinds = value if isinstance(value, tuple) else (value,)
    is_kind = bool(kinds) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    return "" if is_kind else "give a class of exceptions, or a tuple of such"


def _callback_problem(value: Any, what: str) -> str:
    """What is wrong with it would be in the log alone, once the first job has ended so."""
    if not callable(value):
        return "give a callable"
    if iscoroutinefunction(value):
        return "it is async; give a plain function"
    return call_problem(value, "job", what)


def _throttle_problem(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, Throttle) for one in value):
        return "give a list of Throttle"
    return ""


def _duration_problem(value: Any) -> str:
    problem = type_problem(value, timedelta)
    return problem or ("" if timedelta(0) < value <= LONGEST else f"it must be longer than nothing, at most {LONGEST}")


def _callable_problem(value: Any) -> str:
    return "" if callable(value) else "give a callable that gets the call's arguments"


def _key_source_problem(value: Any) -> str:
    return "" if callable(value) or isinstance(value, str) else "give the name of an argument, or a callable"


def _run_after_problem(value: Any) -> str:
    return time_problem(value)


def _after_problem(value: Any) -> str:
    if not isinstance(value, list) or not all(isinstance(job, TenantJob) for job in value):
        return "give a list of jobs, as enqueue() returns them"
    return "" if all(job.pk for job in value) else "one of them is not stored"


def _anything(value: Any) -> str:
    return ""


@dataclass(frozen=True)
class Option:
    """One option of `@tenant_job` or of `using()`."""

    problem: Callable[[Any], str]
    """Why a value cannot be meant; empty when it can."""
    is_for_rq: bool = False
    """Kept with the job and handed to RQ with every run."""


DECORATOR_OPTIONS = {
    "timeout": Option(_timeout_problem, is_for_rq=True),
    "result_ttl": Option(_ttl_problem, is_for_rq=True),
    "failure_ttl": Option(_ttl_problem, is_for_rq=True),
    "description": Option(_description_problem, is_for_rq=True),
    "meta": Option(_meta_problem, is_for_rq=True),
    "retry": Option(_retry_problem, is_for_rq=True),
    "on_busy": Option(on_busy_problem),
    "throttle": Option(_throttle_problem),
    "unique_for": Option(_duration_problem),
    "unique_key": Option(_callable_problem),
    "unique_until": Option(unique_until_problem),
    "debounce": Option(_duration_problem),
    "max_wait": Option(_duration_problem),
    "key": Option(_key_source_problem),
    "expires": Option(_duration_problem),
    "retry_for": Option(_retry_for_problem),
    "on_success": Option(partial(_callback_problem, what="result")),
    "on_failure": Option(partial(_callback_problem, what="error")),
}

UNCHANGED: Any = object()
"""Of an option that `using` was not given, where None takes away what the decorator has."""

EXPLICIT = "explicit_"
"""Of the names of what a caller gives as the tenant or the key itself, where the decorator names an argument."""

USING_OPTIONS = {
    "priority": Option(priority_problem),
    "run_after": Option(_run_after_problem),
    "queue": Option(name_problem),
    "explicit_tenant": Option(_anything),
    "explicit_key": Option(key_problem),
    "after": Option(_after_problem),
    "after_any": Option(_of(bool)),
    "timeout": DECORATOR_OPTIONS["timeout"],
    "meta": DECORATOR_OPTIONS["meta"],
    "retry": DECORATOR_OPTIONS["retry"],
    "expires": DECORATOR_OPTIONS["expires"],
    "debounce": DECORATOR_OPTIONS["debounce"],
    "max_wait": DECORATOR_OPTIONS["max_wait"],
}
"""By the name of the field of `TenantTask` that they replace, or of the option for RQ."""


def require_options(task: str, given: Mapping[str, Any], options: Mapping[str, Option]) -> None:
    """Raises InvalidOption for the first given value that cannot be meant."""
    for name, value in given.items():
        if problem := options[name].problem(value):
            asked_for = name.removeprefix(EXPLICIT)
            raise InvalidOption(option=asked_for, value=value, task=task, problem=problem)
    if "retry_for" in given and "retry" not in given:
        problem = "it says after which errors a job runs again; say how often with retry too"
        raise InvalidOption(option="retry_for", value=given["retry_for"], task=task, problem=problem)
    if "unique_until" in given and "unique_for" not in given:
        problem = "it says until when a job is unique; say for how long at most with unique_for too"
        raise InvalidOption(option="unique_until", value=given["unique_until"], task=task, problem=problem)
    if "unique_key" in given and "unique_for" not in given and "debounce" not in given:
        problem = "it says which jobs are equal; say for how long with unique_for too, or give debounce"
        raise InvalidOption(option="unique_key", value=given["unique_key"], task=task, problem=problem)


def require_fitting(task: TenantTask[..., Any]) -> None:
    """Raises InvalidOption where `debounce` does not go together with what else a task has."""
    for option, problem in _misfits(task):
        value = getattr(task, option)
        raise InvalidOption(option=option, value=value, task=task.path, problem=problem)


def _misfits(task: TenantTask[..., Any]) -> Iterator[tuple[str, str]]:
    if task.debounce is None:
        if task.max_wait is not None:
            yield "max_wait", "it says how far debounce may move a run; give debounce too"
        return
    if task.unique_for is not None:
        yield "debounce", "it keeps the newest call, and unique_for the first one; give one of them"
    if task.max_wait is not None and task.max_wait < task.debounce:
        yield "max_wait", f"it is shorter than debounce, which is {task.debounce}"
    if task.expires is not None and task.expires <= task.debounce:
        yield "expires", f"the job would expire before it runs: debounce is {task.debounce}"
    if task.run_after is not None:
        yield "run_after", "debounce says when the job runs"
    if task.after:
        yield "after", "debounce says when the job runs; enqueue it in the last of these jobs"


def as_fields(given: Mapping[str, Any], options: Mapping[str, Option], for_rq: Mapping[str, Any]) -> dict[str, Any]:
    """Options as fields of `TenantTask`: those for RQ together in one.

    Args:
        given: the options that were given, with their values; None takes one away.
        options: what there is.
        for_rq: those for RQ that hold where no other ones are given.
    """
    own = {name: value for name, value in given.items() if options[name].is_for_rq}
    rq_options = {name: value for name, value in {**for_rq, **own}.items() if value is not None}
    return {"rq_options": rq_options, **{name: value for name, value in given.items() if name not in own}}


def require_argument(function: Callable[..., Any], option: str, argument: object, *, but_first: int = 0) -> None:
    """Raises ImproperJob unless the function has this single argument to take a `tenant` or a `key` from.

    Args:
        but_first: how many arguments no call gives, as the context that one of Django's Tasks may take.
    """
    name = getattr(function, "__qualname__", repr(function))
    parameters = dict(list(inspect.signature(function).parameters.items())[but_first:])
    if not isinstance(argument, str) or argument not in parameters:
        has = ", ".join(parameters) or "none"
        raise ImproperJob(
            name=name, problem=f"it has no argument {argument!r} to take the {option} from (it has: {has})"
        )
    if parameters[argument].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise ImproperJob(name=name, problem=f"{argument!r} collects several arguments; name a single one")
