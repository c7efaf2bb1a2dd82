"""The signs that a worker gives while the job that it runs keeps it from giving them itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

logger = logging.getLogger("tenant_slots")

SECONDS_BETWEEN_SIGNS = 5
"""After which a worker that runs a long job says again that it is there."""

SECONDS_TO_SAY = 5
"""For which the end of a job, or of a worker, waits for a sign that is being given. Redis is asked for less long."""


class Presence(threading.Thread):
    """Says in Redis that the worker is there. Not the thread of the heartbeats: no lease is to wait for a Redis.

    Args:
        say: called every few seconds while the worker cannot look around.
    """

    def __init__(self, say: Callable[[], object]) -> None:
        super().__init__(name="tenant_slots presence", daemon=True)
        self._say = say
        self._is_wanted = False
        self._saying = threading.Lock()
        self._is_over = threading.Event()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Around a job. A sign that is being given is waited for: later it might say of a worker that ends that it
        runs a job. Not for ever, as nobody gives one in a process that the job has forked, and which has left the job.
        """
        self._is_wanted = True
        try:
            yield
        finally:
            is_quiet = self._saying.acquire(timeout=SECONDS_TO_SAY)
            self._is_wanted = False
            if is_quiet:
                self._saying.release()

    def stop(self) -> None:
        self._is_over.set()
        if self.ident is not None:
            self.join(SECONDS_TO_SAY)

    def run(self) -> None:
        while not self._is_over.wait(SECONDS_BETWEEN_SIGNS):
            with self._saying:
                if self._is_wanted:
                    self._say_it()

    def _say_it(self) -> None:
        """No error ends this thread: nobody else would say it."""
        try:
            self._say()
        except BaseException:
            with suppress(BaseException):  # a handler of the project's logs may be what fails
                logger.exception("a worker that runs a job could not say that it is there")
