"""What a worker asks the database and Redis, and its work-horse between two jobs, is not for Sentry: it is nobody's.

Two of sentry_sdk's integrations make a span and a breadcrumb of each query and each command. These are in no
transaction, so that none of the spans is sent, and they were more than half of what Sentry costs a job.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

OF_QUERIES = ("django", "redis")
"""The names of these integrations. Those that make events of logged errors stay."""

_client: Any = None
"""Sentry's for what this process does by itself."""


def stop_observing() -> None:
    """In this thread, where the project has switched Sentry on."""
    global _client
    sentry: Any = sys.modules.get("sentry_sdk")
    if sentry is None or not sentry.get_client().is_active():
        return
    _client = copy(sentry.get_client())
    _client.integrations = {name: one for name, one in _client.integrations.items() if name not in OF_QUERIES}
    sentry.get_current_scope().set_client(_client)


def observe_again() -> None:
    """In a forked child, which may run code of the project."""
    global _client
    sentry: Any = sys.modules.get("sentry_sdk")
    if _client is not None and sentry.get_current_scope().client is _client:
        sentry.get_current_scope().set_client(None)
    _client = None


@contextmanager
def observed() -> Iterator[None]:
    """Around code of the project, in a process that is not observed else."""
    if _client is None:
        yield
        return
    sentry: Any = sys.modules["sentry_sdk"]
    with sentry.new_scope() as scope:
        scope.set_client(None)
        yield
