"""What a worker asks the database and Redis, and its work-horse between two jobs, is in no trace: it is nobody's.

Two of sentry_sdk's integrations make a span and a breadcrumb of each query and each command. These are in no
transaction, so that none of the spans is sent, and they were more than half of what Sentry costs a job. OpenTelemetry's
instrumentations make a trace of one span of each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

OF_QUERIES = ("django", "redis")
"""The names of these integrations. Those that make events of logged errors stay."""

SUPPRESSED = "suppress_instrumentation"
"""Where OpenTelemetry's instrumentations look in its context before they make a span (0.66)."""

_client: Any = None
"""Sentry's for what this process does by itself."""


def stop_observing(*, forks: bool = False) -> None:
    """In this thread, where the project has switched Sentry or OpenTelemetry on.

    Args:
        forks: into processes that send too. A child has all that its parent has not sent yet: it would send that once
            more, and wait for it whenever it waits for its own. So this process sends by a way that no child takes.
    """
    _suppress(True)
    global _client
    sentry: Any = sys.modules.get("sentry_sdk")
    if sentry is None or not sentry.get_client().is_active():
        return
    _client = copy(sentry.get_client()) if forks else _twin(sentry.get_client())
    _client.integrations = {name: one for name, one in _client.integrations.items() if name not in OF_QUERIES}
    sentry.get_current_scope().set_client(_client)


def _twin(client: Any) -> Any:
    """One that sends by the same way, so that who has it flushed waits for what jobs have sent.

    A copy, as `copy` makes it, has a way of its own, a thread too, and sets all integrations up once more.
    """
    twin = object.__new__(type(client))
    vars(twin).update(vars(client))
    return twin


def observe_again() -> None:
    """In a forked child, which may run code of the project."""
    _suppress(False)
    global _client
    sentry: Any = sys.modules.get("sentry_sdk")
    if _client is not None and sentry.get_current_scope().client is _client:
        sentry.get_current_scope().set_client(None)
    _client = None


@contextmanager
def observed() -> Iterator[None]:
    """Around code of the project, in a process that is not observed else."""
    with ExitStack() as stack:
        if (token := _suppress(False)) is not None:
            stack.callback(sys.modules["opentelemetry.context"].detach, token)
        if _client is not None:
            stack.enter_context(sys.modules["sentry_sdk"].new_scope()).set_client(None)
        yield


def _suppress(is_suppressed: bool) -> Any:
    """What OpenTelemetry's context needs to be put back; None where that is as it is to be."""
    context: Any = sys.modules.get("opentelemetry.context")
    if context is None or bool(context.get_value(SUPPRESSED)) is is_suppressed:
        return None
    return context.attach(context.set_value(SUPPRESSED, is_suppressed))
