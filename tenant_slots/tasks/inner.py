"""What RQ's own decorator was given where it stands inside ours: taken over, or refused where ours cannot do it.

Ours takes its ``delay`` and ``enqueue`` away, and with them all that it was given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from django_rq.queues import get_result_ttl
from rq import Queue, Retry
from rq.decorators import job as RQDecorator
from rq.defaults import DEFAULT_RESULT_TTL
from rq.utils import parse_timeout

from tenant_slots.conf import rq_queues
from tenant_slots.exceptions import ImproperJob

SECONDS = ("timeout", "result_ttl", "failure_ttl")
TAKEN_OVER = (*SECONDS, "description", "meta", "retry")

INSTEAD = {
    "ttl": "a job of ours waits in the database, where it does not expire",
    "at_front": "use priority of using()",
    "depends_on": "use after= of using()",
    "on_success": "use on_success of @tenant_job, which is given the job and its result",
    "on_failure": "use on_failure of @tenant_job, which is given the job and the error",
    "on_stopped": "use the signal job_ended",
    "webhooks": "use the signal job_ended",
}
"""What a job of ours cannot have, and what to do about it."""


def with_options_inside(function: Callable[..., Any], queue: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a task: its own, and those that RQ's decorator inside ours was given.

    Raises:
        ImproperJob: both say different things, or that one says what ours cannot do.
    """
    inner = _inside(function)
    if inner is None:
        return dict(own)
    _require_same_queue(function, inner, queue)
    for name, instead in INSTEAD.items():
        if value := getattr(inner, name, None):
            raise _conflict(function, f"{name}={value!r} of the @job inside it would be lost; {instead}")
    if inner.queue_class is not Queue:
        kind = f"queue_class={inner.queue_class.__name__} of the @job inside it would be lost"
        raise _conflict(function, f"{kind}; set QUEUE_CLASS of that queue in RQ_QUEUES")
    return {**own, **_taken_over(function, inner, own)}


def _inside(function: Callable[..., Any]) -> RQDecorator | None:
    """It leaves nothing of itself on the function but a ``delay`` that knows it (RQ 2.12)."""
    delay = getattr(function, "delay", None)
    if not inspect.isfunction(delay):
        return None
    known = inspect.getclosurevars(delay).nonlocals.get("self")
    return known if isinstance(known, RQDecorator) else None


def _require_same_queue(function: Callable[..., Any], inner: RQDecorator, queue: str) -> None:
    if _queue_of(inner) != queue:
        problem = (
            f"the @job inside it names queue {_queue_of(inner)!r}, and its jobs go to {queue!r}; name one queue in both"
        )
        raise _conflict(function, problem)


def _taken_over(function: Callable[..., Any], inner: RQDecorator, own: Mapping[str, Any]) -> dict[str, Any]:
    taken = {}
    for name in TAKEN_OVER:
        value = getattr(inner, name, None)
        if name in SECONDS:
            value = parse_timeout(value)
        if value is None or (name == "result_ttl" and _is_unsaid(inner, value, name in own)):
            continue
        if name in own and _plain(own[name]) != _plain(value):
            problem = f"it says {name}={own[name]!r}, and the @job inside it {name}={value!r}; say it once"
            raise _conflict(function, problem)
        taken[name] = value
    return taken


def _is_unsaid(inner: RQDecorator, seconds: int, is_said_by_ours: bool) -> bool:
    """django-rq's decorator gives RQ's the queue's default where it was given none.

    RQ's own has a default then that it means, whatever the queue's is; but nobody has said it against ours.
    """
    queue = _queue_of(inner)
    default = get_result_ttl(queue) if queue in rq_queues() else None
    return seconds == default or (seconds == DEFAULT_RESULT_TTL and (default is None or is_said_by_ours))


def _queue_of(inner: RQDecorator) -> str:
    return inner.queue if isinstance(inner.queue, str) else inner.queue.name


def _plain(value: Any) -> Any:
    """RQ's Retry is equal to itself only."""
    return (value.max, value.intervals) if isinstance(value, Retry) else value


def _conflict(function: Callable[..., Any], problem: str) -> ImproperJob:
    hint = "or leave the @job out, or put it outside of @tenant_job"
    return ImproperJob(name=function.__qualname__, problem=f"{problem}, {hint}")
