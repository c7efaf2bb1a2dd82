"""Receivers of a project: they note the process that calls them, and some end it, or do not return."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tenant_slots import signals
from tests.jobs import note

HEARD = ("job_started", "job_ended", "job_put_back")


def note_of(kind: str) -> Callable[..., None]:
    def receive(job: Any, **_: Any) -> None:
        tenant, name, history, *how = job.args
        note(history, kind, tenant, name)
        if how == [f"{kind} exits"]:
            sys.exit(4)
        if how == [f"{kind} hangs"]:
            time.sleep(600)
        if how == [f"{kind} starts a thread"]:
            threading.Thread(target=time.sleep, args=[600], daemon=True).start()

    return receive


receivers = {name: note_of(name) for name in HEARD}


def connect() -> None:
    for name, receiver in receivers.items():
        signals.named(name).connect(receiver)
