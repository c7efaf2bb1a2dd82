"""The status of a job as JSON, for pages that poll. Closed until the project says who may see what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, JsonResponse
from django.utils.module_loading import import_string
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_GET

from tenant_slots import stats
from tenant_slots.conf import app_settings
from tenant_slots.exceptions import InvalidSetting
from tenant_slots.models import State, TenantJob

NOT_SHOWN = ("args", "kwargs", "options", "context", "result", "error")

Decision = Callable[[HttpRequest, TenantJob], bool]


@require_GET
@cache_control(no_store=True)
def job_status(request: HttpRequest, uuid: UUID) -> JsonResponse:
    """State, position in the backlog, times, progress and stats of a job.

    Never its arguments, result or error. A job that is unknown and one that is not for this visitor get the same
    answer, 404, as every job does while ``MAY_VIEW_JOB`` is empty.

    Raises:
        InvalidSetting: the callable of ``MAY_VIEW_JOB`` cannot be imported.
    """
    may_view = _decision()
    job = TenantJob.objects.filter(uuid=uuid).select_related("tenant_queue").defer(*NOT_SHOWN).first()
    if job is None or not _is_allowed(may_view, request, job):
        return JsonResponse({"error": "not found"}, status=404)
    return JsonResponse(status_of(job))


def status_of(job: TenantJob) -> dict[str, Any]:
    """What `job_status` tells of a job. One query if it waits, else none."""
    return {
        "id": job.uuid,
        "queue": job.tenant_queue.queue,
        "state": job.state,
        "position": stats.position_in_backlog(job) if job.state == State.WAITING else None,
        "enqueued_at": job.enqueued_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "progress": job.progress,
        "stats": job.stats,
    }


def _decision() -> Decision:
    path = app_settings.MAY_VIEW_JOB
    if not path:
        return lambda request, job: False
    try:
        decision: Decision = import_string(path)
    except ImportError as error:
        raise InvalidSetting(name="MAY_VIEW_JOB", value=path, problem=f"it cannot be imported ({error})") from error
    return decision


def _is_allowed(may_view: Decision, request: HttpRequest, job: TenantJob) -> bool:
    """Only True opens: what an async function returns is true as well."""
    try:
        return may_view(request, job) is True
    except (PermissionDenied, Http404):
        return False
