"""What all worker classes of ours do: sweep, look into their queues by weight, and learn once what every job needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from django.db import Error
from django.utils.module_loading import import_string
from redis import Redis
from rq.exceptions import StopRequested
from rq.job import Job
from rq.queue import Queue
from rq.worker import BaseWorker

from tenant_slots import dispatch
from tenant_slots.conf import app_settings
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.running import recording
from tenant_slots.running.run import Run
from tenant_slots.running.witness import Witness
from tenant_slots.workers import weights

logger = logging.getLogger("tenant_slots")


class SweepingWorker(BaseWorker):
    """Sweeps between jobs, and while it waits for one. Looks into its queues by weight."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.witness = self._new_witness()
        self.sweeper = Sweeper(self.name)
        self._busy_with_bookkeeping = False

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        self._warm_up()

    def dequeue_job_and_maintain_ttl(self, *args: Any, **kwargs: Any) -> tuple[Job, Queue] | None:
        """Called by RQ once for every job. An order that was drawn goes before RQ's dequeue strategy."""
        if not app_settings.QUEUE_WEIGHTS.keys().isdisjoint(self.queue_names()):
            self._ordered_queues = weights.drawn(self.queues, app_settings.QUEUE_WEIGHTS)
        return super().dequeue_job_and_maintain_ttl(*args, **kwargs)

    @property
    def dequeue_timeout(self) -> int:
        """RQ blocks for minutes; a sweep is due sooner."""
        return max(1, min(super().dequeue_timeout, int(app_settings.SWEEP_INTERVAL)))

    @property
    def connection_timeout(self) -> int:
        return super().dequeue_timeout + 10

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return self.sweeper.is_due or super().should_run_maintenance_tasks

    def run_maintenance_tasks(self) -> None:
        if super().should_run_maintenance_tasks:
            super().run_maintenance_tasks()  # type: ignore[no-untyped-call]
        with self._undisturbed():
            self.sweeper.sweep_if_due()
        if self._stop_requested:
            raise StopRequested

    def _shutdown(self) -> None:
        """RQ raises StopRequested wherever a worker is that it does not think busy (RQ 2.12).

        That would end a recording halfway, or be swallowed by what must go on after any error.
        """
        try:
            super()._shutdown()  # type: ignore[no-untyped-call]
        except StopRequested:
            if not self._busy_with_bookkeeping:
                raise
            self._stop_requested = True

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A stop that is asked for meanwhile comes after this."""
        self._busy_with_bookkeeping = True
        try:
            yield
        finally:
            self._busy_with_bookkeeping = False

    def new_run(self) -> Run:
        """For the next job; an outage that it meets is this worker's, which then calls no owner stale for a lease."""
        return Run(self.name, self.witness, beats=True, on_outage=self.sweeper.contact.broken)

    def _new_witness(self) -> Witness:
        """Where the runs of this worker note which slot they hold."""
        return Witness()

    def _warm_up(self) -> None:
        """Learn once what every job needs: the runner, the version of Redis, what the first query loads."""
        import_string(dispatch.RUNNER)
        for queue in self.queues:
            dispatch.use_queue(queue)
            queue.get_redis_server_version()
            name_driver_once(queue.connection)
        try:
            recording.warm_up()
        except Error:
            logger.exception("the database could not be reached at start; jobs wait until it can")


def name_driver_once(connection: Redis) -> None:
    """redis-py 8 reads its version from its package's metadata for each connection: 2 ms in every work-horse."""
    options = connection.connection_pool.connection_kwargs
    if find_spec("redis.driver_info") and options.keys().isdisjoint({"driver_info", "lib_name", "lib_version"}):
        options["driver_info"] = import_string("redis.driver_info.DriverInfo")()
