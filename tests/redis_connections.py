"""Connections to Redis end with their test. django-rq makes clients that nobody closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
from redis.connection import AbstractConnection

_alive: WeakSet[AbstractConnection] = WeakSet()
"""Those that are left of earlier tests: a client that is kept may open them again."""


@contextmanager
def closed_at_the_end() -> Iterator[None]:
    """Those that are opened in between, none of which is collected before.

    They are in cycles. If a collection of garbage came between a connection and its socket, the one that takes both
    takes the socket first, and warns of it, in whatever test runs then.
    """
    held = list(_alive)
    begin = AbstractConnection.__init__

    def noted(connection: AbstractConnection, *args: Any, **kwargs: Any) -> None:
        begin(connection, *args, **kwargs)
        held.append(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractConnection, "__init__", noted)
        yield
    for connection in held:
        connection.disconnect()
    _alive.update(held)
