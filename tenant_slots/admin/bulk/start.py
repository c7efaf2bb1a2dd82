"""A bulk change begins: what was confirmed is frozen, and a job of ours is enqueued that carries it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4, uuid5

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest
from django.utils import translation

from tenant_slots import chains, fleet, limits, tenants
from tenant_slots.admin.bulk import chunks
from tenant_slots.admin.bulk.chunks import Part
from tenant_slots.admin.bulk.commission import key_of, stored
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.admin.confirmed import GONE, Confirmed
from tenant_slots.conf import app_settings
from tenant_slots.db.clock import ago
from tenant_slots.db.compiled import among
from tenant_slots.models import BulkChange, BulkChunk, TenantJob, TenantQueue
from tenant_slots.queue_names import usable_queues

NOBODY = UUID(int=0)
"""In place of the id of a job that is not enqueued yet."""

ONCE = "once"
"""The field of a form that has an id of its own each time that it is shown."""

CHUNKS_AT_ONCE = 100
"""In one INSERT."""


def start_bulk_change(
    model_admin: Any,
    request: HttpRequest,
    action: Confirmed,
    name: str,
    pks: list[int],
    values: dict[str, Any],
    outcomes: Mapping[str, int],
) -> BulkChange:
    """Keep what is to be done, all of it or nothing, and enqueue the job. Of a form that is sent twice, once.

    Args:
        action, name: and how the ModelAdmin calls it.
        pks: of the rows that the page has shown.
        values: of its form.
        outcomes: of others that the page has shown, which nothing is done to.
    """
    _forget_old()
    visible, parts, queues = _frozen(model_admin, request, action, pks, values)
    came_of = Counter(outcomes) + Counter({GONE: len(pks) - len(visible)})
    queue = queue_for(queues)
    tenants.tenant_queue_of_admin(queue)
    facts = {
        "site": model_admin.admin_site.name,
        "model": model_admin.opts.label_lower,
        "action": name,
        "values": stored(values),
        "language": translation.get_language() or settings.LANGUAGE_CODE,
        "user_key": key_of(request.user),
        "by": limits.stored_name(str(request.user.get_username())),
        "reason": values.get("reason", ""),
        "total": action.rows_changed(visible, values) if action.counts else len(pks) + sum(outcomes.values()),
        "outcomes": dict(came_of),
        "job": NOBODY,
    }
    with transaction.atomic(using=app_settings.DATABASE):
        change, is_new = BulkChange.objects.get_or_create(confirmation=_confirmation(request), defaults=facts)
        if is_new:
            new = (BulkChunk(change=change, left=[part.as_json() for part in some]) for some in parts)
            BulkChunk.objects.bulk_create(new, batch_size=CHUNKS_AT_ONCE)
            enqueue(change, queue)
    return change


def _confirmation(request: HttpRequest) -> UUID:
    """Of all that a page has sent that was shown once: the same page with other values is another one."""
    try:
        page = UUID(request.POST.get(ONCE, ""))
    except ValueError:
        return uuid4()
    return uuid5(page, repr(sorted(request.POST.lists())))


def enqueue(change: BulkChange, queue: str) -> None:
    """The job that carries it out, or goes on with it."""
    change.job = run_bulk_change.using(queue=queue).enqueue(change.pk).uuid
    BulkChange.objects.filter(pk=change.pk).update(job=change.job)


def _frozen(
    model_admin: Any, request: HttpRequest, action: Confirmed, pks: list[int], values: Mapping[str, Any]
) -> tuple[list[int], Iterator[list[Part]], list[str]]:
    """The rows that are still there for the user, the parts of their chunks, and the queues they concern."""
    found = model_admin.get_queryset(request).filter(among(pks)).order_by()
    if issubclass(model_admin.model, TenantJob):
        jobs = dict(found.values_list("pk", "tenant_queue_id"))
        rounds = chains.rounds(jobs) if action.in_rounds else {}
        return list(jobs), chunks.of_jobs(jobs, rounds), _queues_of(sorted(set(jobs.values())))
    rows = list(found.values_list("pk", flat=True))
    if "jobs" in values:
        return rows, chunks.of_queues_with_jobs(rows, _by_queue(values["jobs"])), _queues_of(rows)
    return rows, chunks.of_queues(rows, values.get("seen", {})), _queues_of(rows)


def _by_queue(jobs: Sequence[int]) -> dict[int, list[int]]:
    """Primary keys of jobs by that of their tenant queue."""
    found: dict[int, list[int]] = defaultdict(list)
    for tenant_queue, job in TenantJob.objects.filter(among(jobs)).values_list("tenant_queue", "pk"):
        found[tenant_queue].append(job)
    return found


def _queues_of(tenant_queues: list[int]) -> list[str]:
    named = TenantQueue.objects.filter(among(tenant_queues)).order_by().values_list("queue", flat=True)
    return sorted(set(named.distinct()))


def queue_for(queues: list[str]) -> str:
    """Where the job goes: ``ADMIN_QUEUE``, or one of the queues that it is about, one with a worker if there is any."""
    if app_settings.ADMIN_QUEUE:
        return app_settings.ADMIN_QUEUE
    configured: list[str] = usable_queues()
    possible = [name for name in configured if name in queues] or configured
    known = fleet.known(*possible)
    return next((name for name in possible if any(one.takes_jobs for one in known.of(name))), possible[0])


def _forget_old() -> None:
    """Their reports are kept for as long as jobs are."""
    BulkChange.objects.filter(ended_at__lt=ago(app_settings.RETENTION)).delete()
