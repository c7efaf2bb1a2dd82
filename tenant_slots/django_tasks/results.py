"""A job's row as Django's `TaskResult`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from rq import Retry

from tenant_slots.django_tasks.aliases import alias_today
from tenant_slots.django_tasks.api import (
    DEFAULT_TASK_QUEUE_NAME,
    TASK_MAX_PRIORITY,
    TASK_MIN_PRIORITY,
    AnyResult,
    AnyTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from tenant_slots.django_tasks.found import require_task
from tenant_slots.django_tasks.task import with_values
from tenant_slots.exceptions import UnknownJob
from tenant_slots.models import State, TenantJob
from tenant_slots.tasks import attempts

STATUS: dict[str, TaskResultStatus] = {
    State.SCHEDULED: TaskResultStatus.READY,
    State.WAITING: TaskResultStatus.READY,
    State.QUEUED: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.FINISHED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.CANCELED: TaskResultStatus.FAILED,
}

OTHERWISE = "tenant_slots.exceptions.TenantSlotsError"

NO_STATE = "somebody has written a state into its row that means nothing: {job.state!r}; put it right by SQL"


def result_with(result_id: str) -> AnyResult:
    """The result of a call as the database has it.

    Raises:
        TaskResultDoesNotExist: no call has this id, or it has been pruned.
        UnknownJob: its Task is not in the code any more.
    """
    job = _job_with(result_id)
    if job is None or not _is_call(job):
        raise TaskResultDoesNotExist(result_id)
    return result_of(job)


def result_of(job: TenantJob, task: AnyTask | None = None) -> AnyResult:
    """As the job's row has it; of `task`, or of the one that the row names."""
    mark = job.options.get(attempts.MARK, {})
    runs = attempts.ended_runs(job)
    is_counted = not _is_among(runs, job) and _has_begun(job)
    starts = _starts(job, runs) + ([job.started_at] if is_counted else [])
    found = task or require_task(job.task)
    called = with_values(found, _values_of(job, mark, found))
    result: AnyResult = TaskResult(
        task=called,
        id=str(job.uuid),
        status=STATUS.get(job.state, TaskResultStatus.FAILED),  # of no state that there is, nothing comes any more
        enqueued_at=job.enqueued_at,
        started_at=starts[0] if starts else None,
        last_attempted_at=starts[-1] if starts else None,
        finished_at=job.ended_at if job.has_ended else None,
        args=list(job.args),
        kwargs=dict(job.kwargs),
        backend=called.backend,
        errors=_errors(job, runs),
        worker_ids=_workers(job, runs) + ([job.worker] if is_counted else []),
    )
    if job.state == State.FINISHED:
        object.__setattr__(result, "_return_value", job.result)
    return result


def _workers(job: TenantJob, runs: list[dict[str, Any]]) -> list[str]:
    """One for each run, as Django counts attempts by them; "" for those that the job has forgotten."""
    return [""] * attempts.forgotten_runs(job) + [run["worker"] for run in runs]


def as_stored(job: TenantJob) -> TenantJob:
    """The job with what its row has by now. Raises TenantJob.DoesNotExist."""
    found: TenantJob = TenantJob.objects.select_related("tenant_queue").get(pk=job.pk)
    return found


def _is_call(job: TenantJob) -> bool:
    """Or a job of the decorated function inside a Task: an identical call of the Task is given that one."""
    if not attempts.is_call(job):
        try:
            require_task(job.task)
        except UnknownJob:
            return False
    return True


def _job_with(result_id: str) -> TenantJob | None:
    try:
        uuid = UUID(str(result_id))
    except ValueError:
        return None
    found: TenantJob | None = TenantJob.objects.filter(uuid=uuid).select_related("tenant_queue").first()
    return found


def _values_of(job: TenantJob, mark: Mapping[str, Any], task: AnyTask) -> dict[str, Any]:
    """What the call's Task had that others of the same function may have not."""
    named = mark.get("named", [])
    return {
        "priority": min(max(job.priority, TASK_MIN_PRIORITY), TASK_MAX_PRIORITY),  # staff may give it any
        "queue_name": job.tenant_queue.queue if "queue" in named else _queue_name_of(job, task),
        "run_after": mark_time(mark, "run_after"),
        "timeout": job.options.get("timeout"),
        "retry": _retry_of(job, task),
        **({"backend": alias_today(mark["backend"], task)} if mark else {}),
        **({"explicit_tenant": job.tenant_queue.tenant} if "tenant" in named else {}),
        **({"explicit_key": job.key} if "key" in named else {}),
    }


def _retry_of(job: TenantJob, task: AnyTask) -> Retry | None:
    """RQ's objects are equal to no other, so that it is the Task's own if the job has the same."""
    own: Retry | None = getattr(task, "retry", None)
    stored = job.options.get("retry")
    if stored is None:
        return None
    if own is not None and stored == {"max": own.max, "intervals": own.intervals}:
        return own
    return Retry(stored["max"], stored["intervals"])


def _queue_name_of(job: TenantJob, task: AnyTask) -> str:
    """Django's default where the Task leaves the queue to the decorator inside, of which ``QUEUES`` need not know."""
    queue: str = job.tenant_queue.queue
    inner = getattr(task.func, "tenant_task", None)
    is_left = inner is not None and inner.queue == queue and task.queue_name == DEFAULT_TASK_QUEUE_NAME
    return DEFAULT_TASK_QUEUE_NAME if is_left else queue


def mark_time(mark: Mapping[str, Any], name: str) -> datetime | None:
    return datetime.fromisoformat(mark[name]) if mark.get(name) else None


def _is_among(runs: list[dict[str, Any]], job: TenantJob) -> bool:
    return bool(runs) and runs[-1]["attempt"] == job.attempt


def _has_begun(job: TenantJob) -> bool:
    """Its last attempt, where that is none of the runs that the job keeps. Of a canceled job it keeps all."""
    return job.state in (State.RUNNING, State.FINISHED) or (job.state == State.FAILED and job.has_begun)


def _starts(job: TenantJob, runs: list[dict[str, Any]]) -> list[datetime | None]:
    """The row has one of its own, perhaps of a worker that did not know the function, and called none."""
    return [attempts.time_of(run, "started") or job.started_at for run in runs]


def _errors(job: TenantJob, runs: list[dict[str, Any]]) -> list[TaskError]:
    """One for each run that failed, and one of a job that ended otherwise. The row has more of the last one's text."""
    failed = [run for run in runs if run["error"] is not attempts.NO_ERROR]
    errors = [TaskError(exception_class_path=run["error"], traceback=run["text"]) for run in failed]
    if job.state not in State.values:
        return [*errors, TaskError(exception_class_path=OTHERWISE, traceback=NO_STATE.format(job=job))]
    if job.state not in (State.FAILED, State.CANCELED):
        return errors
    path = attempts.CANCELED if job.state == State.CANCELED else OTHERWISE
    if _is_among(failed, job) and (job.state == State.FAILED or failed[-1]["error"] == attempts.CANCELED):
        path = errors.pop().exception_class_path
    return [*errors, TaskError(exception_class_path=path, traceback=job.error)]
