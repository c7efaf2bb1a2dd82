"""How a background job changes the rows of a chunk: one by one, or as many at once as one transaction may.

Each way is a generator that does the part that is next, and yields after each transaction: there it can be stopped.
Whatever it has yielded is stored, and what it does next is what the chunk says is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from django.db import DatabaseError

from tenant_slots import many_limits, signals
from tenant_slots.admin import audit
from tenant_slots.admin.bulk.chunks import Part
from tenant_slots.admin.bulk.commission import Commission
from tenant_slots.admin.bulk.work import Step, Work
from tenant_slots.admin.confirmed import DONE, FAILED, GONE, JOBS, Confirmed
from tenant_slots.admin.refusals import fails_alone, problem
from tenant_slots.db.compiled import among
from tenant_slots.enqueueing import cancel
from tenant_slots.exceptions import TenantQueueLocked, TenantSlotsError
from tenant_slots.limits import Edit, require_future
from tenant_slots.many_limits import Edited
from tenant_slots.models import CONTENT, TenantJob, TenantQueue
from tenant_slots.statements import ADMITTED

ASKED_FOR = (*ADMITTED, "priority", "unique_key")
"""What is read of a job that is changed with others."""

Way = Callable[[Work], Iterator[None]]

CHANGED_MEANWHILE = "changed meanwhile"
UNCHANGED = "unchanged"


def way_of(action: Confirmed) -> Way:
    return action.in_background or one_by_one


def one_by_one(work: Work) -> Iterator[None]:
    """As in a request: by the action on one object."""
    found = work.objects(work.chunk.part.pks)
    for pk in work.chunk.part.pks:
        _do_one(work, found.get(pk))
        yield


def _do_one(work: Work, one: Any) -> None:
    """The first object of the part."""
    part = work.chunk.part
    seen = {"seen": part.shown}

    def change(step: Step) -> None:
        outcome = GONE
        if one is not None:
            outcome = work.commission.action.apply(work.model_admin, work.request, one, work.values | seen)
        step.outcomes[outcome] += 1

    work.tried(change, part.without_first(), str(one))


@dataclass(frozen=True)
class Limits:
    """Tenant queues, each in a transaction of its own that takes one statement."""

    edit: Callable[[dict[str, Any], str], Edit]
    """By the form's values and the name of the user."""

    def __call__(self, work: Work) -> Iterator[None]:
        if not (many_limits.is_possible() and audit.is_beside_slots(work.model_admin)):
            yield from one_by_one(work)
            return
        if problem := self.problem(work.values):
            yield from _all_fail(work, problem)
            return
        run = _LimitsRun(work, self)
        run.write_all()
        yield
        if run.by_themselves:
            yield from one_by_one(work)

    def problem(self, values: dict[str, Any]) -> str:
        """Why the values are possible no more: the job may have waited past the time that they name."""
        try:
            if values.get("until"):
                require_future(values["until"])
        except TenantSlotsError as error:
            return str(error)
        return ""


def _all_fail(work: Work, problem: str) -> Iterator[None]:
    part = work.chunk.part
    with work.step() as step:
        step.left = part.only([])
        step.outcomes[FAILED] = len(part.pks)
        step.problems.append(problem)
    yield


class _LimitsRun:
    """One part. What changes nothing is counted with the next row that is changed, or at the end."""

    def __init__(self, work: Work, way: Limits) -> None:
        self.work, self.edit = work, way.edit(work.values, work.by)
        self.by_themselves: list[int] = []
        self._written: list[Edited] = []
        self._idle: Counter[str] = Counter()
        self._problems: list[str] = []

    def write_all(self) -> None:
        part = self.work.chunk.part
        shown = part.shown
        rows = TenantQueue.objects.in_bulk(list(self.work.visible(part.pks)))
        for pk in part.pks:
            self._do(rows.get(pk), shown.get(pk))
        if self._idle:
            with self.work.step() as step:
                step.left = self._left(up_to=part.pks[-1])
                step.outcomes, step.problems = self._idle, self._problems
        many_limits.wait_for_disk()
        many_limits.follow(self._written)

    def _do(self, row: TenantQueue | None, shown: int | None) -> None:
        if row is None:
            self._idle[GONE] += 1
        elif shown is not None and shown != row.version:
            self._idle[CHANGED_MEANWHILE] += 1
        else:
            try:
                self._change(row)
            except (TenantSlotsError, DatabaseError) as error:
                if not fails_alone(error):
                    raise
                self._idle[FAILED] += 1
                self._problems.append(problem(row, error))

    def _change(self, row: TenantQueue) -> None:
        work = self.work
        one = many_limits.edited(row, self.edit, work.by, work.reason)
        if not one.fields:
            self._idle[UNCHANGED] += 1
            return
        came_of = self._idle + Counter([DONE if one.changes else UNCHANGED])
        after = work.chunk.after(self._left(up_to=row.pk), came_of, self._problems)
        logged = [audit.logged_then(work.request, row, change) for change in one.changes]
        chunk = {"pk": work.chunk.pk, "step": work.chunk.step}
        if many_limits.write(one, chunk, [*logged, after.stored_then(work.chunk)]):
            work.chunk = after
            self._written.append(one)
            self._idle, self._problems = Counter(), []
        else:
            self.by_themselves.append(row.pk)

    def _left(self, up_to: int) -> Part:
        """Of the part without this row and those before it, but with what is changed by itself afterwards."""
        part = self.work.chunk.part
        return part.only([pk for pk in part.pks if pk > up_to or pk in self.by_themselves])


@dataclass(frozen=True)
class Jobs:
    """Jobs of one tenant queue in one transaction that holds it."""

    change: Callable[[TenantQueue, list[TenantJob], dict[str, Any]], list[TenantJob]]
    """Changes those that it can, and returns them."""
    what: Any
    """That is changed, in the history."""
    old: Callable[[TenantJob], Any]
    new: Callable[[dict[str, Any]], Any]
    otherwise: Callable[[TenantJob], str]
    """The outcome of one that was not changed; "" for one that is left to the action on one object."""

    def __call__(self, work: Work) -> Iterator[None]:
        if work.chunk.part.one_by_one:
            yield from one_by_one(work)
        else:
            part = work.chunk.part
            gone, refused = replace(part, pks=()), partial(_leave_to_themselves, part)
            work.tried(partial(self._change, work, part), gone, holding=part.tenant_queue, refused=refused)
            yield

    def _change(self, work: Work, part: Part, step: Step) -> None:
        assert step.row is not None
        visible = [pk for pk in part.pks if pk in work.visible_at_start]
        jobs = list(self._read(visible))
        self._change_those(work, step.row, jobs, step)
        step.outcomes[GONE] += len(part.pks) - len(jobs)

    def _read(self, pks: list[int]) -> Any:
        """All that a receiver of the project may ask for; without one, what we do ourselves."""
        jobs = TenantJob.objects.filter(among(pks)).order_by("pk")
        return jobs.defer(*CONTENT) if signals.heard_by_project("job_ended") else jobs.only(*ASKED_FOR)

    def _change_those(self, work: Work, row: TenantQueue, jobs: list[TenantJob], step: Step) -> None:
        old = {job.pk: self.old(job) for job in jobs}
        changed = self.change(row, jobs, work.values)
        new = self.new(work.values)
        made = {text: audit.message(self.what, text, new, work.reason) for text in set(old.values())}
        audit.log_all(work.model_admin, work.request, [(job, made[old[job.pk]]) for job in changed])
        step.outcomes[DONE] += len(changed)
        done = {job.pk for job in changed}
        alone = []
        for job in jobs:
            if job.pk not in done:
                outcome = self.otherwise(job)
                if outcome:
                    step.outcomes[outcome] += 1
                else:
                    alone.append(job.pk)
        if alone:
            step.left = Part(tuple(alone), tenant_queue=row.pk, one_by_one=True)


def _leave_to_themselves(part: Part, step: Step, error: Exception) -> bool:
    """What refuses one of many jobs has kept all of them. Who holds their tenant queue keeps each of them as well."""
    if isinstance(error, TenantQueueLocked):
        return False
    step.left = replace(part, one_by_one=True)
    return True


@dataclass(frozen=True)
class JobsOfQueues:
    """Those of the jobs of tenant queues that the page has shown, in steps. Each is one transaction, which holds the
    tenant queue.
    """

    change: Callable[[TenantQueue, Sequence[int]], int]
    """Given the row, locked, and jobs by primary key: changes those of them that it can. Returns how many."""
    what: Any

    def __call__(self, work: Work) -> Iterator[None]:
        part = work.chunk.part
        step, refused = partial(self._step, work, part), partial(self._keep_count, work.commission, part)
        work.tried(step, part.without_first(), holding=part.pks[0], refused=refused)
        yield

    def _step(self, work: Work, part: Part, step: Step) -> None:
        row = step.row
        if row is None or row.pk not in work.visible_at_start:
            step.outcomes[GONE] += 1
            self.note_begun(work.commission, part)
            return
        jobs = part.next_jobs(cancel.JOBS_PER_STEP)
        changed = self.change(row, jobs)
        counted = part.counted + changed
        step.outcomes[JOBS] += changed
        if len(jobs) == cancel.JOBS_PER_STEP:  # others may come after them
            step.left = replace(part, counted=counted, last=jobs[-1])
            return
        step.outcomes[DONE if counted else UNCHANGED] += 1
        self._note(audit.note, work.commission, row, counted)

    def note_begun(self, commission: Commission, part: Part) -> None:
        """Of the tenant queue that such a part has, what was done so far: nothing more will be."""
        if row := TenantQueue.objects.filter(pk__in=part.pks[:1]).first():
            self._note(audit.note_what_stands, commission, row, part.counted)

    def _keep_count(self, commission: Commission, part: Part, step: Step, error: Exception) -> bool:
        self.note_begun(commission, part)
        return False

    def _note(self, note: Callable[..., None], commission: Commission, row: TenantQueue, counted: int) -> None:
        if counted:
            facts = {"new": str(counted), "reason": commission.reason}
            note(commission.model_admin, commission.request, row, self.what, **facts)
