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
``limit_changed``    ``tenant_queue``, ``change``          a method of a tenant queue changed a limit or a pause
===================  ====================================  ===================================================

The sender is ``TenantJob``; for ``swept`` and ``limit_changed`` it is ``TenantQueue``. A ``change`` is a
``models.Change``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.dispatch import Signal

from tenant_slots.interruptions import NOT_OF_THE_CODE

logger = logging.getLogger("tenant_slots")


class RobustSignal(Signal):
    """As Django's, whose `send_robust` lets ``sys.exit()`` through: it would end a worker, or the caller of enqueue().

    Receivers behind one that exits are not told. Who interrupts the process is obeyed, and so
    is the end of the time of a job that calls enqueue().
    """

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        try:
            answers = super().send_robust(sender, **named)
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

_ours: set[tuple[str, str]] = set()
"""Receivers that are our own, with the name of their signal: they write the log, and tell of Django's Tasks."""


def named(name: str) -> Signal:
    signal: Signal = globals()[name]
    return signal


def heard_by_project(name: str) -> bool:
    """Whether this process knows a receiver of the project."""
    return len(named(name).receivers) > sum(signal == name for signal, _ in _ours)


def connect_ours(name: str, receiver: Callable[..., object]) -> None:
    """Connect a receiver that is our own. Once in a process, however often it is called."""
    uid = f"{receiver.__module__}.{receiver.__qualname__}"
    named(name).connect(receiver, dispatch_uid=uid)
    _ours.add((name, uid))


def send(name: str, sender: Any, **facts: Any) -> None:
    named(name).send_robust(sender=sender, **facts)
