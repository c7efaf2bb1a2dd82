"""What is not as it should be, as queries: the steps of a sweep repair it, the doctor says what it means.

Nothing here changes or locks a row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from redis.exceptions import RedisError

from tenant_slots import dispatch, fair_order, owners
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import ago
from tenant_slots.models import TenantJob, TenantJobQuerySet, TenantQueue, rq_queue_of
from tenant_slots.owners import Liveness

logger = logging.getLogger("tenant_slots")


def dead_owners_here() -> list[TenantJob]:
    """Running jobs whose owner process was on this host and is gone."""
    return _dead_here(TenantJob.objects.running())


def dead_reservations_here() -> list[TenantJob]:
    """Reservations whose block will never begin: their process was on this host and is gone."""
    return _dead_here(TenantJob.objects.reservations_to_begin())


def without_heartbeat() -> TenantJobQuerySet:
    """Running jobs without a heartbeat for a lease, those of stock workers among them, which send none."""
    found: TenantJobQuerySet = TenantJob.objects.running().filter(beat_at__lt=ago(app_settings.LEASE_TTL))
    return found.select_related("tenant_queue")


class LostInRedis(NamedTuple):
    jobs: list[TenantJob]
    unasked: dict[str, RedisError]
    """By queue: why its Redis could not be asked. Its jobs were not looked for."""


def lost_in_redis() -> LostInRedis:
    """Admitted jobs that no worker would find. Looks at names first: usually nothing is lost."""
    overdue = TenantJob.objects.queued().jobs().filter(admitted_at__lt=ago(app_settings.SWEEP_INTERVAL))
    names = overdue.values_list("pk", "uuid", "attempt", "rq_job_id", "rq_queue", "tenant_queue__queue")
    lost, unasked = dispatch.missing(names)
    rows = overdue.filter(pk__in=lost).select_related("tenant_queue").defer("args", "kwargs").order_by("pk")
    return LostInRedis(list(rows) if lost else [], unasked)


def ahead_of_time() -> list[int]:
    """Primary keys of jobs with a time that our statements wrote and that has not come: the clock was set back since.

    A lease ahead is let pass, as for a failover to a server whose clock is a little behind.
    """
    jobs, ahead = TenantJob.objects, ago(-app_settings.LEASE_TTL)
    found = [
        jobs.holding().filter(Q(beat_at__gt=ahead) | Q(admitted_at__gt=ahead)),
        jobs.reservations_to_begin().filter(beat_at__gt=ahead),
        jobs.ended().filter(ended_at__gt=ahead),
    ]
    holding, *others = (some.order_by().values_list("pk", flat=True) for some in found)
    return list(holding.union(*others))


def due(seconds_ago: float = 0) -> TenantJobQuerySet:
    return TenantJob.objects.scheduled().filter(run_after__lte=ago(seconds_ago))


def with_something_to_run() -> dict[str, list[tuple[int, int]]]:
    """Tenant queues that have a waiting job and a free slot for it, with their share, by the RQ queue of the job."""
    waiting = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("pk"))
    held = TenantJob.objects.holding().filter(tenant_queue=OuterRef(OuterRef("pk"))).exclude(key="")
    full = held.values("key").annotate(held=Count("pk")).filter(held__gte=F("tenant_queue__max_job_per_key"))
    free: QuerySet[TenantQueue] = TenantQueue.objects.filter(paused=False, current_job__lt=F("max_job"))
    found: dict[str, list[tuple[int, int]]] = {}
    for name in ("", *getattr(settings, "RQ_QUEUES", {})):
        there = waiting.filter(rq_queue=name)
        below_cap = Q(max_job_per_key=None) | Exists(there.exclude(key__in=full.values("key")))
        for pk, queue, share in free.filter(Exists(there), below_cap).values_list("pk", "queue", "share"):
            found.setdefault(rq_queue_of(name, queue), []).append((pk, share))
    return found


def stranded() -> Iterator[tuple[str, int]]:
    """Those of them whose turn would never come: RQ queue and tenant queue. A sweep offers them."""
    return ((rq_queue, pk) for rq_queue, rows in stranded_by_queue() for pk, _ in rows)


def stranded_by_queue() -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """The same by RQ queue, with their share; none in a queue where only others have something to run.

    Queues whose Redis cannot be asked are left out.
    """
    for rq_queue, rows in with_something_to_run().items():
        try:
            known = set(fair_order.known(rq_queue, [pk for pk, _ in rows]))
        except RedisError as error:
            logger.warning("the order of tenants in queue %s cannot be asked: %s", rq_queue, error)
        else:
            yield rq_queue, [(pk, share) for pk, share in rows if pk not in known]


def running_by_tenant() -> dict[str, list[tuple[int, int, float]]]:
    """Per RQ queue the tenant queues that have running jobs: how many, and for how many seconds these have run."""
    now = clock.now()
    running = TenantJob.objects.running().jobs().select_related("tenant_queue")
    seconds: dict[tuple[str, int], list[float]] = {}
    for job in running.only("tenant_queue__queue", "rq_queue", "started_at"):
        taken = max(0.0, (now - (job.started_at or now)).total_seconds())
        seconds.setdefault((job.rq_queue_name, job.tenant_queue_id), []).append(taken)
    found: dict[str, list[tuple[int, int, float]]] = {}
    for (rq_queue, pk), taken_by in seconds.items():
        found.setdefault(rq_queue, []).append((pk, len(taken_by), sum(taken_by)))
    return found


def without_overflow_queue() -> TenantJobQuerySet:
    """Waiting jobs whose overflow queue the project has given up."""
    return TenantJob.objects.waiting().exclude(rq_queue__in=["", *getattr(settings, "RQ_QUEUES", {})])


def wrong_counters() -> list[int]:
    """Primary keys of the tenant queues whose counter is wrong, each seen in one snapshot."""
    holding = TenantJob.objects.holding().filter(tenant_queue=OuterRef("pk"))
    counted = (
        TenantJob.objects.holding()
        .values("tenant_queue")
        .annotate(held=Count("pk"))
        .exclude(held=F("tenant_queue__current_job"))
    )
    idle = TenantQueue.objects.filter(~Exists(holding), current_job__gt=0)
    return [*counted.values_list("tenant_queue", flat=True), *idle.values_list("pk", flat=True)]


def _dead_here(jobs: TenantJobQuerySet) -> list[TenantJob]:
    here = jobs.filter(host=owners.this_host()).exclude(host="").select_related("tenant_queue")
    return [job for job in here if owners.liveness(job) is Liveness.DEAD]
