"""What a worker has done by a process of its own: what may hang, and what runs the project's code."""

from __future__ import annotations

import hmac
import logging
import os
import pickle
import time
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import RedisError
from rq.utils import now as utc_now

from tenant_slots import logs, parting, redis_servers
from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import private_connection
from tenant_slots.memory_file import memory_file
from tenant_slots.news import News, tell
from tenant_slots.redis_servers import Absence
from tenant_slots.repair.contact import Contact
from tenant_slots.workers import kept
from tenant_slots.workers.base import SECONDS_TO_PART, SweepingWorker, settings_if_made
from tenant_slots.workers.children import Child

T = TypeVar("T")

logger = logging.getLogger("tenant_slots")


SECONDS_TO_CLEAN = 899
"""As long as RQ lets nobody else clean the registries of a queue. It is RQ that ends callbacks that take too long."""

SECONDS_TO_PART_CLEAN = 1
"""For which a worker that ends waits for a cleaning, of milliseconds mostly. One that is killed is done again later."""

SECONDS_FOR_SWEEP = 1
"""For which a worker that runs no job waits for its sweep. That may last longer, and a tenth of a lease where somebody
is silent; who would leave waits for its end.
"""

KEY_BYTES = SEAL_BYTES = 32
"""Of SHA-256."""

MOST_HANGS = 3
"""How often receivers may take longer than a lease before a worker does without what they set."""


@dataclass(frozen=True)
class Answer:
    """What came of something done aside."""

    is_whole: bool
    """False: it failed, or took too long."""
    value: Any = None


@dataclass(frozen=True)
class Seen:
    """What a sweep has seen that was done aside, for the next one."""

    contact: Contact
    absences: Mapping[Hashable, Absence]


class Aside:
    """One thing at a time, by a process of its own.

    Args:
        seconds: after which the process is killed.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._child: Child | None = None
        self._deadline = 0.0
        self._file: int | None = None
        self._key = b""

    def start(self, function: Callable[[], Any]) -> bool:
        """Have it done. False when the system has no room for another process, or the last one has not ended.

        Args:
            function: what it returns is pickled, and must be of our own classes.
        """
        if self._child is not None:
            return False
        try:
            file, key = self._emptied_file(), os.urandom(KEY_BYTES)
            self._child = Child(lambda: _answer(function, file, key))
        except OSError as error:
            logger.warning("there is no room for a process that does something aside: %s", error)
            return False
        self._deadline, self._key = time.monotonic() + self._seconds, key
        return True

    def _emptied_file(self) -> int:
        if self._file is None:
            self._file = memory_file("tenant_slots_answer")
            weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, 0)
        return self._file

    def is_under_way(self, seconds: float) -> bool:
        """Whether something is, and not longer than for so many."""
        return self._child is not None and time.monotonic() < self._deadline - self._seconds + seconds

    def answer(self, seconds: float = 0) -> Answer | None:
        """What came of it; None when nothing was started, or it has not ended after so many seconds."""
        until = time.monotonic() + seconds
        child, file = self._child, self._file
        if child is None or file is None:
            return None
        while not child.has_ended():
            now = time.monotonic()
            if now > self._deadline:
                child.end()
            elif now >= until:
                return None
            else:
                child.wait(min(until, self._deadline) - now + 0.001)
        self._child = None  # it may have been killed when it had answered, see `_answer`
        seal, answer = os.pread(file, SEAL_BYTES, 0), os.pread(file, os.fstat(file).st_size, SEAL_BYTES)
        if not hmac.compare_digest(seal, _seal_of(answer, self._key)):  # it failed, or a job has left anything there
            return Answer(is_whole=False)
        return Answer(is_whole=True, value=pickle.loads(answer))


def _answer(function: Callable[[], Any], file: int, key: bytes) -> None:
    """And then, before the process ends, what it was asked for meanwhile: to send the error of an `on_busy`."""
    with parting.granting_wishes():
        os.pwrite(file, _sealed(pickle.dumps(function()), key), 0)


def _sealed(answer: bytes, key: bytes) -> bytes:
    return _seal_of(answer, key) + answer


def _seal_of(answer: bytes, key: bytes) -> bytes:
    """Who has the file open, as work-horses have, does not know the key of what was begun after they were forked."""
    return hmac.digest(key, answer, "sha256")


class AsideWorker(SweepingWorker):
    """The part of a worker that has done aside: its sweeps, the ends that it keeps, and RQ's cleaning of registries."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sweeping = Aside(app_settings.LEASE_TTL / 2)
        self._settling = Aside(app_settings.LEASE_TTL)
        self._telling = Aside(app_settings.LEASE_TTL)
        self._cleaning = Aside(SECONDS_TO_CLEAN)
        self._breaks_before = self._hangs = 0
        self._absences: Mapping[Hashable, Absence] = {}
        """As the last sweep has left them, for the next one: this process and its work-horses do not wait so long."""

    @property
    def runs_a_job(self) -> bool:
        raise NotImplementedError

    def session_settings(self) -> list[str] | None:
        """Aside: the project's receivers may hang. Where they always do, the worker does without what they set."""
        one = Aside(app_settings.LEASE_TTL)
        answer = one.answer(app_settings.LEASE_TTL + 1) if one.start(settings_if_made) else None
        if answer is None or answer.is_whole:
            return answer.value if answer is not None else None
        self._hangs += 1
        logger.error("receivers of connection_created took too long, for the %s. time", self._hangs)
        if self._hangs < MOST_HANGS:
            return None
        logger.error("what they set is missing in the sessions in which this worker keeps its books")
        return []

    def settle_kept(self) -> None:
        """Aside: a receiver of the job's end may take its time, and so may the database."""
        self.settle_and_wait(0)

    def settle_and_wait(self, seconds: float) -> None:
        """As `settle_kept`; what is settled within so many seconds is known when this returns."""
        self._telling.answer()  # so that one that takes too long is ended
        self._note_settled(0)
        if len(self.kept) and self._settling.start(_with_session(lambda: list(kept.settle(self.kept.whole())))):
            self._note_settled(seconds)

    def _note_settled(self, seconds: float) -> None:
        answer = self._settling.answer(seconds)
        if answer is not None and answer.is_whole:
            self.kept.remove(answer.value)

    def clean_registries(self) -> None:
        """Aside: RQ calls the callbacks and handlers of plain RQ jobs whose worker has died, and reads their meta."""
        if self._cleaning.start(self._clean_registries):
            self.last_cleaned_at = utc_now()  # type: ignore[assignment]  # RQ begins with None

    def _clean_registries(self) -> None:
        """One queue after the other. Where a callback raises, or exits, RQ would let nobody clean for 15 minutes."""
        self._is_horse = True  # so that what depends on these jobs is enqueued here, too
        for queue in self.queues[:]:
            self.queues = [queue]
            try:
                super().clean_registries()  # type: ignore[no-untyped-call]
            except RedisError:  # it is away for other queues too
                raise
            except BaseException:
                text = "plain RQ jobs of queue %s whose worker has died are not all seen to: their callbacks may fail"
                logger.exception(text, queue.name, extra=logs.about_named(queue=queue.name))
                self._unless_redis_is_away(queue.release_maintenance_lock)

    @property
    def has_just_begun_to_clean(self) -> bool:
        """RQ runs a job again whose worker has died: who would leave waits, but not for one that hangs."""
        return self._cleaning.is_under_way(app_settings.LEASE_TTL)

    def settle_up(self) -> None:
        super().settle_up()
        self._note_cleaned(0)

    def _note_cleaned(self, seconds: float) -> None:
        answer = self._cleaning.answer(seconds)
        if answer is not None and not answer.is_whole:
            logger.error("RQ's registries are not cleaned: that failed, or took too long")
            self.last_cleaned_at = None

    def sweep(self) -> None:
        """Aside, and waited for a moment while no job runs: what it promotes is still to be run."""
        self._note_cleaned(0)  # so that one that takes too long is ended
        self._note_swept(0)
        if self.sweeper.is_due and self._starts(self.sweeper.sweep_if_due):
            self.sweeper.put_off()
            self._note_swept(0 if self.runs_a_job else SECONDS_FOR_SWEEP)

    def look_for_lost(self) -> None:
        self._note_swept(app_settings.LEASE_TTL)
        if self._starts(self.sweeper.look_for_lost):
            self._note_swept(app_settings.LEASE_TTL)

    def _part(self) -> None:
        super()._part()
        self._telling.answer(app_settings.LEASE_TTL)  # it would be killed with this process
        self._note_swept(SECONDS_TO_PART)  # as well, with jobs that it has begun to ask, which nobody would ask again
        self._note_cleaned(SECONDS_TO_PART_CLEAN)

    def _starts(self, sweep: Callable[[], object]) -> bool:
        def seen() -> Seen:
            redis_servers.take_over(self._absences, but_of=self.connection)
            sweep()
            return Seen(self.sweeper.contact, redis_servers.absences())

        has_started = self._sweeping.start(_with_session(seen))
        if has_started:
            self._breaks_before = self.sweeper.contact.breaks
        return has_started

    def tell_while_a_job_runs(self, news: list[News]) -> bool:
        """Have receivers called. False while others are, or where the system has no room for another process."""
        self._telling.answer()
        return self._telling.start(lambda: tell(news))

    def _note_swept(self, seconds: float) -> None:
        """Take over what the process saw; not of the database, if this worker has itself met an outage meanwhile."""
        answer = self._sweeping.answer(seconds)
        if answer is None:
            return
        if not answer.is_whole:
            self.sweeper.contact.broken()
            self.sweeper.contact.waits_for_claims = False  # nobody knows whether it has come to them
            return
        seen: Seen = answer.value
        self._absences = seen.absences
        if self.sweeper.contact.breaks == self._breaks_before:
            self.sweeper.contact = seen.contact


def aside_at_once(function: Callable[[], Any]) -> bool:
    """Have it done, and wait until it is, or has failed, or was killed for taking too long. Whether it is done."""
    one = Aside(app_settings.LEASE_TTL)
    answer = one.answer(app_settings.LEASE_TTL + 1) if one.start(function) else None
    return answer is not None and answer.is_whole


def _with_session(function: Callable[[], T]) -> Callable[[], T]:
    """With a session that ends with it."""

    def run() -> T:
        with private_connection(app_settings.LEASE_TTL / 4):
            return function()

    return run
