"""As JSON: the status of a job for pages that poll, the health of the whole for monitoring, and how many workers would
have something to do, for what starts them.

Closed until the project says who may see what. For the two that machines ask that alone decides: where Django's
LoginRequiredMiddleware sends visitors to a page, a probe that is sent there would take the page for health.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.db import Error
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_GET, require_safe

from tenant_slots import stats
from tenant_slots.access import decision, is_allowed
from tenant_slots.db.requests import outside_transactions
from tenant_slots.models import State, TenantJob
from tenant_slots.queue_names import usable_queues
from tenant_slots.repair import doctor
from tenant_slots.stats import metrics
from tenant_slots.stats.in_time import answered_in_time
from tenant_slots.stats.metrics import Figures

NOT_SHOWN = ("args", "kwargs", "options", "context", "result", "error")

LIVENESS = ("workers", "sweeps", "queues")


@cache_control(no_store=True)
@require_GET
def job_status(request: HttpRequest, uuid: UUID) -> JsonResponse:
    """State, position in the backlog, times, progress and stats of a job.

    Never its arguments, result or error. A job that is unknown and one that is not for this visitor get the same
    answer, 404, as every job does while ``MAY_VIEW_JOB`` is empty.

    Raises:
        InvalidSetting: the callable of ``MAY_VIEW_JOB`` cannot be imported.
    """
    may_view = decision("MAY_VIEW_JOB")
    job = TenantJob.objects.filter(uuid=uuid).select_related("tenant_queue").defer(*NOT_SHOWN).first()
    if job is None or not is_allowed(may_view, request, job):
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


@login_not_required
@outside_transactions
@cache_control(no_store=True)
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """200 when all is well, 503 when something is wrong, with the kinds of what is wrong and how often: no names.

    ``?check=workers,sweeps`` asks for some checks of ``slots_doctor``; without it these are `LIVENESS`, which are
    quick. 404 to everybody while ``MAY_VIEW_HEALTH`` is empty, and to those whom it does not allow; 400 for an unknown
    check.

    Raises:
        InvalidSetting: the callable of ``MAY_VIEW_HEALTH`` cannot be imported.
    """
    if not is_allowed(decision("MAY_VIEW_HEALTH"), request):
        return JsonResponse({"error": "not found"}, status=404)
    names = _names(request, "check", doctor.CHECKS, LIVENESS)
    if unknown := [name for name in names if name not in doctor.CHECKS]:
        return JsonResponse({"error": "unknown check", "unknown": unknown, "checks": [*doctor.CHECKS]}, status=400)
    try:
        with answered_in_time():
            found = Counter(finding.kind for finding in doctor.findings(*names))
    except Error:
        found = Counter(["database"])
    return JsonResponse({"ok": not found, "findings": found}, status=503 if found else 200)


def _names(request: HttpRequest, parameter: str, known: Collection[str], all_of_them: Iterable[str]) -> list[str]:
    """Each once, as ``workers,sweeps``, with or without spaces, or with the parameter for each.

    What is known by that very name is not taken apart: the name of a queue may have a comma in it.
    """
    given = request.GET.getlist(parameter)
    if not given:
        return list(all_of_them)
    lists = ([one] if one in known else [name.strip() for name in one.split(",")] for one in given)
    return list(dict.fromkeys(chain.from_iterable(lists)))


@login_not_required
@outside_transactions
@cache_control(no_store=True)
@require_safe
def autoscaling(request: HttpRequest) -> JsonResponse:
    """``workers_needed``, of all queues or of those in ``?queue=imports,reports``, and what it is made of by queue.

    For whatever starts workers, such as KEDA's ``metrics-api``. It is 503 while the database cannot be asked, so that
    nobody takes nothing known for nothing to do. 404 to everybody while ``MAY_VIEW_METRICS`` is empty, and to those
    whom it does not allow; 400 for an unknown queue. Two queries.

    Raises:
        InvalidSetting: the callable of ``MAY_VIEW_METRICS`` cannot be imported.
    """
    if not is_allowed(decision("MAY_VIEW_METRICS"), request):
        return JsonResponse({"error": "not found"}, status=404)
    known = sorted(usable_queues())
    names = _names(request, "queue", known, known)
    if unknown := [name for name in names if name not in known]:
        return JsonResponse({"error": "unknown queue", "unknown": unknown, "queues": known}, status=400)
    try:
        with answered_in_time():
            found = metrics.by_queue()
    except Error:
        return JsonResponse({"error": "the database cannot be asked"}, status=503)
    queues = {name: _demand_of(found.get(name, Figures())) for name in names}
    needed = sum(queue["workers_needed"] for queue in queues.values())
    return JsonResponse({"workers_needed": needed, "queues": queues})


def _demand_of(figures: Figures) -> dict[str, int]:
    """A worker for each job that runs, is about to, or would if one were free; what is held back needs none."""
    jobs = figures.jobs
    return {
        "workers_needed": figures.runnable + jobs[State.QUEUED] + jobs[State.RUNNING],
        "runnable": figures.runnable,
        "held_back": sum(figures.held_back.values()),
        "queued": jobs[State.QUEUED],
        "running": jobs[State.RUNNING],
        "scheduled": jobs[State.SCHEDULED],
    }
