"""How this process computes with floating-point numbers, beyond what Python knows of it.

A job may have them rounded another way, as for intervals, and libraries that were built to be fast take the smallest
ones for zero from when they are loaded.
"""

from __future__ import annotations

import ctypes
import sys

BYTES = 256
"""More than a `fenv_t` takes on any system."""

_libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None

_is_known = hasattr(_libc, "fegetenv") and hasattr(_libc, "fesetenv")
"""They are of C's library for mathematics, which Python itself uses."""


def environment() -> bytes:
    """As C has it; empty where it cannot be asked."""
    if _libc is None or not _is_known:
        return b""
    found = ctypes.create_string_buffer(BYTES)
    _libc.fegetenv(found)
    return found.raw


def set_environment(before: bytes) -> None:
    if _libc is not None and before:
        _libc.fesetenv(ctypes.create_string_buffer(before, BYTES))
