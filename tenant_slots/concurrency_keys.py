"""Who is next where no concurrency key, such as one user of the tenant, may take all its slots.

A job whose key is at its cap is passed over and keeps its position; the first one of another key goes. Nothing is
stored about it, so a cap that is raised, or a job that ends, is seen by the next look.
"""

from __future__ import annotations

from collections import Counter

from tenant_slots.models import TenantJob, TenantQueue


def heads(tenant_queue: TenantQueue, slots: int, rq_queue: str | None = None) -> list[int]:
    """Primary keys of the next `slots` waiting jobs that their key's cap lets go, in their order.

    Args:
        rq_queue: as their rows have it; None for whichever.
    """
    held = Counter(tenant_queue.jobs.holding().values_list("key", flat=True))
    chosen: list[int] = []
    while len(chosen) < slots and (found := _next(tenant_queue, rq_queue, held, chosen, slots - len(chosen))):
        for pk, key in found:
            if _is_below_cap(tenant_queue, key, held):
                chosen.append(pk)
                held[key] += 1
    return chosen


def is_passed_over(job: TenantJob) -> bool:
    """Whether the job's key is at its cap, as of now."""
    row = job.tenant_queue
    held = Counter({job.key: row.jobs.holding().filter(key=job.key).count()})
    return not _is_below_cap(row, job.key, held)


def _next(
    tenant_queue: TenantQueue, rq_queue: str | None, held: Counter[str], chosen: list[int], slots: int
) -> list[tuple[int, str]]:
    """Read from the index of the backlog alone. The first one found may always go, so each look gets on."""
    full = [key for key in held if not _is_below_cap(tenant_queue, key, held)]
    backlog = tenant_queue.jobs.backlog().exclude(key__in=full).exclude(pk__in=chosen)
    if rq_queue is not None:
        backlog = backlog.filter(rq_queue=rq_queue)
    return list(backlog.values_list("pk", "key")[:slots])


def _is_below_cap(tenant_queue: TenantQueue, key: str, held: Counter[str]) -> bool:
    return not key or tenant_queue.max_job_per_key is None or held[key] < tenant_queue.max_job_per_key
