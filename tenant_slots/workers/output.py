"""What the project's code has printed: Python keeps it back until there is much of it, or its process ends."""

from __future__ import annotations

import sys
from contextlib import suppress

from tenant_slots import alarm, garbage


def flush() -> None:
    """A forked process ends without Python's own end, which would do it, and has a copy of what its parent keeps."""
    with alarm.kept(), garbage.left_in_time():
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            with suppress(Exception):  # it may be closed, full, another object, or none
                stream.flush()  # type: ignore[union-attr]
