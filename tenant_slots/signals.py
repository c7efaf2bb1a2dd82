"""Signals at the decision points; each is sent after the commit, and a failing receiver changes nothing.

===================  ====================================  ===================================================
signal               arguments                             sent when
===================  ====================================  ===================================================
``jobs_enqueued``    ``jobs``                              new jobs are committed
``jobs_admitted``    ``jobs``                              waiting jobs got a slot
``job_started``      ``job``                               a process begins to run a job
``job_ended``        ``job``                               a job is finished, failed or canceled
``job_put_back``     ``job``, ``reason``                   a job goes back to wait: it retries, its process died, or
                                                           it raised `TenantBusy`
``swept``            ``report``                            a sweep has repaired something
``limit_changed``    ``tenant_queue``, ``change``          a method of a tenant queue changed its limit, share, rate,
                                                           pause, limit per key or largest backlog, or ended a rest
===================  ====================================  ===================================================

The sender is ``TenantJob``; for ``swept`` and ``limit_changed`` it is ``TenantQueue``. A ``change`` is a
``models.Change``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

from tenant_slots.interruptions import NOT_OF_THE_CODE, SweepTimeout

logger = logging.getLogger("tenant_slots")


class RobustSignal(Signal):
    """As Django's, but for `send_robust`: see `sent_robustly`."""

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        return sent_robustly(super().send_robust, sender, **named)


def sent_robustly(
    send_robust: Callable[..., list[tuple[Any, Any]]], sender: Any, **named: Any
) -> list[tuple[Any, Any]]:
    """What a signal's `send_robust` answers, also one of Django's own, which lets ``sys.exit()`` through.

    That would end a worker, or the caller of enqueue(). Receivers behind one that exits are not told. Who interrupts
    the process is obeyed, and so is the end of the time of a sweep, or of a job, which Django's takes for an answer.
    """
    try:
        answers = send_robust(sender, **named)
    except NOT_OF_THE_CODE:
        raise
    except BaseException:
        logger.exception("a receiver has raised what is to end its process; those behind it are not told")
        return []
    for _, answer in answers:
        if isinstance(answer, NOT_OF_THE_CODE):
            raise answer
    return answers


jobs_enqueued = RobustSignal()
jobs_admitted = RobustSignal()
job_started = RobustSignal()
job_ended = RobustSignal()
job_put_back = RobustSignal()
swept = RobustSignal()
limit_changed = RobustSignal()

_ours: dict[str, list[Callable[..., object]]] = {}
"""Receivers that are our own, by the name of their signal: they write the log, and tell of Django's Tasks.

Django does not know of them. To have it tell nobody else, as nearly always, took a hundred calls a job, and Sentry made
a span of each.
"""


def named(name: str) -> Signal:
    signal: Signal = globals()[name]
    return signal


def heard_by_project(name: str) -> bool:
    """Whether this process knows a receiver of the project."""
    return bool(named(name).receivers)


def connect_ours(name: str, receiver: Callable[..., object]) -> None:
    """Connect a receiver that is our own. Once in a process, however often it is called."""
    receivers = _ours.setdefault(name, [])
    if receiver not in receivers:
        receivers.append(receiver)


def send(name: str, sender: Any, **facts: Any) -> None:
    """Tell us, and then the project, also where one of us was interrupted, which is raised in the end.

    But where the time of a sweep is over nobody else is told: he would have no limit.
    """
    interruptions = [_told(receiver, facts) for receiver in _ours.get(name, ())]
    if heard_by_project(name):
        named(name).send_robust(sender=sender, **facts)
    for interruption in filter(None, interruptions):
        raise interruption


def _told(receiver: Callable[..., object], facts: dict[str, Any]) -> BaseException | None:
    """Returns what has interrupted a receiver of ours; whatever else it raises is logged."""
    try:
        receiver(**facts)
    except SweepTimeout:
        raise
    except NOT_OF_THE_CODE as interruption:
        return interruption
    except BaseException:
        logger.exception("a receiver of tenant_slots itself has failed")
    return None
