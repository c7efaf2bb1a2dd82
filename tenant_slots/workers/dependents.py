"""Plain RQ jobs that depend on one of ours are enqueued aside: to do so, RQ reads their meta, and there may be many."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from redis.exceptions import RedisError
from rq.job import Job
from rq.queue import Queue

from tenant_slots import logs
from tenant_slots.conf import app_settings
from tenant_slots.workers.aside import Aside, AsideWorker
from tenant_slots.workers.turns import TurnTakingWorker

logger = logging.getLogger("tenant_slots")

SECONDS_FOR_EACH = 0.05
"""How long RQ may take for one of them, beyond a lease for all. It takes two or three round trips."""

MOST_TRIES = 4
"""How often it may take too long, or fail."""

SECONDS_TO_CLEANED = 0.1
"""For which a worker that would leave waits for a job, before it looks again whether RQ's registries are clean."""

SECONDS_TO_NEXT_TRY = 1
"""Before the second one. Each pause is four times the last one: a Redis that restarts is back by the fourth."""


@dataclass
class Awaited:
    """A job that has ended, and on which others depend."""

    job: Job
    whose: int | str
    """Of which tenant queue it is; for a plain RQ job, of which of RQ's."""
    enqueue: Callable[[], object]
    """What RQ does with these."""
    dependents: int
    tries: int = 0
    not_before: float = 0.0
    """When it is tried again, by `time.monotonic`."""
    started: float = 0.0
    """When it was last tried."""


class DependentsWorker(TurnTakingWorker, AsideWorker):
    """The part of a worker that sees to what depends on jobs, one after the other, and waits for none of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: deque[Awaited] = deque()
        """The first one is under way, if `_enqueuing` is there."""
        self._enqueuing: Aside | None = None
        self._spent: defaultdict[int | str, float] = defaultdict(float)
        """Seconds, on each of those whose jobs were awaited since there was none to await."""
        self.tenant_queues: WeakKeyDictionary[Job, int] = WeakKeyDictionary()
        """Of jobs of ours. RQ's objects do not say it, and its description is what a project likes."""

    def enqueue_dependents_aside(self, queue: Queue) -> None:
        """From now on, when RQ would do so itself."""
        if "enqueue_dependents" not in vars(queue):
            enqueue = partial(self._enqueue_dependents, queue.enqueue_dependents)
            queue.enqueue_dependents = enqueue  # type: ignore[method-assign]

    def _enqueue_dependents(self, enqueue: Callable[..., Any], job: Job, *arguments: Any, **options: Any) -> None:
        """Called by RQ too: for jobs that have failed, and in a work-horse, where it may be done, for plain ones.

        How the job has ended is known here. By the time RQ may have forgotten it.
        """
        if self.is_horse:
            enqueue(job, *arguments, **options)
        elif dependents := self._count_dependents(job):
            assert options.get("pipeline") is None, "what another process writes there would never be sent"
            enqueue = partial(enqueue, job, *arguments, **{"refresh_job_status": False, **options})
            whose = self.tenant_queues.get(job, job.origin)
            self._awaited.append(Awaited(job, whose, partial(_enqueue_and_forget, job, enqueue), dependents))
            self.see_to_dependents()

    def _count_dependents(self, job: Job) -> int:
        """One where Redis cannot be asked: then there may be some."""
        try:
            return int(self.connection.scard(job.dependents_key))
        except RedisError:
            return 1

    def see_to_dependents(self, seconds: float = 0) -> None:
        """Look how far it is, and go on.

        Args:
            seconds: to wait for the one that is under way.
        """
        if self._enqueuing is None:
            self._start_next()
            if self._enqueuing is None:
                return
        answer = self._enqueuing.answer(seconds)
        if answer is not None:
            self._enqueuing = None
            awaited = self._awaited.popleft()
            self._spent[awaited.whose] += time.monotonic() - awaited.started
            self._note(awaited, is_done=answer.is_whole)
            if not self._awaited:
                self._spent.clear()
            self._start_next()

    def see_all_dependents_through(self, seconds: float) -> None:
        """Before this worker leaves, within so many seconds."""
        until = time.monotonic() + seconds
        while self._awaited and time.monotonic() < until:
            self.see_to_dependents(min(1.0, until - time.monotonic()))
            if self._enqueuing is None:  # the next one is not due, or the system has no room for a process
                time.sleep(0.1)

    def _start_next(self) -> None:
        """Of those whose time has come: others do not wait for one that has failed, nor for all of one tenant.

        Next is the tenant on which the least time was spent: if each had one in turn, all would wait for one that hangs
        as often as for those that do not.
        """
        now = time.monotonic()
        due = [one for one in self._awaited if one.not_before <= now]
        if not due:
            return
        awaited = min(due, key=lambda one: self._spent[one.whose])
        aside, enqueue = Aside(self._seconds_for(awaited)), awaited.enqueue
        if aside.start(enqueue):
            awaited.started = now
            self._awaited.remove(awaited)
            self._awaited.appendleft(awaited)
            self._enqueuing = aside

    def _seconds_for(self, awaited: Awaited) -> float:
        return float(app_settings.LEASE_TTL) + SECONDS_FOR_EACH * awaited.dependents

    def _note(self, awaited: Awaited, *, is_done: bool) -> None:
        """What has failed is tried again behind all others."""
        awaited.tries += 1
        if is_done:
            return
        if awaited.tries < MOST_TRIES:
            awaited.not_before = time.monotonic() + SECONDS_TO_NEXT_TRY * 4 ** (awaited.tries - 1)
            self._awaited.append(awaited)
            return
        text = "what depends on job %s is not enqueued: that failed, or took too long"
        logger.error(text, awaited.job.id, extra=logs.about_named(queue=awaited.job.origin))

    def _wait_at_lists(
        self, queues: Sequence[Queue], timeout: float | None, due: float | None, options: dict[str, Any]
    ) -> tuple[Job, Queue] | None:
        """In burst mode too, or it would leave before what it makes ready can be run. It takes what comes meanwhile."""
        if self._awaited:
            timeout = 1 if timeout is None else min(timeout, 1)
        elif timeout is None and self.has_just_begun_to_clean:
            timeout = SECONDS_TO_CLEANED
        return super()._wait_at_lists(queues, timeout, due, options)

    def settle_up(self) -> None:
        super().settle_up()
        self.see_to_dependents()

    def _part(self) -> None:
        try:
            super()._part()
            self.see_all_dependents_through(app_settings.LEASE_TTL)
        finally:
            for awaited in self._awaited:
                text = "what depends on job %s is not enqueued, as its worker ends"
                logger.warning(text, awaited.job.id, extra=logs.about_named(queue=awaited.job.origin))


def _enqueue_and_forget(job: Job, enqueue: Callable[[], object]) -> None:
    """What stays, as it waits for another job too, is known to RQ no longer than the job itself."""
    enqueue()
    seconds = job.connection.ttl(job.key)
    if seconds != -1:  # for ever
        job.connection.expire(job.dependents_key, seconds)  # of one that is forgotten it is -2, which deletes
