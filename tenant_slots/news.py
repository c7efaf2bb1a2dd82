"""What is told of a job: our signals, sent at once or gathered for another process to send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tenant_slots import signals
from tenant_slots.models import TenantJob
from tenant_slots.tasks import attempts

News = tuple[str, dict[str, Any]]
"""The name of a signal and its arguments."""

_collected: ContextVar[list[News] | None] = ContextVar("tenant_slots_collected", default=None)


@contextmanager
def collecting() -> Iterator[list[News]]:
    """Send no signal in the block, but gather what is to be told: its receivers are for another process to call."""
    news: list[News] = []
    token = _collected.set(news)
    try:
        yield news
    finally:
        _collected.reset(token)


def send(signal: str, **facts: Any) -> None:
    """Tell it, or gather it."""
    collected = _collected.get()
    if collected is None:
        tell([(signal, facts)])
    else:
        collected.append((signal, facts))


def is_of_task(news: Iterable[News]) -> bool:
    """Whether a call of one of Django's Tasks has ended: whoever tells of it imports the Task, and calls receivers."""
    return any(signal == "job_ended" and attempts.is_call(facts["job"]) for signal, facts in news)


def tell(news: Iterable[News]) -> None:
    """Call the receivers; a failing one is logged by Django."""
    for signal, facts in news:
        signals.send(signal, sender=TenantJob, **facts)
