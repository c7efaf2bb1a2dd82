"""Processes that jobs have started in a work-horse, and that go on, or that nobody has waited for."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from tenant_slots.owners import DEAD, all_stats


def are_left() -> bool:
    """Whether there is one. The next job in this process would wait for it in place of its own, and take it along if it
    crashed: a work-horse that crashes goes with its group.
    """
    return (_has_children() or _leads_others()) and bool(_found() - _of_python())


def _of_python() -> set[int]:
    """That of `multiprocessing`, which stays for as long as this process once somebody has shared memory or a lock. It
    does nothing but clear away what others have left, and another one takes its place.
    """
    tracker: Any = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    return {getattr(tracker, "_pid", None) or 0}


def _found() -> set[int]:
    """The children of this process, and who else lives in its group; -1 where the system does not say."""
    own = os.getpid()
    try:
        stats = all_stats()
    except OSError:
        return {-1}
    return {
        process
        for process, (state, parent, group, *_) in stats.items()
        if process != own and (int(parent) == own or (int(group) == own and state not in DEAD))
    }


def _has_children() -> bool:
    """Those that have ended and were not waited for are among them."""
    if not hasattr(os, "waitid"):  # macOS, Python 3.12 and earlier
        return False
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return True
    return False


def _leads_others() -> bool:
    """Whether others are in the group that this process leads: as what a shell has started with ``&``.

    The system tells of a group only whether it is empty, so this process leaves it for that moment.
    """
    group = os.getpid()
    if os.getpgid(0) != group:
        return False
    with suppress(OSError):  # where its worker has died, or is in a group that cannot be seen from this container
        os.setpgid(0, os.getpgid(os.getppid()))
        try:
            return os.getpgid(0) != group and _exists(group)
        finally:
            os.setpgid(0, group)
    return False


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
