"""What a forked child shares with its worker: its end. No database session, and Sentry is told of what it does."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys

from tenant_slots.db.sessions import forget_inherited_sessions
from tenant_slots.workers.unobserved import observe_again

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that this process gets when its parent dies."""

_libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
"""Looked up once, and not by every child."""


@functools.cache
def keep_own_from_children() -> None:
    """From work-horses, RQ's scheduler and what a job forks: our sessions, and that Sentry is told less."""
    os.register_at_fork(after_in_child=forget_inherited_sessions)
    os.register_at_fork(after_in_child=observe_again)


def die_with(parent: int) -> None:
    """Have the kernel kill this child when its worker dies, so that nothing runs unseen (Linux only)."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died between the fork and the line above
