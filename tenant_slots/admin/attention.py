"""What needs a person now, in sentences that lead to where it is seen or put right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Exists, Func, JSONField, OuterRef, Subquery
from django.db.models.functions import JSONArray
from django.utils.translation import gettext, ngettext

from tenant_slots import fleet
from tenant_slots.admin import workers
from tenant_slots.admin.bulk import report
from tenant_slots.admin.words import duration, told_to_rest
from tenant_slots.fleet import Fleet
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.queue_names import usable_queues
from tenant_slots.repair import findings, liveness
from tenant_slots.stats import sweeps
from tenant_slots.stats.expressions import count_of

MODELS = (TenantQueue._meta.label_lower, TenantJob._meta.label_lower)
"""That bulk changes are about."""


class LostChange(NamedTuple):
    """A bulk change that has not ended, and nobody goes on with it."""

    model: str
    site: str
    user_key: str
    """Of whoever has confirmed it."""


@dataclass(frozen=True)
class Facts:
    """Of all tenants. Lists are of queues of RQ."""

    deserted: tuple[str, ...]
    """They have jobs that may start, and no worker takes them."""
    unasked: tuple[str, ...]
    """Their Redis does not answer."""
    suspended: tuple[str, ...]
    """Their workers are told to rest."""
    seconds_without_sweep: float | None
    """None while somebody sweeps, 0 where nobody has ever done so."""
    stale: int
    queued_too_long: int
    paused_for_good: int
    """Tenant queues with waiting jobs and no end of the pause."""
    without_queue: int
    """Tenant queues with jobs, whose queue `RQ_QUEUES` does not have."""
    old_snapshots: int
    lost_bulk_changes: tuple[LostChange, ...]


@dataclass(frozen=True)
class Links:
    """Where the sentences lead; "" where the viewer may not go."""

    workers: str
    queues: str
    jobs: str
    bulk_changes: Mapping[str, str]
    """By model."""


@dataclass(frozen=True)
class Sentence:
    text: str
    url: str = ""


def facts() -> Facts:
    """Five queries, and what RQ has on record of the workers."""
    known = fleet.known()
    stale, queued_too_long, paused_for_good, without_queue, lost = _looked_up(known)
    return Facts(
        workers.deserted(known),
        workers.unasked(known),
        known.suspended,
        sweeps.seconds_overdue(),
        stale,
        queued_too_long,
        paused_for_good,
        without_queue,
        old_snapshots=sum(1 for _ in liveness.old_snapshots()),
        lost_bulk_changes=tuple(LostChange(*one) for one in lost or ()),
    )


def _looked_up(known: Fleet) -> tuple[Any, ...]:
    queued = liveness.left_by_idle(liveness.admitted_long_ago(), known)
    waiting = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("pk"))
    paused = TenantQueue.objects.filter(Exists(waiting), paused=True, resume_at=None)
    counted: tuple[Any, ...] = (TenantJob.objects.stale(), queued, paused, findings.without_queue())
    lost = Subquery(report.lost().values(all=_JSONOfAll(JSONArray(*LostChange._fields))))
    found = TenantQueue.objects.order_by().values_list(*map(count_of, counted), lost)[:1]
    return next(iter(found), (*(0 for _ in counted), None))


class _JSONOfAll(Func):
    """One list of the values of all rows, for a subquery; None for no rows, or an empty one."""

    output_field = JSONField()

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSONB_AGG", **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, function="JSON_GROUP_ARRAY", **context)


def sentences(facts: Facts, links: Links, sees: Callable[[LostChange], bool]) -> list[Sentence]:
    """The most pressing ones first; none when all is well.

    Args:
        sees: whether the viewer may see a bulk change.
    """
    return [
        *_of_workers(facts, links),
        *_of_sweeps(facts, links),
        *_of_jobs(facts, links),
        *_of_tenants(facts, links),
        *_of_staff(facts, links, sees),
    ]


def _of_workers(facts: Facts, links: Links) -> Iterator[Sentence]:
    for queue in facts.deserted:
        text = gettext(
            "Jobs wait in queue %(queue)s, and no worker takes them. Start one: manage.py rqworker %(queue)s."
        )
        yield Sentence(text % {"queue": queue}, links.workers)
    if facts.unasked:
        text = gettext(
            "The Redis of these queues does not answer, so that nothing is known of their workers: %(queues)s."
        )
        yield Sentence(text % {"queues": ", ".join(facts.unasked)}, links.workers)
    if facts.suspended:
        yield Sentence(told_to_rest(facts.suspended), links.workers)


def _of_sweeps(facts: Facts, links: Links) -> Iterator[Sentence]:
    if facts.seconds_without_sweep is None:
        return
    start = gettext("Start a worker with a class of tenant_slots, or manage.py slots_sweep --loop.")
    if facts.seconds_without_sweep:
        since = gettext("Nobody has swept for %(time)s.") % {"time": duration(facts.seconds_without_sweep)}
    else:
        since = gettext("Nobody has ever swept.")
    yield Sentence(f"{since} {start}", links.workers)


def _of_jobs(facts: Facts, links: Links) -> Iterator[Sentence]:
    if facts.stale:
        text = ngettext(
            "%(count)d running job has sent no heartbeat for a while: a sweep frees its slot if one can be sure.",
            "%(count)d running jobs have sent no heartbeat for a while: a sweep frees their slots if one can be sure.",
            facts.stale,
        )
        yield Sentence(text % {"count": facts.stale}, f"{links.queues}?state=stale")
    if facts.queued_too_long:
        text = ngettext(
            "%(count)d job has had a slot for more than %(minutes)d minutes, and no worker has begun it.",
            "%(count)d jobs have had slots for more than %(minutes)d minutes, and no worker has begun them.",
            facts.queued_too_long,
        )
        url = f"{links.jobs}?state=queued" if links.jobs else ""
        yield Sentence(text % {"count": facts.queued_too_long, "minutes": liveness.MINUTES_QUEUED}, url)


def _of_tenants(facts: Facts, links: Links) -> Iterator[Sentence]:
    if facts.paused_for_good:
        text = ngettext(
            "%(count)d tenant queue with waiting jobs is paused until somebody resumes it.",
            "%(count)d tenant queues with waiting jobs are paused until somebody resumes them.",
            facts.paused_for_good,
        )
        yield Sentence(text % {"count": facts.paused_for_good}, f"{links.queues}?paused__exact=1")
    if facts.without_queue:
        text = ngettext(
            "%(count)d tenant queue has jobs that cannot run: RQ_QUEUES does not have its queue, only %(queues)s.",
            "%(count)d tenant queues have jobs that cannot run: RQ_QUEUES does not have their queues, only %(queues)s.",
            facts.without_queue,
        )
        queues = ", ".join(usable_queues())
        yield Sentence(text % {"count": facts.without_queue, "queues": queues}, links.queues)
    if facts.old_snapshots:
        text = ngettext(
            "%(count)d transaction of PostgreSQL has been open for more than %(minutes)d minutes, so that backlogs are "
            "read more slowly by the hour. manage.py slots_doctor names it.",
            "%(count)d transactions of PostgreSQL have been open for more than %(minutes)d minutes, so that backlogs "
            "are read more slowly by the hour. manage.py slots_doctor names them.",
            facts.old_snapshots,
        )
        yield Sentence(text % {"count": facts.old_snapshots, "minutes": liveness.MINUTES_PINNED})


def _of_staff(facts: Facts, links: Links, sees: Callable[[LostChange], bool]) -> Iterator[Sentence]:
    lost = Counter(one.model for one in facts.lost_bulk_changes if sees(one))
    for model, url in links.bulk_changes.items():
        count = lost[model]
        text = ngettext(
            "%(count)d bulk change has not ended, and nobody goes on with it.",
            "%(count)d bulk changes have not ended, and nobody goes on with them.",
            count,
        )
        if count:
            yield Sentence(text % {"count": count}, url)
