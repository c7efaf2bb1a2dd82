"""A job's arguments and result as text, with everything masked that ``HIDDEN_ARGUMENTS`` names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

from tenant_slots.conf import app_settings
from tenant_slots.models import TenantJob
from tenant_slots.models.fields import Unreadable
from tenant_slots.tasks.registry import known_task_of
from tenant_slots.tasks.task import TenantTask

HIDDEN = "********"

TOO_DEEP = "it is nested too deeply to be shown"


def shown_args(job: TenantJob) -> str:
    """The positional ones, a parameter of a hidden name masked by its place.

    So are those whose parameters nobody knows: of a function that this process does not know, as a web server that has
    not imported it yet, and those that the function took when it was enqueued, and takes no more.
    """
    if isinstance(job.args, Unreadable):
        return job.args.problem
    task = known_task_of(job)
    names = chain(_parameters(task) if task else (), repeat(None))
    named = zip(names, job.args, strict=False)
    return _shown([HIDDEN if name is None or is_hidden(name) else value for name, value in named])


def shown_kwargs(job: TenantJob) -> str:
    return job.kwargs.problem if isinstance(job.kwargs, Unreadable) else _shown(job.kwargs)


def shown_context(job: TenantJob) -> str:
    return job.context.problem if isinstance(job.context, Unreadable) else _shown(job.context)


def shown_result(job: TenantJob) -> str:
    return "" if job.result is None else _shown(job.result)


def masked(value: Any) -> Any:
    """The value with everything masked that stands under a hidden key, however deep."""
    if isinstance(value, dict):
        return {key: HIDDEN if is_hidden(key) else masked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner) for inner in value]
    return value


def is_hidden(name: str) -> bool:
    """Upper and lower case, hyphens and underscores make no difference: ``API-Key`` and ``apiKey`` are ``api_key``."""
    return _plain(name) in {_plain(hidden) for hidden in app_settings.HIDDEN_ARGUMENTS}


def as_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _shown(value: Any) -> str:
    try:
        return as_text(masked(value))
    except RecursionError:
        return TOO_DEEP


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _parameters(task: TenantTask[..., Any]) -> Iterator[str]:
    """The name of the one that takes each positional argument. A method's object is none of the arguments."""
    for parameter in list(task.signature.parameters.values())[task.is_method :]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from repeat(parameter.name)
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            yield parameter.name
