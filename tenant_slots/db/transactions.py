"""What our statements must know of a transaction that the caller has open."""

from __future__ import annotations

from django.db import connections


def is_open(alias: str) -> bool:
    """Whether what is written now becomes visible with a commit of the caller: an atomic block, or no autocommit."""
    connection = connections[alias]
    return bool(connection.in_atomic_block or not connection.get_autocommit())
