"""Jobs that asked for a slot, found none, and do not want to wait: see `on_busy` of ``@tenant_job``.

A job that has had a slot once waits from then on: a retry is not thrown away because others came meanwhile.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.db import DatabaseError
from django.db.models import F
from django.db.models.functions import Least

from tenant_slots import backlog, concurrency_keys, logs, rests, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow, in_seconds
from tenant_slots.db.compiled import among
from tenant_slots.db.transactions import bounded_at_once
from tenant_slots.exceptions import InvalidOption, TenantQueueLocked
from tenant_slots.interruptions import NOT_OF_THE_CODE, SweepTimeout
from tenant_slots.locks import locked
from tenant_slots.models import State, TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.refusals import is_refusal
from tenant_slots.tasks import context
from tenant_slots.tasks.on_busy import DISCARD, WAIT, OnBusy, Policy, Reschedule, is_policy
from tenant_slots.tasks.registry import task_of
from tenant_slots.validation import HIGHEST_COUNT

logger = logging.getLogger("tenant_slots")

JOBS_PER_STEP = 100
"""Most jobs that leave the backlog in one transaction: one UPDATE each, while the tenant queue is locked."""

SECONDS_TO_LEAVE = 2
"""For which jobs are tried one by one that the database does not let leave the backlog together."""


class Answers(NamedTuple):
    """What became of jobs that asked what to do."""

    discarded: list[TenantJob]
    """With their reason in `error`."""
    unasked: list[int]
    """Primary keys of those for which no time was left; they wait meanwhile."""


class Unanswered(SweepTimeout):
    """The sweep's time was over while it waited for what one job wants, which would take that of the next one too."""

    def __init__(self, job: TenantJob) -> None:
        super().__init__(f"on_busy of job {job.uuid} took too long")
        self.pk = job.pk


def turn_away_new(tenant_queue_id: int, jobs: list[TenantJob]) -> None:
    """As `turn_away`, for whoever asks them first: those for which no time was left are asked as promoted ones are.

    So are all of them where somebody holds the tenant queue: nobody would ever ask a job again that only waits.
    """
    try:
        unasked = turn_away(tenant_queue_id, jobs).unasked
    except TenantQueueLocked as error:
        logger.warning("a sweep asks what jobs do while their tenant is busy: %s", error, extra=logs.about(*jobs))
        unasked = [job.pk for job in jobs]
    if unasked:
        with bounded_at_once(app_settings.DATABASE, tenant_queue_id):
            TenantJob.objects.waiting().filter(among(unasked)).update(asks=True)


def turn_away(tenant_queue_id: int, jobs: list[TenantJob], ask_until: float = math.inf) -> Answers:
    """Have those of a tenant queue's jobs that found no free slot do what their `on_busy` says.

    Args:
        tenant_queue_id, jobs: which ones.
        ask_until: from this time of the monotonic clock on no callable is asked but the first one.
    """
    answers = Answers([], [])
    leave_until = min(ask_until, time.monotonic() + SECONDS_TO_LEAVE)
    first_of = {job.task: job for job in reversed(jobs)}
    ways = {task: _on_busy(job) for task, job in first_of.items()}
    concerned = [job for job in jobs if job.attempt == 0 and ways[job.task] != WAIT]
    for first in range(0, len(concerned), JOBS_PER_STEP):
        decisions = dict(_decisions(tenant_queue_id, concerned[first : first + JOBS_PER_STEP], ask_until))
        answers.unasked.extend(pk for pk, policy in decisions.items() if policy is None)
        if decided := {pk: policy for pk, policy in decisions.items() if policy is not None}:
            _all_leave(tenant_queue_id, decided, leave_until, answers)
    return answers


def _on_busy(job: TenantJob) -> OnBusy:
    """A function that this process does not know decides nothing; its job waits."""
    try:
        return task_of(job).on_busy
    except SweepTimeout as alarm:
        raise Unanswered(job) from alarm
    except NOT_OF_THE_CODE:
        raise
    except BaseException:  # also what a module raises that exits
        text = "on_busy of job %s is not known here, it waits"
        logger.warning(text, job.uuid, exc_info=True, extra=logs.about(job))
        return WAIT


def _decisions(tenant_queue_id: int, jobs: list[TenantJob], ask_until: float) -> Iterator[tuple[int, Policy | None]]:
    """What each job without a slot wants, None where it was not asked, and nothing where it waits.

    The project's callables run here, where nothing is locked.
    """
    row = TenantQueue.objects.filter(pk=tenant_queue_id).first()
    if row is None:
        return
    waiting = TenantJob.objects.waiting().filter(pk__in=[job.pk for job in jobs], attempt=0)
    for number, job in enumerate(waiting.exclude(pk__in=_first_ones(row, waiting)).order_by("pk")):
        if number and callable(_on_busy(job)) and time.monotonic() >= ask_until:
            yield job.pk, None
        elif (policy := _policy(job, row)) != WAIT:
            yield job.pk, policy


def _policy(job: TenantJob, row: TenantQueue) -> Policy:
    on_busy = _on_busy(job)
    try:
        policy = _answer(on_busy, job, row) if callable(on_busy) else on_busy
        if is_policy(policy):
            return policy
        problem = f'it must return "{WAIT}", "{DISCARD}" or a Reschedule'
        raise InvalidOption(option="on_busy", value=policy, task=job.task, problem=problem)
    except SweepTimeout as alarm:
        raise Unanswered(job) from alarm
    except NOT_OF_THE_CODE:
        raise
    except BaseException:  # also sys.exit(), which would end the worker that asks, or the caller of enqueue()
        logger.exception("on_busy of job %s failed, so it waits", job.uuid, extra=logs.about(job))
        return WAIT


def _answer(on_busy: Callable[..., Any], job: TenantJob, row: TenantQueue) -> Any:
    """In the job's context, wherever it is asked: it may look at what is the tenant's."""
    job.tenant_queue = row
    with context.entered(job):
        return on_busy(job, row)


def _all_leave(tenant_queue_id: int, decisions: dict[int, Policy], until: float, answers: Answers) -> None:
    """Each by itself where the database refuses it to them all; one that it refuses then waits.

    Args:
        tenant_queue_id, decisions: what each is to do.
        until: when to leave the rest, by `time.monotonic`. One is tried in any case.
        answers: takes what becomes of them.
    """
    try:
        answers.discarded.extend(_leave_backlog(tenant_queue_id, decisions))
        return
    except DatabaseError as error:
        if not is_refusal(error):
            raise
        if len(decisions) == 1:
            (pk,) = decisions
            text = "a job may not do what its on_busy says, so it waits: the database refuses it"
            logger.exception(text, extra=logs.about_run(pk))
            return
    for number, (pk, policy) in enumerate(decisions.items()):
        if number and time.monotonic() >= until:
            answers.unasked.append(pk)
        else:
            _all_leave(tenant_queue_id, {pk: policy}, until, answers)


def _leave_backlog(tenant_queue_id: int, decisions: dict[int, Policy]) -> list[TenantJob]:
    """A job that got a slot since its decision keeps it: whoever gives slots holds this lock too."""
    discarded = []
    with locked(tenant_queue_id) as row:
        waiting = TenantJob.objects.waiting().filter(pk__in=decisions, attempt=0)
        busy = waiting.exclude(pk__in=_first_ones(row, waiting))
        for job in busy.select_for_update(no_key=True).defer("args", "kwargs"):  # with who waits for it
            policy = decisions[job.pk]
            if isinstance(policy, Reschedule):
                _defer(job, policy)
            else:
                job.tenant_queue = row
                discarded.append(_discard(job))
    for job in discarded:
        transitions.left([job], State.CANCELED, job.error)
    return discarded


def _first_ones(row: TenantQueue, jobs: TenantJobQuerySet) -> list[int]:
    """Waiting jobs that the tenant's free slots are for, in the RQ queues of these jobs: they only wait for a worker.

    In each as many as there are slots: what waits for workers of another one keeps no slot from them.
    """
    if not row.free or rests.seconds_left(row):
        return []
    rq_queues = jobs.order_by().values_list("rq_queue", flat=True).distinct()
    return [pk for rq_queue in rq_queues for pk in backlog.first_ones(row, rq_queue, row.free)]


def _defer(job: TenantJob, policy: Reschedule) -> None:
    seconds = policy.seconds * random.uniform(1 - policy.jitter, 1 + policy.jitter)
    deferred = {"state": State.SCHEDULED, "asks": True, "run_after": in_seconds(seconds)}
    TenantJob.objects.filter(pk=job.pk).update(**deferred, deferrals=Least(F("deferrals"), HIGHEST_COUNT - 1) + 1)


def _discard(job: TenantJob) -> TenantJob:
    row = job.tenant_queue
    job.state = State.CANCELED
    job.error = f"discarded: {row} {_reason(job)} ({row.current_job} of {row.max_job} taken)"
    TenantJob.objects.filter(pk=job.pk).update(state=job.state, error=job.error, ended_at=DatabaseNow())
    return job


def _reason(job: TenantJob) -> str:
    row = job.tenant_queue
    if row.paused:
        return "was paused"
    if not row.free:
        return "had no free slot"
    if rests.seconds_left(row):
        return f"rested: {row.rest_reason}" if row.rest_reason else "rested"
    if job.key and concurrency_keys.is_passed_over(job):
        return f"had no free slot for concurrency key {job.key!r}"
    return "had free slots only for jobs before it"
