"""What a worker tells Redis about itself, again and again: where Redis does not answer, it goes on without.

Written against RQ 2.12, whose worker would wait, or end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.sentinel import MasterNotFoundError
from rq import worker_registration
from rq.job import Job
from rq.utils import now as utc_now
from rq.worker import BaseWorker

from tenant_slots import fleet
from tenant_slots.redis_servers import NO_MASTER, asked, forget_absence, impatient

logger = logging.getLogger("tenant_slots")


class TellingWorker(BaseWorker):
    """The part of a worker that keeps RQ's record of it, on a connection that nobody waits for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._next_heartbeat = 0.0
        self._has_said_that_it_leaves = False

    def register_death(self) -> None:
        """A Redis that is away, or takes no writes, forgets the worker's record by itself."""
        self._unless_redis_is_away(super().register_death)

    def unsubscribe(self) -> None:
        self._unless_redis_is_away(super().unsubscribe)

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ sends three heartbeats around every job for a record that lives for a minute; once a second is enough."""
        now = time.monotonic()
        if timeout is not None or pipeline is not None:
            super().heartbeat(timeout, pipeline)
        elif now >= self._next_heartbeat:
            self._next_heartbeat = now + 1
            self._unless_redis_is_away(super().heartbeat)

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), fleet.CLASS: f"{type(self).__module__}.{type(self).__qualname__}"}

    def say_that_it_leaves(self) -> None:
        """A stop was requested during a job. RQ says so itself, but only of a worker that it thinks busy (RQ 2.12)."""
        if self._stop_requested and not self._has_said_that_it_leaves:
            self._has_said_that_it_leaves = True
            self._shutdown_requested_date = self._shutdown_requested_date or utc_now()
            self.set_shutdown_requested_date()

    def set_shutdown_requested_date(self) -> None:
        """Tells Redis. RQ calls this in a handler of signals, in the midst of a job perhaps, which is not to fail."""
        self._unless_redis_is_away(super().set_shutdown_requested_date)

    def register_again_if_forgotten(self) -> None:
        """After a FLUSHALL RQ's heartbeats bring back a record at most, which nobody finds (RQ 2.12).

        And after an outage that is longer than the record's time one of which nobody knows whose it is.
        """
        with self.impatient.pipeline() as pipeline:
            pipeline.sismember(worker_registration.REDIS_WORKER_KEYS, self.key)
            pipeline.hexists(self.key, "birth")
            if all(pipeline.execute()):
                return
        record: Any = {**self.serialize(), "state": self.get_state()}
        with self.impatient.pipeline() as pipeline:
            pipeline.hset(self.key, mapping=record)
            worker_registration.register(self, pipeline)
            super().heartbeat(None, pipeline)
            pipeline.execute()

    def begin_execution(self, job: Job) -> None:
        """Of a job that Redis has just given to this worker, so that it is asked even if it was away a moment ago.

        Whether or not it notes the execution, RQ needs one at the end of a job, and gives it signs of life.
        """
        forget_absence(self.connection)
        self._unless_redis_is_away(super().prepare_execution, job)

    def set_state(self, state: str, pipeline: Any = None) -> None:
        """RQ says twice after every job that the worker is idle."""
        if pipeline is not None:
            super().set_state(state, pipeline)
        elif state != self.get_state():
            self._unless_redis_is_away(super().set_state, state)

    def _pubsub_exception_handler(self, exc: Exception, *args: Any) -> None:
        """RQ logs the error that its thread has met, which waits for commands to this worker (RQ 2.12).

        It goes on after a lost connection, and ends for whatever else Redis has met: nobody would hear commands then.
        """
        told: Exception = exc
        if isinstance(exc, MasterNotFoundError):
            told = MasterNotFoundError(NO_MASTER)
        elif isinstance(exc, RedisError):
            told = RedisConnectionError(str(exc))
        super()._pubsub_exception_handler(told, *args)

    def _unless_redis_is_away(self, action: Callable[..., object], *args: Any) -> None:
        """What is said again soon. RQ waits for Redis where it asks for a job, and quits when this raises.

        The connection to wait for a job on would wait for minutes, and the end of a job with it.
        """
        patient, self.connection = self.connection, self.impatient
        try:
            self._if_redis_answers(action, *args)
        finally:
            self.connection = patient

    def _if_redis_answers(self, action: Callable[..., object], *args: Any) -> None:
        """For any thread: what it says again soon, on a connection that nobody waits for."""
        try:
            with asked(self.impatient):
                action(*args)
        except RedisError as error:
            logger.warning("Redis is out of reach: %s", error)

    @cached_property
    def impatient(self) -> Redis:
        """A connection that nobody waits for."""
        return impatient(self.connection)
