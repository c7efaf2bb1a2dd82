"""What a forked child shares with its worker: its end. No session of the database, no connection on which the worker
waits for Redis; and Sentry is told of what the child does.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
from weakref import WeakSet

from redis import Redis
from redis.connection import AbstractConnection

from tenant_slots.db.sessions import forget_inherited_sessions
from tenant_slots.running.coroutines import forget_thread_of_parent
from tenant_slots.workers.unobserved import observe_again

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>: the signal that this process gets when its parent dies."""

_libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
"""Looked up once, and not by every child."""


_waiting: WeakSet[AbstractConnection] = WeakSet()
"""The connection on which a worker waits for jobs. RQ's scheduler outlives a worker that is killed, and would keep it
open: Redis would give the next job to nobody.
"""


def keep_own_from_children(redis: Redis) -> None:
    """From work-horses, RQ's scheduler and what a job forks: our sessions, where we wait, and that Sentry is told less.

    Args:
        redis: on which the worker waits for jobs, and nobody else asks anything: it has one connection.
    """
    with redis.client() as client:  # type: ignore[no-untyped-call]
        _waiting.add(client.connection)
    _keep_from_children()


@functools.cache
def _keep_from_children() -> None:
    os.register_at_fork(after_in_child=forget_inherited_sessions)
    os.register_at_fork(after_in_child=_forget_inherited_connections)
    os.register_at_fork(after_in_child=forget_thread_of_parent)
    os.register_at_fork(after_in_child=observe_again)


def _forget_inherited_connections() -> None:
    """As redis-py does when a child first asks something, which RQ's scheduler does elsewhere. The worker keeps it."""
    for connection in _waiting:
        connection.disconnect()  # type: ignore[no-untyped-call]


def die_with(parent: int) -> None:
    """Have the kernel kill this child when its worker dies, so that nothing runs unseen (Linux only)."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died between the fork and the line above
