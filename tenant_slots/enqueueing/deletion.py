"""Deleting jobs, with the ORM or in the admin: those that hold a slot give it back in the same transaction.

For which others they waited is forgotten with them; who waits for them is told that they are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from django.db.models import Model, Q, QuerySet
from django.db.models.deletion import Collector

from tenant_slots import charges, dispatch, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db.commits import after_commit
from tenant_slots.db.transactions import seeing_others
from tenant_slots.fair_order import Freed
from tenant_slots.layering import implements
from tenant_slots.locks import locked
from tenant_slots.models import (
    CONTENT,
    ENDED,
    HOLDING,
    JobDependency,
    State,
    TenantJob,
    TenantJobQuerySet,
    TenantQueue,
)
from tenant_slots.models.states import UNADMITTED
from tenant_slots.statements import GIVE_BACK, GIVE_TOKEN_BACK

Deleted = tuple[int, dict[str, int]]

MOST_LOOKS = 10
"""At a job that changes whenever it is to be deleted. One in a state that SQL has made up, or whose tenant queue SQL
has taken away, holds nothing that could be given back, and is deleted then too.
"""


@implements(TenantJob.delete)
def delete(job: TenantJob, using: Any = None, keep_parents: bool = False) -> Deleted:
    alias = using or app_settings.DATABASE
    jobs = TenantJob.objects.using(alias).filter(pk=job.pk)
    looks = 0
    while True:
        looks += 1
        with _slots_given_back(jobs) as deletable:
            if _is_kept(deletable) or looks == MOST_LOOKS or not jobs.exists():
                JobDependency.objects.using(alias).filter(job=job.pk).delete()
                return Model.delete(job, alias, keep_parents)


def _is_kept(deletable: TenantJobQuerySet) -> bool:
    """As it is, until it is deleted. False for one that had ended, and was retried since that was asked: Django deletes
    by the key alone, also what holds a slot by now.
    """
    return deletable.db != app_settings.DATABASE or bool(deletable.select_for_update().values_list("pk"))


@implements(TenantJobQuerySet.delete)
def delete_all(jobs: TenantJobQuerySet) -> Deleted:
    with _slots_given_back(jobs) as deletable:
        if jobs.db == app_settings.DATABASE and not Collector(jobs.db).can_fast_delete(deletable):
            _keep(deletable)
        JobDependency.objects.using(jobs.db).filter(job__in=deletable.order_by()).delete()
        return QuerySet.delete(deletable)


def _keep(deletable: TenantJobQuerySet) -> None:
    """From being retried. Where the project has receivers or tables for that, Django reads the jobs before it deletes
    them by their keys.
    """
    keys = deletable.order_by().values("pk")
    list(TenantJob.objects.using(deletable.db).filter(pk__in=keys).select_for_update().values_list("pk"))


@contextmanager
def _slots_given_back(jobs: TenantJobQuerySet) -> Iterator[TenantJobQuerySet]:
    """A transaction that deletes what it is given, and locks the tenant queues of those that have not ended.

    Nobody admits or releases one of these meanwhile. They are locked in one order, whoever deletes.
    """
    if jobs.db != app_settings.DATABASE:
        yield jobs
        return
    unended = jobs.exclude(state__in=ENDED).order_by()
    pks = sorted(set(unended.values_list("tenant_queue", flat=True)))
    with seeing_others(jobs.db), ExitStack() as all_locked:
        rows = {pk: row for pk in pks if (row := _locked(all_locked, pk))}
        in_rq = Q(state__in=HOLDING) | ~Q(rq_job_id="")
        leaving = list(unended.filter(in_rq, tenant_queue__in=rows).defer(*CONTENT))
        for job in leaving:
            job.tenant_queue = rows[job.tenant_queue_id]
            _leave(job)
        _give_tokens_back(leaving, jobs.db)
        yield jobs.filter(
            Q(state__in=ENDED)
            | Q(state__in=UNADMITTED, tenant_queue__in=rows)
            | Q(pk__in=[job.pk for job in leaving if job.state in HOLDING])
        )


def _locked(all_locked: ExitStack, pk: int) -> TenantQueue | None:
    """None if it was deleted, its jobs with it, since they were read."""
    try:
        return all_locked.enter_context(locked(pk))
    except TenantQueue.DoesNotExist:
        return None


def _leave(job: TenantJob) -> None:
    """A run that goes on notices with its next heartbeat, if the stop does not reach it, that its job is gone."""
    after_commit(partial(dispatch.stop if job.state == State.RUNNING else dispatch.remove, job))
    if job.state in HOLDING:
        GIVE_BACK.update(pk=job.tenant_queue_id, slots=1)
        slot = Freed(job.tenant_queue_id, charges.unmeasured(job), job.rq_queue_name)
        after_commit(partial(transitions.free, slot))


def _give_tokens_back(leaving: list[TenantJob], alias: str) -> None:
    """Those of jobs that have not started, and now never do: a start does not wait for the tenant queue."""
    at_rate = [job.pk for job in leaving if job.state == State.QUEUED and job.tenant_queue.rate_number is not None]
    if at_rate:
        unstarted = TenantJob.objects.using(alias).filter(pk__in=at_rate, state=State.QUEUED)
        for pk in unstarted.select_for_update(no_key=True).values_list("tenant_queue", flat=True):
            GIVE_TOKEN_BACK.update(pk=pk)
