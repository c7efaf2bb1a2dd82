"""Connections to Redis end with their test. django-rq makes clients that nobody closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.connection import AbstractConnection


@contextmanager
def closed_at_the_end() -> Iterator[None]:
    """Those that are opened in between, none of which is collected before.

    They are in cycles. If a collection of garbage came between a connection and its socket, the one that takes both
    takes the socket first, and warns of it, in whatever test runs then.
    """
    opened: list[AbstractConnection] = []
    begin = AbstractConnection.__init__

    def noted(connection: AbstractConnection, *args: Any, **kwargs: Any) -> None:
        begin(connection, *args, **kwargs)
        opened.append(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AbstractConnection, "__init__", noted)
        yield
    for connection in opened:
        connection.disconnect()
