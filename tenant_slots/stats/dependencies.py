"""Which jobs a job runs after, and which ones after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef, QuerySet, Subquery

from tenant_slots.db.compiled import Listed, among
from tenant_slots.models import ENDED, JobDependency, TenantJob

SHOWN = ("uuid", "task", "state")


class Named(NamedTuple):
    """Some jobs by name."""

    jobs: list[TenantJob]
    others: int
    """How many there are beside them, that were too many or are not for this viewer to see."""


def exist() -> Exists:
    """Whether a job was enqueued to run after others."""
    return Exists(JobDependency.objects.filter(job=OuterRef("pk")))


def waited_for(job: TenantJob) -> QuerySet[TenantJob]:
    """Those that have not ended yet. An end that nobody has told the job of is one."""
    return _of(JobDependency.objects.filter(job=job.pk, is_open=True), "after").exclude(state__in=ENDED)


def named_after(job: TenantJob) -> QuerySet[TenantJob]:
    """All that it was enqueued to run after and that are still in the table."""
    return _of(JobDependency.objects.filter(job=job.pk), "after")


def dependents(job: TenantJob) -> QuerySet[TenantJob]:
    """Those that were enqueued to run after it."""
    return _of(JobDependency.objects.filter(after=job.pk), "job")


def named(jobs: QuerySet[TenantJob], most: int, seen: QuerySet[TenantJob] | None = None) -> Named:
    """The first ones of some jobs.

    Args:
        jobs, most: of these, so many.
        seen: those that a viewer may see; None for all.
    """
    shown = jobs if seen is None else jobs.filter(pk__in=seen.order_by().values("pk"))
    found = list(shown.only(*SHOWN).order_by("pk")[:most])
    others = jobs.count() - len(found) if len(found) == most or seen is not None else 0
    return Named(found, others)


def canceled_with(pks: Sequence[int]) -> int:
    """How many other jobs are canceled when these are: they run after them, or after one that does. One query."""
    return behind(pks).count()


def behind(pks: Sequence[int]) -> QuerySet[TenantJob]:
    """Those jobs."""
    return TenantJob.objects.waiting_for_jobs().filter(pk__in=_OthersFollowing(pks))


def _broken_by(pks: Sequence[int]) -> QuerySet[Any]:
    """What waits for these to finish."""
    edges = JobDependency.objects.filter(among(pks, "after"), is_open=True, any_outcome=False)
    return edges.order_by().values("job")


class _OthersFollowing(Subquery):
    """All that wait for these jobs to finish, and for those in turn, without these themselves."""

    template = """(
        WITH RECURSIVE following (job) AS (
            %(subquery)s
            UNION
            SELECT edge.job_id FROM tenant_slots_jobdependency AS edge
            JOIN following ON edge.after_id = following.job
            WHERE edge.is_open AND NOT edge.any_outcome
        )
        SELECT job FROM following EXCEPT SELECT %(chosen)s)"""

    def __init__(self, pks: Sequence[int]) -> None:
        super().__init__(_broken_by(pks))
        self.chosen = Listed(pks)

    def as_postgresql(self, compiler: Any, connection: Any) -> Any:
        return self._with_chosen(compiler, connection, "unnest({})")

    def as_sqlite(self, compiler: Any, connection: Any) -> Any:
        return self._with_chosen(compiler, connection, "value FROM json_each({})")

    def _with_chosen(self, compiler: Any, connection: Any, rows: str) -> Any:
        """Taken off as a set: PostgreSQL 14 would compare each job that follows with each of the others."""
        chosen, own = self.chosen.as_sql(compiler, connection)
        sql, parameters = self.as_sql(compiler, connection, chosen=rows.format(chosen))
        return sql, (*parameters, *own)


def _of(edges: QuerySet[JobDependency], end: str) -> QuerySet[TenantJob]:
    jobs: QuerySet[TenantJob] = TenantJob.objects.filter(pk__in=edges.values(end))
    return jobs
