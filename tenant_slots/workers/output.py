"""What the project's code has printed: Python keeps it back until there is much of it, or its process ends."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TextIO

from tenant_slots import alarm, garbage


def flush() -> bool:
    """A forked process ends without Python's own end, which would do it, and has a copy of what its parent keeps.

    False where that does not come to its end, as where nobody reads what a job has put in the place of a stream.
    """
    stuck: list[object] = [None]  # for what is interrupted outside of a stream
    with alarm.kept(), garbage.left_in_time():
        streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        stuck = [stream for stream in streams if not _flushed(stream)]
    return not stuck


def _flushed(stream: TextIO | None) -> bool:
    with suppress(Exception):  # it may be closed, full, another object, or none
        try:
            stream.flush()  # type: ignore[union-attr]
        except garbage.LeftoversTimeout:
            return False
    return True
