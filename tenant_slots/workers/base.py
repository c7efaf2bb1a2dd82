"""What all worker classes of ours do: sweep, look into their queues by weight, and learn once what every job needs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from django.db import InterfaceError, OperationalError, connections
from django.utils.module_loading import import_string
from redis import Redis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeout
from rq.exceptions import StopRequested
from rq.job import Job
from rq.queue import Queue
from rq.suspension import is_suspended
from rq.worker import WorkerStatus

import tenant_slots
from tenant_slots import dispatch, logs, queue_directory
from tenant_slots.conf import app_settings
from tenant_slots.db import session_settings
from tenant_slots.db.sessions import settings_of_project
from tenant_slots.owners import Owner, this_process
from tenant_slots.redis_servers import forget_absences, impatient, telling_no_password, try_once_more
from tenant_slots.repair.sweeper import Sweeper
from tenant_slots.running import recording
from tenant_slots.running.outbox import Outbox
from tenant_slots.witness import Phase, Witness
from tenant_slots.workers import kept, weights
from tenant_slots.workers.heartbeats import Heartbeats, Token
from tenant_slots.workers.inheritance import keep_own_from_children
from tenant_slots.workers.kept import Ending, KeptEndings
from tenant_slots.workers.rights import have_standard_files
from tenant_slots.workers.scheduler import SchedulingWorker

logger = logging.getLogger("tenant_slots")

SECONDS_AFTER_REFUSAL = 1
"""How long a worker waits before it asks a Redis again that takes no writes."""

SECONDS_TO_PART = 10
"""How long a worker that is asked to stop tries to record the ends that it keeps; a service manager waits longer."""


class SweepingWorker(SchedulingWorker):
    """Sweeps between jobs and while it waits for one, sends heartbeats, keeps ends that could not be recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        have_standard_files()
        super().__init__(*args, **kwargs)
        self.witness = Witness.shared()
        self.outbox = Outbox()
        self.kept = KeptEndings()
        self.sweeper = Sweeper(self.name)
        self.heartbeats = Heartbeats(
            self.runs,
            self.end_run,
            lambda: self.sweeper.contact.broken(),
            self.look_at_clock,
            self.is_executing,
        )
        self._busy_with_bookkeeping = False
        self.is_suspended = False
        """As far as is known. It takes no job then before it has asked again."""
        self._failure: BaseException | None = None
        self._next_suspension_check = 0.0

    def _set_connection(self, connection: Redis) -> Redis:
        """A worker of ours uses it for plain RQ jobs alone, and may have had none for long: it may be gone by then, as
        where the host of Redis was replaced. RQ's own ask for jobs on it, and have asked anew by then.
        """
        try_once_more(connection)
        return super()._set_connection(connection)

    def work(self, *args: Any, **kwargs: Any) -> bool:
        """As RQ's, which returns as if nothing were wrong when an error ends the loop: this exits with code 1 then."""
        try:
            worked = super().work(*args, **kwargs)
        except StopRequested:  # while it starts: RQ's loop hears of it by itself
            self.teardown()
            worked = False
        finally:
            if not self._has_parted:
                self._part()
        if self._failure is not None:
            raise SystemExit(1)
        return worked

    def teardown(self) -> None:
        """RQ's last step. What this worker keeps is recorded before: RQ waits for its scheduler, and tells Redis.

        Both may take longer than whoever has asked the worker to end waits before he kills it. A second signal ends
        the recording, but Redis is told: a record that stays keeps a worker of the same name from beginning.
        """
        self._has_parted = True
        with self._undisturbed():
            try:
                self._part()
            finally:
                forget_absences()  # it may be back, and nobody tells it later
                super().teardown()  # type: ignore[no-untyped-call]
                self.heartbeats.stop()

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """RQ listens to signals only after it: one that is killed in between leaves its record, as if it had died."""
        self._install_signal_handlers()  # type: ignore[no-untyped-call]
        with telling_no_password():
            super().bootstrap(*args, **kwargs)
            keep_own_from_children(self.at_lists)
        self.owner = this_process(self.name, beats=True)
        session_settings.ask_by(self.session_settings)
        session_settings.ensure_known()
        self._warm_up()
        self.heartbeats.start()

    owner: Owner
    """This process, which answers for its runs."""

    def session_settings(self) -> list[str] | None:
        """What the project sets in its sessions, for our own. Here, where its code runs anyway.

        None where the database is away, or a receiver fails: no session of the project can be made then either.
        """
        return settings_if_made()

    def runs(self) -> dict[Token, int]:
        """Those whose end is not recorded yet: the one that goes on, and those whose ends are kept.

        Each with the work-horse that executes it; 0 where this process does, or the run has ended.
        """
        seen = self.witness.read()
        runs = {}
        if seen.phase in (Phase.HOLDING, Phase.ENDING):
            runs[seen.job_id, seen.token] = seen.process if seen.process != os.getpid() else 0
        return runs | dict.fromkeys(self.kept.runs(), 0)

    def end_run(self, run: Token) -> None:
        """Kill what executes a run, if it still does."""
        raise NotImplementedError

    def look_at_clock(self) -> None:
        """Called by the thread of the heartbeats, once in a while."""

    def is_executing(self, run: Token) -> bool:
        seen = self.witness.read()
        return seen.phase is Phase.HOLDING and (seen.job_id, seen.token) == run

    def keep_what_is_left(self, **decided: Any) -> bool:
        """After a job: what the witness still names has no recorded end, and is settled from here. False: nothing."""
        seen = self.witness.read()
        if seen.phase is Phase.IDLE:
            return False
        self.kept.add(Ending((seen.job_id, seen.token), self.outbox.take(seen.token), **decided))
        self.witness.idle()
        return True

    def settle_kept(self) -> None:
        """Try to record the ends that are kept."""
        self.kept.remove(list(kept.settle(self.kept.whole())))

    def dequeue_job_and_maintain_ttl(self, *args: Any, **kwargs: Any) -> tuple[Job, Queue] | None:
        """Called by RQ once for every job. An order that was drawn goes before RQ's dequeue strategy.

        RQ waits for a Redis that refuses connections, and quits when one does not answer, or takes no writes: it is out
        of memory, cannot save, or has become a replica. That is waited for too.
        """
        if not app_settings.QUEUE_WEIGHTS.keys().isdisjoint(self.queue_names()):
            self._ordered_queues = weights.drawn(self.queues, app_settings.QUEUE_WEIGHTS)
        with self._noting_failure():
            while True:
                try:
                    return super().dequeue_job_and_maintain_ttl(*args, **kwargs)
                except RedisTimeout as error:
                    logger.warning("Redis does not answer, the worker waits for it: %s", error)
                except ResponseError as error:
                    logger.warning("Redis refuses what a worker needs, it is asked again: %s", error)
                    time.sleep(SECONDS_AFTER_REFUSAL)

    @property
    def dequeue_timeout(self) -> int:
        """RQ blocks for minutes; a sweep is due sooner, and an end that is kept sooner still."""
        return 1 if len(self.kept) else max(1, min(super().dequeue_timeout, int(app_settings.SWEEP_INTERVAL)))

    @property
    def max_connection_wait_time(self) -> float:  # type: ignore[override]  # an attribute of the class
        """Seconds between two looks for a Redis that is away. RQ takes up to a minute (2.12), in which a worker neither
        sweeps, nor records the ends that it keeps, nor takes a job as soon as Redis is back.
        """
        return float(self.dequeue_timeout)

    @property
    def connection_timeout(self) -> int:
        """How long Redis may take to answer; it answers at once, but for the wait for a job."""
        return max(1, int(app_settings.SWEEP_INTERVAL)) + 10

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return bool(self.sweeper.is_due or len(self.kept) or super().should_run_maintenance_tasks)

    def settle_up(self) -> None:
        """Called before this worker does something that may take long, and is no job."""

    def run_maintenance_tasks(self) -> None:
        with self._noting_failure():
            self.settle_up()
            if super().should_run_maintenance_tasks:
                self._unless_redis_is_away(super().run_maintenance_tasks)
            with self._undisturbed():
                self.see_to_scheduler()
                self.settle_kept()
                self.sweep()
            if self._stop_requested:
                raise StopRequested

    def sweep(self) -> None:
        """Sweep if it is time, and nobody else does."""
        self.sweeper.sweep_if_due()

    def look_for_lost(self) -> None:
        """What Redis has forgotten, though another process may have just swept."""
        self.sweeper.look_for_lost()

    def check_for_suspension(self, burst: bool) -> None:
        """RQ asks before every job whether ``rq suspend`` was called; once a second is enough.

        While workers are suspended RQ only waits (RQ 2.12). Running jobs of others still need sweeps then.
        """
        if self.is_suspension_check_due:
            with self._noting_failure():
                self.settle_up()
                if self._is_told_to_wait():
                    self._wait_suspended(burst)

    def learn_of_suspension(self) -> None:
        """While a job runs. To ask between two jobs costs a tenant its turn, as another worker is offered its slot."""
        if self.is_suspension_check_due:
            self._is_told_to_wait(beats=False)

    def _is_told_to_wait(self, *, beats: bool = True) -> bool:
        """As far as is known: one that cannot ask goes on with what it was told.

        Args:
            beats: whether RQ is to keep the worker's record for as long as after a job, and not as during one.
        """
        self._next_suspension_check = time.monotonic() + 1
        self._unless_redis_is_away(self._ask_for_suspension, self if beats else None)
        return self.is_suspended

    def _ask_for_suspension(self, worker: SweepingWorker | None) -> None:
        self.is_suspended = bool(is_suspended(self.connection, worker))

    def _wait_suspended(self, burst: bool) -> None:
        if burst:
            self.log.info("Worker %s: suspended in burst mode, exiting", self.name, extra=logs.about())
            raise StopRequested
        self.log.info("Worker %s: suspended, run `rq resume` to resume", self.name, extra=logs.about())
        before = self.get_state()
        self.set_state(WorkerStatus.SUSPENDED)
        while not self._stop_requested and self._is_told_to_wait():
            self.show_presence()
            self.run_maintenance_tasks()
            time.sleep(1)
        self.set_state(before)

    def show_presence(self) -> None:
        """Called once in a while when this worker does not look for a job."""

    @property
    def is_suspension_check_due(self) -> bool:
        return self.is_suspended or time.monotonic() >= self._next_suspension_check

    def _shutdown(self) -> None:
        """RQ raises StopRequested wherever a worker is that it does not think busy (RQ 2.12).

        That would end a recording halfway. And what must go on after any error swallows it, as `logging` does, and
        Python itself in a finalizer: it is noted in any case, and looked at before the next job.
        """
        try:
            super()._shutdown()  # type: ignore[no-untyped-call]
        except StopRequested:
            self._stop_requested = True
            if not self._busy_with_bookkeeping:
                raise

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A stop that is asked for meanwhile comes after this."""
        before, self._busy_with_bookkeeping = self._busy_with_bookkeeping, True
        try:
            yield
        finally:
            self._busy_with_bookkeeping = before

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """RQ logs an error that ends its loop, and then forgets it."""
        try:
            yield
        except (StopRequested, SystemExit):
            raise
        except BaseException as error:
            self._failure = error
            raise

    @cached_property
    def at_lists(self) -> Redis:
        """On which a worker waits for a job: it asks again by itself, and sweeps in between. By host, redis-py tries it
        eleven times, each of them for as long as a Redis may take to answer that.
        """
        return impatient(self.connection, self.connection_timeout)

    def _warm_up(self) -> None:
        """Learn once what every job needs: the runner, the version of Redis, what the first query loads.

        And what the modules of jobs import of ours, so that not every work-horse has to load it for itself.
        """
        for name in tenant_slots.__all__:
            getattr(tenant_slots, name)
        import_string(dispatch.RUNNER)
        for queue in self.queues:
            queue_directory.use_queue(queue)
            queue.get_redis_server_version()
            name_driver_once(queue.connection)
        try:
            recording.warm_up()
        except Exception:  # the project's receivers of `connection_created` may raise any
            logger.exception("the database could not be reached at start; jobs wait until it can")
            connections.close_all()

    def _part(self) -> None:
        """The worker ends: what it keeps nobody else knows, nor the run whose end it was about to record."""
        self.keep_what_is_left(was_interrupted=True)
        self.settle_up()
        deadline = time.monotonic() + SECONDS_TO_PART
        while len(self.kept) and time.monotonic() < deadline:
            self.settle_kept()
            time.sleep(0.1 if len(self.kept) else 0)
        self.heartbeats.stop()


def settings_if_made() -> list[str] | None:
    """Those of the project's sessions; None where one cannot be made now."""
    try:
        return settings_of_project(app_settings.LEASE_TTL / 4)
    except (OperationalError, InterfaceError) as error:
        logger.warning("the database did not answer when its settings were to be learnt: %s", error)
    except Exception:
        logger.exception("no session can be made, as a receiver of connection_created fails: jobs of tenants wait")
    return None


def name_driver_once(connection: Redis) -> None:
    """redis-py 8 reads its version from its package's metadata for each connection: 2 ms in every work-horse."""
    options = connection.connection_pool.connection_kwargs
    if find_spec("redis.driver_info") and options.keys().isdisjoint({"driver_info", "lib_name", "lib_version"}):
        options["driver_info"] = import_string("redis.driver_info.DriverInfo")()
