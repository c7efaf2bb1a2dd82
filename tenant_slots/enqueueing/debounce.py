"""``debounce``: instead of storing another job, the one that has not started yet takes over the newest call.

It is one job for each tenant of a function, or for each ``unique_key``. Each call moves its time back, at most until
``max_wait`` after the first one. The same constraint as for ``unique_for`` decides, whoever calls at the same moment,
and a caller who has not committed yet keeps the job from starting until then: so the newest call always wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, OperationalError
from django.db.models import Case, CharField, DateTimeField, DurationField, ExpressionWrapper, F, Value, When
from django.db.models.functions import Least

from tenant_slots.conf import app_settings
from tenant_slots.db import transactions
from tenant_slots.db.clock import DatabaseNow, InCalendar, from_now
from tenant_slots.db.compiled import Parameter, Statement, fields_of
from tenant_slots.enqueueing import bulk, unique
from tenant_slots.enqueueing.new_job import NewJob, Stored
from tenant_slots.exceptions import DuplicateNotVisible
from tenant_slots.models import State, TenantJob
from tenant_slots.models.states import UNADMITTED
from tenant_slots.tasks.task import TenantTask

NEWEST = (
    "args", "kwargs", "options", "context", "asks", "priority", "expires_at", "key", "object_model", "object_pk",
)  # fmt: skip
"""What a job takes over from a call. Its queue, its place in the backlog and its id stay."""

FOR_EVER = timedelta(days=36525)
"""In place of ``max_wait`` where none is given."""

_MOST = Parameter("most", DurationField())
_LATEST = ExpressionWrapper(InCalendar(F("enqueued_at")) + _MOST, output_field=DateTimeField())
_FIRST_IN_TIME = ExpressionWrapper(DatabaseNow() - _MOST, output_field=DateTimeField())

MOVE = Statement(
    lambda: unique.active().filter(unique_key=Parameter("digest", CharField()), state__in=UNADMITTED),
    {
        **fields_of(TenantJob, NEWEST),
        "run_after": Least(from_now(Parameter("debounce", DurationField())), _LATEST),
        "state": Case(When(enqueued_at__gt=_FIRST_IN_TIME, then=Value(State.SCHEDULED)), default=F("state")),
        "error": Value(""),
        "deferrals": Value(0),  # its time is the one that the newest call asks for, whoever has put it off before
    },
    returning=True,
)
"""A job that waits for a slot already is scheduled again. Whoever is about to give it one finds it gone from there."""


class _LookAgain(Exception):
    """A job that was there is there no more."""


def stored_or_moved(task: TenantTask[..., Any], new_jobs: list[NewJob], store: unique.Store) -> Stored:
    """Have the jobs that have not started take over their calls, and store the others, all or none.

    Args:
        task: what they are jobs of.
        new_jobs: what the calls became, with their digests; of several with the same one the last counts.
        store: not called without jobs.

    Raises:
        DuplicateNotVisible: as `unique.stored_once`.
    """
    newest = {new.job.unique_key: new for new in new_jobs}
    last: Exception
    for _ in range(unique.TRIES):
        try:
            with _all_or_none(len(newest)):
                calls = _Calls(task, newest)
                calls.go(store)
            return calls.stored(new_jobs)
        except (IntegrityError, OperationalError, _LookAgain) as error:
            if not isinstance(error, _LookAgain) and not unique.is_lost(error):
                raise
            last = error
    raise DuplicateNotVisible(task=task.path) from last


def _all_or_none(number: int) -> AbstractContextManager[None]:
    """A single one is stored or moved by one statement."""
    return transactions.seeing_others(app_settings.DATABASE) if number > 1 else nullcontext()


class _Calls:
    """The newest calls, and what has come of them so far, by digest."""

    def __init__(self, task: TenantTask[..., Any], newest: dict[str, NewJob]) -> None:
        self._task, self._newest = task, newest
        self._found = _looked_for(newest)
        self._jobs: dict[str, TenantJob] = {}

    def stored(self, calls: Iterable[NewJob]) -> Stored:
        return Stored(
            jobs=[self._jobs[new.job.unique_key] for new in calls],
            new=[new.job for digest, new in self._newest.items() if self._jobs[digest] is new.job],
            held=[job for job in self._found.values() if job.state == State.WAITING],
        )

    def go(self, store: unique.Store) -> None:
        fresh = [new for digest, new in self._newest.items() if digest not in self._found]
        if len(fresh) > 1:
            bulk.give_keys([new.job for new in fresh])  # the backlog is in the order of the calls
        if fresh:
            store(self._in_order, fresh)
        else:
            self._in_order([])

    def _in_order(self, prepared: list[TenantJob]) -> None:
        """Whoever waits for another one's job has only changed and stored jobs with lower digests; see `unique`."""
        fresh = {job.unique_key for job in prepared}
        for digest in sorted(self._newest):
            become: Callable[[TenantJob], TenantJob] = self._insert if digest in fresh else self._move
            self._jobs[digest] = become(self._newest[digest].job)

    def _insert(self, job: TenantJob) -> TenantJob:
        for _ in range(unique.TRIES):
            if bulk.insert_unless_duplicate(job):
                return job
            try:
                return self._move(job)
            except _LookAgain:
                continue
        raise IntegrityError("the constraint on unique_key refuses a job whose duplicate nobody sees")

    def _move(self, job: TenantJob) -> TenantJob:
        """Raises _LookAgain when the job has started since, or has a slot."""
        debounce, most = self._task.debounce, self._task.max_wait or FOR_EVER
        call = {name: getattr(job, name) for name in NEWEST}
        moved: list[TenantJob] = MOVE.rows(**call, digest=job.unique_key, debounce=debounce, most=most)
        if not moved:
            _forget_admitted([job.unique_key])
            raise _LookAgain
        found = self._found.get(job.unique_key)
        if found is not None and found.pk == moved[0].pk:
            moved[0].tenant_queue = found.tenant_queue
        return moved[0]


def _looked_for(digests: Iterable[str]) -> dict[str, TenantJob]:
    jobs = unique.looked_for(digests)
    if admitted := [job.unique_key for job in jobs if job.state == State.QUEUED]:
        _forget_admitted(admitted)
    return {job.unique_key: job for job in jobs if job.state != State.QUEUED}


def _forget_admitted(digests: list[str]) -> None:
    """A job that has a slot counts as started: a worker may have read its arguments."""
    admitted = unique.active().filter(state=State.QUEUED)
    if keys := list(admitted.filter(unique_key__in=digests).values_list("pk", flat=True)):
        unique.forget(admitted, keys)
