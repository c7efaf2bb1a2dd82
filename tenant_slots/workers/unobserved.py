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

_of_children: tuple[Any, dict[str, Any]] | None = None
"""The project's, and what that is to have in a child: a way to send that nobody has used."""


def stop_observing(*, forks: bool = False) -> None:
    """In this thread, where the project has switched Sentry or OpenTelemetry on.

    Args:
        forks: into processes that send too. A child has all that its parent has not sent yet: it would send that once
            more, and wait for it whenever it waits for its own. Where its parent has sent something, its own first
            event would be left to a thread that is not there (Python 3.11). So a child sends by a way of its own.
    """
    _suppress(True)
    global _client, _of_children
    sentry: Any = sys.modules.get("sentry_sdk")
    if sentry is None or not sentry.get_client().is_active():
        return
    client = sentry.get_client()
    _of_children = (client, _anew(client)) if forks else None
    _client = _twin(client)
    _client.integrations = {name: one for name, one in _client.integrations.items() if name not in OF_QUERIES}
    sentry.get_current_scope().set_client(_client)


def _anew(client: Any) -> dict[str, Any]:
    """As it was before it has sent anything."""
    return {**vars(copy(client)), "integrations": client.integrations}


def _twin(client: Any) -> Any:
    """One that sends by the same way, so that who has it flushed waits for what others have sent.

    A copy, as `copy` makes it, has a way of its own, a thread too, and sets all integrations up once more.
    """
    twin = object.__new__(type(client))
    vars(twin).update(vars(client))
    return twin


def observe_again() -> None:
    """In a forked child, which may run code of the project."""
    _suppress(False)
    global _client, _of_children
    sentry: Any = sys.modules.get("sentry_sdk")
    if _client is not None and sentry.get_current_scope().client is _client:
        sentry.get_current_scope().set_client(None)
    if _of_children is not None:
        client, anew = _of_children
        vars(client).update(anew)  # which all have who have got hold of it, such as Sentry's profiler
    _client = _of_children = None


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
