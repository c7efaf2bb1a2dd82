"""From one job to the next in one step, where the tenant keeps its turn, or nothing has to happen in between."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.db import Error
from redis.exceptions import RedisError
from rq.job import Job
from rq.queue import Queue

from tenant_slots import fair_order, logs
from tenant_slots.conf import app_settings
from tenant_slots.fair_order import Freed, Turn
from tenant_slots.models import ENDED
from tenant_slots.news import News, collecting
from tenant_slots.running.recording import Outcome
from tenant_slots.running.supervised import SupervisedRun
from tenant_slots.workers.turns import TurnTakingWorker

logger = logging.getLogger("tenant_slots")


class HandingOnWorker(TurnTakingWorker):
    """Records the end of a job and starts the next one of the same tenant in one transaction, if that one is next.

    Otherwise it tells the order of tenants of the free slot when it asks for the next turn.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.following: tuple[SupervisedRun, tuple[Job, Queue]] | None = None
        """The next job, which is marked as running already."""
        self.looks_at_once = False
        """Whether this worker asks for the next job as soon as the end of this one is recorded."""

    def new_run(self) -> SupervisedRun:
        raise NotImplementedError

    def has_nothing_else_to_do(self) -> bool:
        """Whether it goes on with the next job, as far as one knows."""
        return self.goes_on() and not self.should_run_maintenance_tasks and not self.is_suspended

    def free(self, slot: Freed) -> None:
        if self.looks_at_once:
            self._slot = slot
        else:
            super().free(slot)

    def hand_on(self, run: SupervisedRun, outcome: Outcome) -> list[News] | None:
        """Record the end of a run, and start the next job of its tenant. None: its end is still to be recorded.

        Or again: the answer to the commit may have been lost. Then what may have been started is put back.
        """
        assert run.job is not None, "a run ends that has not begun"
        if outcome["state"] not in ENDED or outcome.get("unstarted"):
            return None  # it runs again, perhaps after a rest, or gives back a token: who is next then is asked later
        if not (self.looks_at_once and run.stays_first):
            return None  # nor did a job that RQ delivered have a turn here, after which its tenant may be next again
        turn = self._next_turn_of_same_tenant(run, run.job.tenant_queue_id, run.job.rq_queue_name)
        if turn is None:
            return None
        job, following = run.job, self.new_run()
        try:
            with self._database(), collecting() as news:
                is_done = run.hand_on(outcome, turn, following)
        except BaseException as error:
            self._put_back_what_was_taken(after=(job.pk, job.token))
            if run.job is not None:
                run.hold_again()
            if not isinstance(error, Error):
                raise
            logger.warning("the end of job %s is recorded by itself: %s", job.uuid, error, extra=logs.about(job))
            return None
        if is_done and following.job is not None:
            delivered = self._delivered(following, following.job, turn.rq_queue)
            self.following = (following, delivered) if delivered else None
        return news if is_done else None

    def _next_turn_of_same_tenant(self, run: SupervisedRun, tenant_queue_id: int, rq_queue: str) -> Turn | None:
        if not self._looks_first_into(rq_queue):
            return None
        run.is_charged = True
        try:
            return fair_order.again(Freed(tenant_queue_id, run.seconds, rq_queue))
        except RedisError as error:
            about_queue = logs.about_named(queue=rq_queue)
            logger.warning("Redis cannot be asked whether the tenant is next again: %s", error, extra=about_queue)
            return None

    def _looks_first_into(self, rq_queue: str) -> bool:
        is_drawn = not app_settings.QUEUE_WEIGHTS.keys().isdisjoint(self.queue_names())
        return not is_drawn and self._ordered_queues[0].name == rq_queue

    def _next_job(self, queues: Sequence[Queue], timeout: int | None, **options: Any) -> tuple[Job, Queue] | None:
        if self.following is None:
            return super()._next_job(queues, timeout, **options)
        with self._until_executed():
            (self._taken, delivered), self.following = self.following, None
            return delivered

    @property
    def should_run_maintenance_tasks(self) -> bool:
        return self.following is None and super().should_run_maintenance_tasks

    @property
    def is_suspension_check_due(self) -> bool:
        return self.following is None and super().is_suspension_check_due

    def _part(self) -> None:
        if self.following is not None:
            self.following = None
            self._put_back_what_was_taken()
        super()._part()
