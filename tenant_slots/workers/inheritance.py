"""What a forked child shares with its worker: its end, and no database session, nor that Sentry is not told of it."""

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


@functools.cache
def keep_sessions_from_children() -> None:
    """From now on: of work-horses, of RQ's scheduler, and of what a job forks."""
    os.register_at_fork(after_in_child=forget_inherited_sessions)
    os.register_at_fork(after_in_child=observe_again)


def die_with(parent: int) -> None:
    """Have the kernel kill this child when its worker dies, so that nothing runs unseen (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died between the fork and the line above
