"""What a decorated function does when plain RQ calls it: take a slot, or join its tenant's backlog and come back."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

from django.db import Error, IntegrityError
from redis.exceptions import RedisError
from rq import Queue, Retry, get_current_job
from rq.job import Job

from tenant_slots import fair_order, logs, queue_directory, rq_copies, tenants, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.transactions import bounded_at_once
from tenant_slots.enqueueing import on_busy
from tenant_slots.exceptions import InvalidOption, UnknownQueue
from tenant_slots.models import State, TenantJob, TenantJobQuerySet, TenantQueue, overflow_queue_of
from tenant_slots.models.states import UNADMITTED
from tenant_slots.queue_directory import OUT_OF_REACH
from tenant_slots.repair import lost_runs
from tenant_slots.running import beside, deliveries
from tenant_slots.running.coroutines import completed_in_context
from tenant_slots.running.recording import (
    BRIEFLY,
    NOT_BEGUN,
    Refused,
    StartRefused,
    persistently,
    put_back,
    unless_kept_out,
    unless_refused,
)
from tenant_slots.running.run import Run
from tenant_slots.running.runner import require_possible, run_in_slot
from tenant_slots.running.stock_horse import SYNCHRONOUS, parting_after_it
from tenant_slots.tasks import context
from tenant_slots.tasks.on_busy import WAIT
from tenant_slots.tasks.task import TaskCall, TenantTask
from tenant_slots.tasks.tenant_busy import TenantBusy, seconds_left

logger = logging.getLogger("tenant_slots")

_unlimited: ContextVar[Job | None] = ContextVar("tenant_slots_unlimited", default=None)
"""The RQ job without a tenant that runs."""

NO_WORKER = (None, "", SYNCHRONOUS)
"""What RQ says of the worker of a job that its caller runs, on a synchronous queue."""

LONGEST_DELAY = 3600
"""Seconds for which a job that has waited for long defers itself at most, unless ``RESCHEDULE_DELAY`` is longer."""

OVERWRITTEN = "RQ's record of it was overwritten: its id was enqueued for another tenant or queue"

LONGEST_ID: int = TenantJob._meta.get_field("rq_job_id").max_length or 0


def call(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What calling a decorated function does: as the function of a plain RQ job it takes a slot, else it just runs."""
    rq_job = get_current_job()
    if rq_job is None or _task_of(rq_job) is not task or _is_under_way(rq_job) or _awaits(rq_job):
        return task.function(*args, **kwargs)
    with context.delivered(), parting_after_it():
        return _run_delivered(task, args, kwargs, rq_job)


def _run_delivered(task: TenantTask[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], rq_job: Job) -> Any:
    if earlier := deliveries.earlier(rq_job):
        return _not_again(task, rq_job, earlier.job)
    if (timeout := _timeout_for(task, rq_job)) is not None:
        rq_job.timeout = timeout
        return deliveries.again(rq_job)
    try:
        return _run_plain(task.called_with(args, kwargs), rq_job)
    except TenantBusy as busy:
        return deliveries.deferred(rq_job, seconds=seconds_left(busy))


def _is_under_way(rq_job: Job) -> bool:
    """Whether the function is called by itself, inside the job."""
    return Run.of(rq_job).job is not None or _unlimited.get() is rq_job


def _awaits(rq_job: Job) -> bool:
    """Whether it calls one of Django's Tasks, and that has asgiref await its function, where no slot can be taken.

    Or not before Python 3.12, which is the first to tell that ours, which is a plain function, gives a coroutine.
    """
    return inspect.iscoroutinefunction(getattr(rq_job.func, "func", None))


def _task_of(rq_job: Job) -> object:
    """Of one of Django's Tasks, which another backend has RQ call, that of its function."""
    try:
        function = rq_job.func
        return getattr(getattr(function, "func", function), "tenant_task", None)
    except Exception:  # an RQ job whose function this process cannot import is none of ours
        return None


def _timeout_for(task: TenantTask[..., Any], rq_job: Job) -> int | None:
    """The decorator's timeout, where RQ has given the job one of its own choice, as the call had none; else None.

    Whoever watches over the run has read RQ's record of the job by now, and is to have the right one from the start.
    """
    timeout: int | None = task.rq_options.get("timeout")
    if timeout is None or rq_job.timeout == timeout or rq_job.worker_name in NO_WORKER:
        return None
    with suppress(UnknownQueue):
        return timeout if rq_job.timeout in _given_by_rq(rq_job.origin) else None
    return None


def _given_by_rq(queue: str) -> tuple[int, int]:
    """What a job has that comes without a timeout: its queue's, or RQ's own where that knows no settings of Django's.

    So do its cron, and whoever makes a queue of RQ's without django-rq (RQ 2.12, ``CronJob.enqueue``).

    Raises:
        UnknownQueue: the project has no such queue.
    """
    return queue_directory.queue_named(queue)._default_timeout, Queue.DEFAULT_TIMEOUT


def _run_plain(call: TaskCall, rq_job: Job) -> Any:
    task, run = call.task, Run.of(rq_job)
    tenant = tenants.tenant_of(call)
    if tenant == tenants.NO_TENANT:
        return _run_unlimited(call, rq_job)
    _require_storable_id(task, rq_job)
    key = tenants.key_of(call)
    job = _waiting_or_admitted(task, tenant, rq_job, key)
    if job is not None and job.state == State.RUNNING:
        return _beside_run(rq_job, job)
    if job is not None and (found := deliveries.ended_meanwhile(rq_job, job)):
        return _too_late(task, rq_job, job, found.job)
    if job is not None and job.state == State.WAITING and task.on_busy != WAIT:
        unless_kept_out(lambda: _turn_away(job), about=[job])
        if job.has_ended:
            return None
        if job.state == State.SCHEDULED:
            return deliveries.deferred(rq_job, until=job.run_after)
    if job is None or job.state != State.QUEUED:
        return deliveries.deferred(rq_job, seconds=_seconds_to_wait(job))
    with suppress(RedisError):
        rq_copies.belong_to(job.uuid, rq_job)
    if not _started(run, job):
        return _not_started(rq_job, job)
    if run.is_overtaken():
        run.end(NOT_BEGUN)
        return deliveries.deferred(rq_job)
    try:
        return run_in_slot(run, partial(_run_call, call, rq_job))
    finally:
        if run.is_recorded:
            with suppress(RedisError):
                beside.has_ended(rq_job, job)


def _seconds_to_wait(job: TenantJob | None) -> float:
    """Its turn brings it back before. If that fails it looks by itself, for as long again as it has waited already.

    Thousands that wait would be all that workers do if each of them came back every minute.
    """
    if job is None:
        return app_settings.RESCHEDULE_DELAY
    now = persistently(clock.now, pauses=BRIEFLY, about=[job]) or job.enqueued_at
    waited: float = (now - job.enqueued_at).total_seconds()
    return max(float(app_settings.RESCHEDULE_DELAY), min(waited, LONGEST_DELAY))


def _require_storable_id(task: TenantTask[..., Any], rq_job: Job) -> None:
    """RQ takes an id of any length."""
    if (length := len(rq_job.id)) > LONGEST_ID:
        problem = f"it has {length} characters, at most {LONGEST_ID} fit"
        raise InvalidOption(option="job_id", value=rq_job.id, task=task.path, problem=problem)


def _run_unlimited(call: TaskCall, rq_job: Job) -> Any:
    """Without a row, but with what a context manager asks a job for."""
    task = call.task
    row = TenantQueue(tenant=tenants.NO_TENANT, queue=task.queue)
    job = TenantJob(tenant_queue=row, task=task.path, rq_job_id=rq_job.id, context=context.context_in(rq_job.meta))
    token = _unlimited.set(rq_job)
    try:
        return completed_in_context(job, _function_of(call))
    finally:
        _unlimited.reset(token)


def _run_call(call: TaskCall, rq_job: Job, job: TenantJob) -> Any:
    rq_copies.keep_latest(rq_job, job.uuid)
    job.require_readable("context")
    return completed_in_context(job, _function_of(call), require_possible)


def _function_of(call: TaskCall) -> Callable[[], Any]:
    return lambda: call.task.function(*call.args, **call.kwargs)


def _not_again(task: TenantTask[..., Any], rq_job: Job, job: TenantJob | None) -> Retry:
    """The job may run again by now, as RQ has retried it."""
    text = "RQ delivered job %s again after it had ended; this delivery does nothing"
    known = {"task": task.path, "tenant": job and job.tenant_queue.tenant, "queue": rq_job.origin}
    logger.warning(text, rq_job.id, extra=logs.about_named(**known))
    return deliveries.copy_ignored(rq_job, _placed(rq_job).running().first() or job)


def _too_late(task: TenantTask[..., Any], rq_job: Job, job: TenantJob, other: TenantJob | None) -> Retry:
    """What is delivered here has run since that was asked first: a row that was made for it stands for nothing.

    Unless another call was enqueued under the id since, whose delivery finds it.
    """
    if not job.has_ended and not deliveries.is_of_a_later_call(rq_job, job):
        why = f"RQ delivered job {rq_job.id} twice in the same moment, and it has run"
        unless_kept_out(lambda: transitions.cancel_unstarted(job, why, stays_in_rq=True), about=[job])
    return _not_again(task, rq_job, other)


def _beside_run(rq_job: Job, job: TenantJob) -> Retry:
    """A copy that RQ's scheduler has brought back while the run still goes on was enqueued anew by nobody.

    Nor is it the call that a slow delivery of the one before takes it for. That one has nothing to come back for.
    """
    if beside.has_copy_of_newer_call(rq_job, job):
        return deliveries.ignored(rq_job, job)
    if is_anew := beside.waited_for(rq_job) != job.uuid and rq_copies.is_told_since(job.uuid, rq_job):
        text = "RQ was told to enqueue job %s anew while it runs; it runs again after that"
        logger.info(text, rq_job.id, extra=logs.about(job))
    else:
        text = "RQ delivered job %s a second time while it runs; this delivery does nothing now"
        logger.warning(text, rq_job.id, extra=logs.about(job))
    outcome = deliveries.later(rq_job, job, is_anew=is_anew)
    if persistently(lambda: not TenantJob.objects.not_ended().filter(pk=job.pk).exists(), about=[job]):
        beside.had_ended(rq_job, job)  # perhaps before this delivery has left its mark
    return outcome


def _not_started(rq_job: Job, job: TenantJob) -> Retry:
    """Somebody was faster: another delivery, a cancel, or a sweep."""
    put_back(job)
    persistently(lambda: job.refresh_from_db(fields=["state", "worker", "beats"]), about=[job])
    rq_copies.has_not_begun(rq_job)
    if job.state == State.RUNNING:
        return _beside_run(rq_job, job)
    if not job.has_ended:
        return deliveries.deferred(rq_job)
    if deliveries.ended_with(rq_job, job):
        return deliveries.ignored(rq_job, job)
    return deliveries.again_after_claim(rq_job)


def _turn_away(job: TenantJob) -> None:
    on_busy.turn_away(job.tenant_queue_id, [job])
    job.refresh_from_db()


def _started(run: Run, job: TenantJob) -> bool:
    """Raises StartRefused, which is then the error of both jobs: RQ would have no end of delivering it."""
    try:
        return run.start(job)
    except StartRefused as error:
        run.fail_refused(job, error)
        raise StartRefused(f"the database refuses its start: {error.reason}") from None


def _waiting_or_admitted(task: TenantTask[..., Any], tenant: str, rq_job: Job, key: str) -> TenantJob | None:
    """None where the database stays out of reach, or the job is kept out of its tenant queue.

    Raises:
        Refused: which is then the error of both jobs.
    """

    def place() -> TenantJob:
        return tenants.though_deleted(partial(_in_backlog_or_slot, task, tenant, rq_job, key))

    try:
        return unless_kept_out(unless_refused(place))
    except Refused as error:
        known = {"task": task.path, "tenant": tenant, "queue": rq_job.origin}
        logger.error("the database refuses RQ job %s", rq_job.id, exc_info=error, extra=logs.about_named(**known))
        problem = f"the database refuses it: {error.reason}"
        if job := _placed(rq_job).unadmitted().first():
            _fail_waiting(job, problem)
        raise Refused(problem) from None


def _fail_waiting(job: TenantJob, problem: str) -> None:
    """In the backlog it would keep what is behind it from having a turn, and RQ has given it up."""
    try:
        transitions.fail_unadmitted(job, problem)
    except Error:
        logger.exception("job %s, which the database refuses, stays in its backlog", job.uuid, extra=logs.about(job))


def _in_backlog_or_slot(task: TenantTask[..., Any], tenant: str, rq_job: Job, key: str) -> TenantJob:
    """The job in its tenant's backlog, after that has had a chance to move."""
    row = tenants.tenant_queue_for(tenant, task.queue)
    job = _joined(row, task, rq_job, key)
    if job.state == State.RUNNING and lost_runs.reclaim_if_dead(job):
        job = _joined(row, task, rq_job, key)
    if job.state == State.WAITING and not _admitted_here(task, job, rq_job) and job.state == State.WAITING:
        transitions.offer(row.pk, job.rq_queue_name, row.share)
        job.refresh_from_db(fields=["state", "attempt"])
    return job


def _admitted_here(task: TenantTask[..., Any], job: TenantJob, rq_job: Job) -> bool:
    """In fair order, where a worker has taken the job, unless it is one that does not wait.

    What a callable says is known when it is asked, which it is not for as long as its tenant has a slot for it.
    """
    if app_settings.IMMEDIATE or rq_job.worker_name in NO_WORKER:
        return transitions.admit_here(job)
    row, admitted = job.tenant_queue, False
    waits = task.on_busy == WAIT or callable(task.on_busy)
    try:
        turn = fair_order.begin(job.rq_queue_name, row.pk, row.share, waits=waits)
    except OUT_OF_REACH:
        return transitions.admit_here(job)
    if turn is None:
        return False
    try:
        admitted = transitions.admit_here(job)
    finally:
        if not admitted:
            with suppress(*OUT_OF_REACH):
                fair_order.undo(turn)
    return admitted


def _placed(rq_job: Job) -> TenantJobQuerySet:
    found: TenantJobQuerySet = TenantJob.objects.not_ended().filter(rq_job_id=rq_job.id)
    return found.select_related("tenant_queue")


def _from_earlier_try(tenant_queue: TenantQueue, rq_job: Job) -> TenantJob | None:
    """What was enqueued before under its id for another tenant queue is not to run: RQ has forgotten its arguments."""
    while found := _placed(rq_job).first():
        if found.state == State.RUNNING or not _was_overwritten(found, tenant_queue, rq_job):
            break
        transitions.cancel_unstarted(found, OVERWRITTEN, stays_in_rq=True)
    return found


def _was_overwritten(found: TenantJob, tenant_queue: TenantQueue, rq_job: Job) -> bool:
    return found.tenant_queue_id != tenant_queue.pk and _is_of_same_redis(found, rq_job)


def _is_of_same_redis(found: TenantJob, rq_job: Job) -> bool:
    """Another Redis may have a job with this id too."""
    with suppress(UnknownQueue):
        return found.rq_queue_name in queue_directory.queues_beside(rq_job.origin)
    return False


def _joined(tenant_queue: TenantQueue, task: TenantTask[..., Any], rq_job: Job, key: str) -> TenantJob:
    """The job's row from an earlier try, else a new one at the end of the backlog."""
    rq_queue = overflow_queue_of(rq_job.origin, tenant_queue.queue)
    in_backlog = {"rq_queue": rq_queue, "key": key}
    of_call = {"task": task.path, "context": context.context_in(rq_job.meta)}
    found = _from_earlier_try(tenant_queue, rq_job)
    if found is None:
        try:
            with bounded_at_once(app_settings.DATABASE, tenant_queue):
                found = TenantJob.objects.create(
                    tenant_queue=tenant_queue, rq_job_id=rq_job.id, **in_backlog, **of_call
                )
        except IntegrityError:
            found = _placed(rq_job).first()
            if found is None:
                raise
    return _as_delivered(found, in_backlog, of_call, rq_job)


def _as_delivered(job: TenantJob, in_backlog: Mapping[str, Any], of_call: Mapping[str, Any], rq_job: Job) -> TenantJob:
    """It waits in the queue of RQ that it comes through, whatever its `on_busy` or an earlier delivery has said.

    And it is the call that RQ has now, which may have been enqueued under the id of another one. What has its slot
    keeps the one of that key.
    """
    if job.state == State.RUNNING:
        return job
    is_placed = job.state not in UNADMITTED
    changes = {} if is_placed else _other_than(job, {"state": State.WAITING, "asks": False})
    anew = _other_than(job, of_call if is_placed else {**in_backlog, **of_call})
    if anew and _is_of_same_redis(job, rq_job):
        if "rq_queue" in anew:
            beside.is_not_brought_back(rq_job, job)
        changes |= anew
    if changes:
        with bounded_at_once(app_settings.DATABASE, job.tenant_queue):
            states = (State.QUEUED,) if is_placed else UNADMITTED
            TenantJob.objects.filter(pk=job.pk, state__in=states).update(**changes)
        job.refresh_from_db(fields=["state", *changes])
    return job


def _other_than(job: TenantJob, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if getattr(job, name) != value}
