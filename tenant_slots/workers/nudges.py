"""Waiting at RQ's lists for a job, or for word that there may be something else to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from redis import Redis
from rq.exceptions import DequeueTimeout
from rq.intermediate_queue import IntermediateQueue
from rq.job import Job
from rq.queue import Queue
from rq.utils import as_text

from tenant_slots.dispatch import NUDGE

LATENESS = 0.11
"""Seconds by which a wait at Redis may end too late: while it is asked nothing else, it looks for those that are over
ten times a second, by default (its `hz`).
"""

BETWEEN_LOOKS = 0.01
"""Seconds, in that time."""


class Nudged(Queue):
    """Before RQ's queue class (RQ 2.12): a nudge ends the wait at its lists, as if the time were over."""

    note_taken: Callable[[bool], object] = staticmethod(lambda is_taken: None)
    """Told whether a list has given something away, or may be about to: nobody else knows of that."""

    at_lists: Redis | None = None
    """On which the lists are asked, where that is another connection than the one on which what they gave is read."""

    has_passed_over = False
    """Whether one was met that was meant for somebody else, as whoever asks does not wait."""

    @classmethod
    def lpop(cls, queue_keys: Sequence[str], timeout: int | None, connection: Redis | None = None) -> Any:
        cls.note_taken(timeout is None)
        found = super().lpop(queue_keys, timeout, connection=cls.at_lists or connection)
        cls.note_taken(found is not None)
        return cls._unless_nudged(found, timeout)

    @classmethod
    def lmove(cls, connection: Redis, queue_key: str, timeout: int | None) -> Any:
        """A nudge is in the intermediate queue by now."""
        cls.note_taken(timeout is None)
        connection = cls.at_lists or connection
        found = super().lmove(connection, queue_key, timeout)
        cls.note_taken(found is not None)
        if _is_nudge(found):
            connection.lrem(IntermediateQueue.get_intermediate_queue_key(queue_key), 0, NUDGE)
        return cls._unless_nudged(found, timeout)

    @classmethod
    def dequeue_until(cls, queues: Sequence[Queue], seconds: float, **options: Any) -> tuple[Job, Queue]:
        """As `dequeue_any` with a timeout, for a wait that is to end on time: for its last part Redis is asked instead.

        Raises:
            DequeueTimeout: the time is over, or there was a nudge.
        """
        until = time.monotonic() + seconds
        if seconds > LATENESS:
            with suppress(DequeueTimeout):
                return cast("tuple[Job, Queue]", cls.dequeue_any(queues, cast(int, seconds - LATENESS), **options))
            if time.monotonic() < until - LATENESS:
                raise DequeueTimeout(seconds, queues[0].name)  # it was a nudge
        cls.has_passed_over = False
        while time.monotonic() < until and not cls.has_passed_over:
            found = cls.dequeue_any(queues, None, **options)
            if found is not None:
                return found
            time.sleep(max(0.0, min(BETWEEN_LOOKS, until - time.monotonic())))
        raise DequeueTimeout(seconds, queues[0].name)

    @classmethod
    def _unless_nudged(cls, found: Any, timeout: int | None) -> Any:
        if _is_nudge(found):
            if timeout is not None:
                raise DequeueTimeout(timeout, found[0])
            cls.has_passed_over = True  # RQ goes on: it has no such job
        return found


def _is_nudge(found: Any) -> bool:
    return found is not None and as_text(found[1]) == NUDGE
