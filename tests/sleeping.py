"""In place of `time.sleep`, for tests that see how long somebody waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import current_thread

import pytest


def replace_sleep(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], object]) -> None:
    """In this thread alone: one that a library keeps goes on sleeping as ever."""
    real, own = time.sleep, current_thread()
    monkeypatch.setattr(time, "sleep", lambda seconds: (sleep if current_thread() is own else real)(seconds))
