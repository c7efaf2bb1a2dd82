"""How a worker of ours comes to its next job: by the turn of a tenant, or from RQ's list as any worker does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

from django.db import Error
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from rq.exceptions import DequeueTimeout, StopRequested
from rq.job import Job
from rq.queue import Queue

from tenant_slots import dispatch, fair_order, logs, transitions
from tenant_slots.exceptions import UnreadableColumn
from tenant_slots.fair_order import Freed, Next, Turn
from tenant_slots.models import TenantJob
from tenant_slots.news import News, collecting, tell
from tenant_slots.redis_servers import forget_absence, telling_no_password
from tenant_slots.refusals import is_outage
from tenant_slots.running.recording import NOT_BEGUN
from tenant_slots.running.run import SECONDS_TO_CHARGE, WatchedRun
from tenant_slots.witness import Phase
from tenant_slots.workers.base import SweepingWorker
from tenant_slots.workers.heartbeats import Token
from tenant_slots.workers.kept import Ending
from tenant_slots.workers.nudges import Nudged
from tenant_slots.workers.presence import SECONDS_BETWEEN_SIGNS

logger = logging.getLogger("tenant_slots")

SECONDS_WITHOUT_DATABASE = 1
"""How long a worker waits before it asks a database again that did not answer."""

SHORTEST_WAIT = 0.002
"""Seconds. Redis waits for ever when it is told to wait for none."""


class TurnTakingWorker(SweepingWorker):
    """Takes the next tenant's turn: admits its job and marks it as running at once, without a detour through RQ.

    What is in RQ's list is taken from there: plain RQ jobs, and what others have admitted while this worker was idle.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dequeue = {"dequeue_any": staticmethod(self._next_job)}
        noting = {"note_taken": staticmethod(self._note_taken)}
        self._rq_queue_class: type[Nudged] = type(self.queue_class.__name__, (Nudged, self.queue_class), noting)
        self.queue_class = cast(type[Queue], type(self.queue_class.__name__, (self.queue_class,), dequeue))
        self._taken: WatchedRun | None = None
        """The run of the next job, which is marked as running already."""
        self._slot: Freed | None = None
        """One that is free, and that is told to the order of tenants when this worker asks who is next."""
        self._followed: tuple[Freed, float] | None = None
        """The slot that the job has left which is executed now, and when."""
        self._has_waited = False
        """At RQ's lists, since it has last asked who is next; or it has taken a nudge from there."""
        self._has_looked_for_lost = False
        """Since its last job: what Redis has forgotten."""
        self._next_sign = 0.0
        self._is_bounded = False

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        super().bootstrap(*args, **kwargs)
        self.show_presence()  # or the first sweep would admit a job ahead of it, as for a worker that is not ours

    def new_run(self) -> WatchedRun:
        """For the next job."""
        raise NotImplementedError

    def goes_on(self) -> bool:
        """Whether this worker looks for another job after the one that it runs."""
        return not self._stop_requested and not self._is_bounded

    def work(self, *args: Any, max_jobs: int | None = None, **kwargs: Any) -> bool:
        self._is_bounded = max_jobs is not None
        return super().work(*args, max_jobs=max_jobs, **kwargs)

    def taken_run(self) -> WatchedRun | None:
        """The run of the job that is to be executed, if it was begun when its tenant's turn was taken."""
        run, self._taken = self._taken, None
        return run

    def free(self, slot: Freed) -> None:
        """The slot of the job that has just ended.

        Others are looked for who may take what its tenant has waiting: receivers of the end may keep this worker.
        """
        transitions.free(slot)
        self._followed = slot, time.monotonic()

    def freed_aside(self, job: TenantJob, queue: Queue, since: float) -> None:
        """Another process has freed the slot of a job that had no end of its own, for which this one has waited.

        Args:
            since: when that began, by `time.monotonic`.
        """
        self._followed = Freed(job.tenant_queue_id, fair_order.NOTHING_CHARGED, queue.name), since

    @contextmanager
    def charging_what_follows(self) -> Iterator[None]:
        """Around the execution of a job: its tenant is charged for receivers of its end as for the job itself."""
        self._followed = None
        yield
        self._charge_what_followed()

    def _charge_what_followed(self) -> None:
        if self._followed is None:
            return
        slot, since = self._followed
        seconds = time.monotonic() - since
        if seconds >= SECONDS_TO_CHARGE:
            self._unless_redis_is_away(fair_order.cost, slot.rq_queue, slot.tenant_queue_id, seconds)

    def settle_up(self) -> None:
        super().settle_up()
        slot, self._slot = self._slot, None
        if slot is not None:
            self._feed_others(partial(transitions.free, slot))

    def show_presence(self) -> None:
        """Whoever admits jobs need not push any for this worker. Called once in a while during a job."""
        if self._is_sign_due():
            self._unless_redis_is_away(fair_order.show_presence, self.key, self.queue_names())
            self._unless_redis_is_away(self.register_again_if_forgotten)

    def _is_sign_due(self) -> bool:
        is_due = time.monotonic() >= self._next_sign
        if is_due:
            self._next_sign = time.monotonic() + SECONDS_BETWEEN_SIGNS
        return is_due

    def _next_job(self, queues: Sequence[Queue], timeout: int | None, **options: Any) -> tuple[Job, Queue] | None:
        """In place of RQ's ``Queue.dequeue_any``, which its worker calls (RQ 2.12).

        A stop that is asked for from then on comes after the job: nobody else would know of it for a while.

        Raises:
            DequeueTimeout: nothing has come in time.
            StopRequested: this worker is to end.
            ConnectionError: Redis is away.
        """
        if self._stop_requested:
            raise StopRequested
        found, self._rq_queue_class.at_lists = None, self.at_lists
        try:
            with telling_no_password():  # RQ logs what it meets while it waits
                found = self._found(queues, timeout, options)
        except RedisConnectionError:
            forget_absence(self.connection)  # RQ waits before it has us ask again, which is to be a question then
            raise
        finally:
            self._busy_with_bookkeeping = found is not None
        return found

    def _note_taken(self, is_taken: bool) -> None:
        """A stop that is asked for once a list of RQ's has given a job away comes after that job.

        Or at once, where there turns out to be none: RQ would go on to wait for another one.
        """
        self._busy_with_bookkeeping = is_taken
        if self._stop_requested and not is_taken:
            raise StopRequested

    def _found(self, queues: Sequence[Queue], timeout: int | None, options: dict[str, Any]) -> tuple[Job, Queue] | None:
        names = [queue.name for queue in queues]
        while True:
            turn = self._next_turn(names, waits=timeout is not None)
            if turn is None or isinstance(turn, float):
                if timeout is None and self._looks_for_lost():
                    continue
                return self._wait_at_lists(queues, timeout, turn, options)
            found = self._take(turn) if isinstance(turn, Turn) else self._listed(turn, queues, options)
            if found is not None:
                self._has_looked_for_lost = False
                return found
            if self.should_run_maintenance_tasks:  # there may be no end of tenants that somebody holds
                raise DequeueTimeout(0, names[0])

    def _looks_for_lost(self) -> bool:
        """Before it leaves in burst mode, as it may be the only worker, and another process may have swept for all.

        Once after each job, or whom nobody can admit would keep it here.
        """
        if self._has_looked_for_lost:
            return False
        self._has_looked_for_lost = True
        with self._undisturbed():
            self.settle_up()
            self.look_for_lost()
        if self._stop_requested:
            raise StopRequested
        return True

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """RQ asks all lists at once where a worker has several, and an intermediate one has nothing then (2.12).

        Ours asks one of them. What stayed there would be taken for a job that was never begun, once it has ended: RQ
        fails it then, or has it run again.
        """
        super().prepare_job_execution(job, remove_from_intermediate_queue=True)

    def _listed(self, name: str, queues: Sequence[Queue], options: dict[str, Any]) -> tuple[Job, Queue] | None:
        """What stands in RQ's list of a queue; None when that is gone by now.

        A nudge that stood before it was meant for a worker that waits there: somebody else is to be told.
        """
        self._rq_queue_class.has_passed_over = False
        found = self._rq_queue_class.dequeue_any([one for one in queues if one.name == name], None, **options)
        if self._rq_queue_class.has_passed_over:
            self._has_waited = True
            if found is not None:
                self._unless_redis_is_away(fair_order.leave, self.key, self.queue_names())
        return found

    def _next_turn(self, names: list[str], *, waits: bool) -> Next:
        is_due = self._is_sign_due()
        is_news, self._has_waited = is_due or self._has_waited, False
        turn, rooms = fair_order.take(self.key, names, waits=waits, is_news=is_news, slot=self._slot)
        self._slot = None
        if is_due:
            self._unless_redis_is_away(self.register_again_if_forgotten)
        if rooms:
            self._feed_others(partial(transitions.feed_each, rooms))
        return turn

    def _feed_others(self, feed: Callable[[], object]) -> None:
        """Admit jobs that others wait for. Where the database is out of reach the sweep makes up for it."""
        try:
            with self._database(), collecting() as news:
                feed()
        except Error as error:
            logger.warning("the database did not answer when jobs were to be admitted for others: %s", error)
        else:
            self._tell_news(news)

    def _wait_at_lists(
        self, queues: Sequence[Queue], timeout: float | None, due: float | None, options: dict[str, Any]
    ) -> tuple[Job, Queue] | None:
        """Not longer than until a tenant may start a job that it may not now, which is `due` in so many seconds."""
        self.settle_up()
        if self._stop_requested:
            raise StopRequested
        self._has_waited, looks = timeout is not None, False
        try:
            if timeout is None or due is None or due >= timeout:
                return self._rq_queue_class.dequeue_any(queues, cast(int, timeout), **options)
            return self._rq_queue_class.dequeue_until(queues, due + SHORTEST_WAIT, **options)
        except DequeueTimeout:
            looks = not self.should_run_maintenance_tasks  # which RQ has it do before
            raise
        finally:
            if timeout is not None:
                self._unless_redis_is_away(partial(fair_order.leave, looks=looks), self.key, self.queue_names())

    def _take(self, turn: Turn) -> tuple[Job, Queue] | None:
        """The tenant's next job, which runs from now on; None when it has none."""
        with self._until_executed():
            run = self.new_run()
            try:
                with self._database(), collecting() as news:
                    job = run.take(turn)
            except BaseException as error:
                self._put_back_what_was_taken()
                if not isinstance(error, Error):
                    raise
                about_queue = logs.about_named(queue=turn.rq_queue)
                logger.warning("the database did not answer, trying again: %s", error, extra=about_queue)
                self.settle_up()
                time.sleep(SECONDS_WITHOUT_DATABASE)
                raise DequeueTimeout(SECONDS_WITHOUT_DATABASE, turn.rq_queue) from error
            self._tell_news(news)
            delivered = self._delivered(run, job, turn.rq_queue) if job else None
            self._taken = run if delivered else None
            return delivered

    def _delivered(self, run: WatchedRun, job: TenantJob, rq_queue: str) -> tuple[Job, Queue] | None:
        """None for a job that cannot be read, which has failed then."""
        try:
            return self._as_from_rq(job, next(queue for queue in self.queues if queue.name == rq_queue))
        except UnreadableColumn as error:
            self._fail(run, error)
            return None

    def _as_from_rq(self, job: TenantJob, queue: Queue) -> tuple[Job, Queue]:
        """As if RQ had delivered it. Redis is told of it later, if it lasts."""
        rq_job = dispatch.rq_job_of(queue, job)
        rq_job.enqueued_at = rq_job.created_at
        rq_job.data  # noqa: B018 - as RQ's serializer writes it, before anybody needs it
        return rq_job, queue

    def _fail(self, run: WatchedRun, error: Exception) -> None:
        """A row that somebody has spoilt fails its job alone."""
        with self._database(), collecting() as news:
            run.fail(str(error))
        self.keep_what_is_left()
        self._tell_news(news)

    def _put_back_what_was_taken(self, after: Token | None = None) -> None:
        """The answer to a commit may have been lost. A run `after` which it was taken is not meant."""
        seen = self.witness.read()
        run = (seen.job_id, seen.token)
        if seen.phase is not Phase.IDLE and run != after:
            self.kept.add(Ending(run, NOT_BEGUN, seconds=fair_order.NOTHING_RAN))
        self.witness.idle()

    @contextmanager
    def _until_executed(self) -> Iterator[None]:
        """A stop that is asked for meanwhile comes after the job, if one is taken, and else after this."""
        self._busy_with_bookkeeping = True
        try:
            yield
        finally:
            self._busy_with_bookkeeping = self._taken is not None
        if self._taken is None and self._stop_requested:
            raise StopRequested

    def _tell_news(self, news: list[News]) -> None:
        """Call the receivers of what others get to run."""
        tell(news)

    @contextmanager
    def _database(self) -> Iterator[None]:
        """Around what is asked of the database between two jobs.

        An outage that it meets is this worker's, which then calls no owner stale for a lease. What one tenant's rows
        meet is none: others' slots would not come back as long as it lasts.
        """
        with self._in_session():
            try:
                yield
            except Error as error:
                if is_outage(error):
                    self.sweeper.contact.broken()
                raise

    def _in_session(self) -> AbstractContextManager[None]:
        """In the session that is meant for that."""
        return nullcontext()

    def _part(self) -> None:
        if self._taken is not None:
            self._taken = None
            self._put_back_what_was_taken()
        try:
            super()._part()
        finally:
            self._leave_order()

    def _leave_order(self) -> None:
        try:
            fair_order.leave(self.key, self.queue_names(), is_over=True)
        except RedisError as error:
            logger.info("who admits jobs will notice by itself that worker %s is gone: %s", self.name, error)
