"""How often two sessions are let loose on each other, where nothing forces the schedule."""

from __future__ import annotations

import os


def rounds(most: int) -> int:
    """Fewer where ROUNDS_DIVIDED_BY says so, as on the further servers: what meets there has met before."""
    return most // int(os.environ.get("ROUNDS_DIVIDED_BY", "1"))
