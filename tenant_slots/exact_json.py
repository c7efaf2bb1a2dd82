"""JSON text of which PostgreSQL's jsonb gives back the very same values.

jsonb keeps numbers as decimals: what has no fraction comes back as an int, and no zero is negative. Python reads a
decimal number as the nearest float there is, so that each float has a text which survives.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

NEGATIVE_ZERO = "-1e-400"
"""Too small for a float, which keeps the sign of it."""

_TEXT_OR_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9.]+e\+[0-9]+|-0\.0(?![0-9])')


class ExactEncoder(json.JSONEncoder):
    """Writes floats with a fraction: ``1e16`` as ``10000000000000000.0``."""

    def encode(self, o: Any) -> str:
        text = super().encode(o)
        return _TEXT_OR_NUMBER.sub(_exact, text) if "e+" in text or "-0.0" in text else text


def size_of(value: Any) -> int:
    """In bytes, as it is sent to the database: a float may be written with 300 digits."""
    return len(json.dumps(value, cls=ExactEncoder))


def _exact(found: re.Match[str]) -> str:
    text = found[0]
    if text.startswith('"'):
        return text
    return NEGATIVE_ZERO if text == "-0.0" else f"{Decimal(text):f}.0"
