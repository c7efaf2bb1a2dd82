"""Jobs that run after others: who is to be told that a job has ended, and what that changes. See ``using(after=)``.

Whoever ends a job and whoever makes another one wait for it may meet. Each commits first and looks afterwards: the one
that commits last sees both. So that the end of a job for which nobody waits costs no look, who waits notes it in that
job's row once its own transaction is through, and the statement that ends a job gives the note back. That row lock is
where they meet: either the end comes later and has the note, or `watch` finds the job ended and tells of it itself.

What nobody was told of, because a process died in between, a sweep finds: an open dependency whose job has ended.

As ``slots.py`` this talks to the database only, and to one tenant queue in a transaction; ``transitions.py`` does what
follows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db import OperationalError
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from tenant_slots import logs
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.compiled import among
from tenant_slots.db.transactions import impatient, is_locked_out, seeing_others
from tenant_slots.locks import locked
from tenant_slots.models import CONTENT, ENDED, NOT_BEFORE, JobDependency, State, TenantJob, TenantQueue
from tenant_slots.statements import NOTE_AWAITED

TOLD_AT_ONCE = 1000
"""Most dependencies that are dealt with while their tenant queue is locked."""

SECONDS_FOR_ROW = 1
"""How long to wait for the row of an awaited job; only a transaction of the project's own holds it for longer."""

DELETED = "was deleted"
HOW = {State.FAILED: "has failed", State.CANCELED: "was canceled"}

logger = logging.getLogger("tenant_slots")


@dataclass
class Told:
    """What became of the dependents of one tenant queue."""

    promoted: list[TenantJob] = field(default_factory=list)
    """Those that wait for nothing any more, and for no time."""
    canceled: list[TenantJob] = field(default_factory=list)
    """Those that never run, with the reason in `error`."""
    has_more: bool = False


def store(jobs: Iterable[TenantJob], after: Collection[int], *, any_outcome: bool) -> None:
    """Note that stored jobs wait for others. Then, when that is committed, `watch` these."""
    edges = [JobDependency(job=job, after_id=pk, any_outcome=any_outcome) for job in jobs for pk in after]
    JobDependency.objects.bulk_create(edges, batch_size=TOLD_AT_ONCE)


def watch(after: Collection[int]) -> None:
    """Note in the rows of awaited jobs that their end is to be told. Those that have ended by then have no such note.

    A row that somebody holds is waited for by itself, so that nobody waits for us in a circle.
    """
    unnoted = TenantJob.objects.filter(among([*after]), awaited=False).exclude(state__in=ENDED)
    with seeing_others(app_settings.DATABASE):
        free = unnoted.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True)
        TenantJob.objects.filter(among([*free])).update(awaited=True)
    for pk in list(unnoted.values_list("pk", flat=True)):
        try:
            NOTE_AWAITED.update(impatient(app_settings.DATABASE, SECONDS_FOR_ROW), pk=pk)
        except OperationalError as error:
            if not is_locked_out(error):
                raise
            text = "a sweep tells of the end of job %s, somebody holds its row: %s"
            logger.warning(text, pk, error, extra=logs.about_run(pk))


def untold(ended: Collection[int] | None = None) -> QuerySet[JobDependency]:
    """Open dependencies on jobs that have ended, or were deleted.

    Args:
        ended: only on these.
    """
    found = JobDependency.objects.filter(is_open=True)
    if ended is not None:
        found = found.filter(among([*ended], "after"))
    not_ended = TenantJob.objects.filter(pk=OuterRef("after")).exclude(state__in=ENDED)
    edges: QuerySet[JobDependency] = found.filter(~Exists(not_ended))
    return edges


def concerned(ended: Collection[int] | None = None) -> list[int]:
    """Primary keys of the tenant queues with jobs that are to be told; those that were deleted are forgotten."""
    row = Subquery(TenantJob.objects.filter(pk=OuterRef("job")).values("tenant_queue"))
    rows = list(untold(ended).annotate(row=row).values_list("row", flat=True).distinct())
    if None in rows:
        there = TenantJob.objects.filter(pk=OuterRef("job"))
        untold(ended).filter(~Exists(there)).delete()
    return [pk for pk in rows if pk is not None]


def to_be_told(tenant_queue_id: int) -> QuerySet[JobDependency, int]:
    """Primary keys of a tenant queue's jobs that do not know of all ends yet."""
    own = untold().filter(job__tenant_queue=tenant_queue_id)
    return own.order_by().values_list("job", flat=True).distinct()


def tell(tenant_queue_id: int, ended: Collection[int] | None = None, jobs: Collection[int] | None = None) -> Told:
    """Tell some of a tenant queue's jobs of the ends of those for which they wait.

    The lock keeps two ends from being told to the same job at once: the second one finds what the first has left.

    Args:
        tenant_queue_id: whose.
        ended: only of these ends.
        jobs: only these of its jobs.

    Raises:
        TenantQueue.DoesNotExist, TenantQueueLocked: as `locked`.
    """
    with locked(tenant_queue_id) as row:
        edges = _edges(tenant_queue_id, ended, jobs)
        JobDependency.objects.filter(pk__in=[edge.pk for edge in edges]).update(is_open=False)
        told = Told(has_more=len(edges) == TOLD_AT_ONCE)
        broken = {edge.job_id: edge for edge in edges if not (edge.any_outcome or edge.outcome == State.FINISHED)}
        told.canceled = _cancel(row, broken)
        told.promoted = _promote(row, {edge.job_id for edge in edges} - broken.keys())
    return told


def forgotten() -> QuerySet[TenantJob]:
    """Jobs that wait for no time and for no job: somebody has taken that away by SQL, or with `update()`."""
    waits_for = JobDependency.objects.filter(job=OuterRef("pk"), is_open=True)
    jobs: QuerySet[TenantJob] = TenantJob.objects.waiting_for_jobs().filter(~Exists(waits_for))
    return jobs


def promote_forgotten(tenant_queue_id: int, pks: Collection[int]) -> Told:
    """Let those of them that are still forgotten run, as if they had been told that they wait for nothing any more.

    Args:
        tenant_queue_id, pks: jobs of one tenant queue.

    Raises:
        TenantQueue.DoesNotExist, TenantQueueLocked: as `locked`.
    """
    with locked(tenant_queue_id) as row:
        return Told(_promote(row, pks))


def among_dependents(jobs: Collection[TenantJob]) -> set[int]:
    """The primary keys of those that were enqueued to run after others."""
    edges = JobDependency.objects.filter(among([job.pk for job in jobs], "job"))
    return set(edges.values_list("job", flat=True))


def rounds(jobs: Collection[int]) -> dict[int, int]:
    """In which round those of these jobs are to be retried that run after others of them; all others are in round 0.

    A retried job waits for none that has ended by then, so that those before it are retried first.
    """
    found: dict[int, int] = {}
    edges = JobDependency.objects.filter(among([*jobs], "job")).order_by("job")
    for job, after in edges.values_list("job", "after").iterator():  # a job has a higher key than those it runs after
        if after in jobs:
            found[job] = max(found.get(job, 0), found.get(after, 0) + 1)
    return found


def wait_again(job: TenantJob, also: Collection[int] = ()) -> list[int]:
    """Have a job that is to run again wait for those of its jobs that have not ended; gives these.

    For whoever holds its tenant queue. An end that it was not told of while it had ended itself is nothing to it any
    more; one that has not ended is still to be told.

    Args:
        also: jobs that run again, too, by the same transaction.
    """
    not_ended = TenantJob.objects.filter(pk=OuterRef("after")).exclude(state__in=ENDED)
    edges = JobDependency.objects.filter(Exists(not_ended) | Q(among([*also], "after")), job=job.pk)
    after = list(edges.values_list("after", flat=True))
    if after:
        untold().filter(job=job.pk, job__state__in=ENDED).update(is_open=False)
        JobDependency.objects.filter(among(after, "after"), job=job.pk).update(is_open=True)
    return after


def _edges(tenant_queue_id: int, ended: Collection[int] | None, jobs: Collection[int] | None) -> list[Any]:
    """With the state of the awaited job, None of one that is gone."""
    outcome = Subquery(TenantJob.objects.filter(pk=OuterRef("after")).values("state"))
    own = untold(ended).filter(job__tenant_queue=tenant_queue_id).annotate(outcome=outcome)
    if jobs is not None:
        own = own.filter(among([*jobs], "job"))
    return list(own.order_by()[:TOLD_AT_ONCE])


def _cancel(row: TenantQueue, broken: dict[int, Any]) -> list[TenantJob]:
    """By the job that is to blame, which is often one for many."""
    waiting = TenantJob.objects.waiting_for_jobs().filter(pk__in=broken).select_for_update(no_key=True)
    jobs: list[TenantJob] = list(waiting.defer(*CONTENT)) if broken else []
    named = TenantJob.objects.select_related("tenant_queue").only("uuid", "task", "tenant_queue__tenant")
    blamed = named.in_bulk({broken[job.pk].after_id for job in jobs})
    by_error: dict[str, list[int]] = {}
    for job in jobs:
        job.tenant_queue = row
        job.error = _why(broken[job.pk], blamed, row.tenant)
        by_error.setdefault(job.error, []).append(job.pk)
    for error, pks in by_error.items():
        canceled = {"state": State.CANCELED, "ended_at": DatabaseNow(), "error": error}
        TenantJob.objects.filter(pk__in=pks).update(**canceled)
    return jobs


def _why(edge: Any, blamed: dict[int, TenantJob], tenant: str) -> str:
    """Who may read it is of the tenant, and is to learn nothing of another one's jobs."""
    job = blamed.get(edge.after_id)
    if job is None or edge.outcome is None:
        return f"canceled: a job that it was to run after {DELETED}"
    name = job if job.tenant_queue.tenant == tenant else "a job of another tenant"
    return f"canceled: {name}, which it was to run after, {HOW[State(edge.outcome)]}"


def _promote(row: TenantQueue, candidates: Collection[int]) -> list[TenantJob]:
    """Those that have nothing left to wait for. A job that is to wait for a time waits for that from now on."""
    if not candidates:
        return []
    free = _waiting_for_nothing(candidates)
    waiting = TenantJob.objects.waiting_for_jobs().filter(pk__in=free).select_for_update(no_key=True)
    jobs = list(waiting.defer(*CONTENT)) if free else []
    now = clock.now() if any(NOT_BEFORE in job.options for job in jobs) else None
    promoted = []
    for job in jobs:
        job.tenant_queue = row
        if now is not None and job.options.get(NOT_BEFORE, 0) > now.timestamp():
            time = datetime.fromtimestamp(job.options[NOT_BEFORE], UTC)
            TenantJob.objects.filter(pk=job.pk).update(run_after=time)
        else:
            promoted.append(job)
    # As if its time had come now: it has not waited for its tenant before.
    TenantJob.objects.filter(pk__in=[job.pk for job in promoted]).update(state=State.WAITING, run_after=DatabaseNow())
    return promoted


def _waiting_for_nothing(candidates: Collection[int]) -> list[int]:
    """A look for one open dependency of each, in the index of these: a fan-in has many, and asks after every end."""
    one = JobDependency.objects.filter(job=OuterRef("pk"), is_open=True).order_by().values("pk")[:1]
    jobs = TenantJob.objects.filter(pk__in=candidates).alias(open_dependency=Subquery(one))
    return list(jobs.filter(open_dependency=None).values_list("pk", flat=True))
