"""One background job, or one reservation, of one tenant."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import sync_to_async
from django.core.checks import CheckMessage
from django.db import models
from django.db.models import Case, Q, SmallIntegerField, Value, When
from django.utils.translation import gettext_lazy as _

from tenant_slots.conf import app_settings, rq_queues
from tenant_slots.db.clock import DatabaseNow, ago
from tenant_slots.exceptions import NotInRQ, UnreadableColumn
from tenant_slots.layering import implemented_above
from tenant_slots.models import shapes
from tenant_slots.models.fields import (
    Derived,
    Moment,
    SparseDict,
    StoredJSON,
    ToOurRow,
    Unreadable,
    UnreadableDict,
    UnreadableList,
)
from tenant_slots.models.job_indexes import ANY, CONSTRAINTS, HAS_COUNTED_OUT, INDEXES
from tenant_slots.models.manager import MYPY, InConfiguredDatabase
from tenant_slots.models.states import HOLDING, UNADMITTED, UNSTARTED, Kind, Stage, State
from tenant_slots.models.tenant_queue import TenantQueue

ERROR_CLASS_LENGTH = 200
"""Characters of the name of a class that are kept."""

CONTENT = ("args", "kwargs", "context", "result", "error")
"""Columns of a job that may be large, and that nobody who only moves it asks for."""

UNKNOWN_TASK = "unknown"
"""Of a job's options: when a worker that does not know its function first met it, and at which attempt it last was."""

EXPIRED = "canceled: it had not begun when its time was over, see expires"
"""The error of a job that waited for too long."""

REFUSED = "the database refuses its admission"
"""What the error of a job begins with that is put off for this reason."""

NOT_BEFORE = "not_before"
"""Of a job's options: its `run_after`, in seconds since 1970, once the jobs for which it waits have ended."""

NO_COVERING_INDEXES = "models.W040"
"""Django's warning of a database that leaves out what an index has besides its key."""

UNTIL_START = ">"
"""What a `unique_key` begins with that the start of its job takes away: it stands for others until then."""


def rq_id_of(job: uuid.UUID, attempt: int, rq_job_id: str) -> str:
    """The id of an attempt's RQ job: a fresh one each time, unless the job came through plain RQ."""
    return rq_job_id or f"{job}-{attempt}"


def overflow_queue_of(rq_queue: str, queue: str) -> str:
    """What the row of a job of that tenant queue has in `rq_queue` when it goes to this RQ queue."""
    return "" if rq_queue == queue else rq_queue


def rq_queue_of(overflow_queue: str, queue: str) -> str:
    """The RQ queue that a job goes to. One whose overflow queue the project has given up goes to its own queue."""
    return overflow_queue if overflow_queue in rq_queues() else queue


class TenantJobQuerySet(models.QuerySet["TenantJob"]):
    """Groups of states. Each asks for the stage where an index could help, because that is what the indexes have."""

    def scheduled(self) -> TenantJobQuerySet:
        return self.filter(stage=Stage.SCHEDULED)

    def waiting_for_jobs(self) -> TenantJobQuerySet:
        """Scheduled for no time, but until other jobs have ended."""
        return self.scheduled().filter(run_after=None)

    def waiting(self) -> TenantJobQuerySet:
        return self.filter(stage=Stage.WAITING)

    def queued(self) -> TenantJobQuerySet:
        return self.holding().filter(state=State.QUEUED)

    def running(self) -> TenantJobQuerySet:
        return self.holding().filter(state=State.RUNNING)

    def holding(self) -> TenantJobQuerySet:
        """Jobs that hold a slot."""
        return self.filter(stage=Stage.HOLDING)

    def unadmitted(self) -> TenantJobQuerySet:
        """Jobs that have not ended and hold no slot."""
        return self.filter(state__in=UNADMITTED)

    def expired(self) -> TenantJobQuerySet:
        """Jobs that were to begin before a time that has come, and that hold no slot and have never begun."""
        return self.filter(stage__lt=Stage.HOLDING, expires_at__lte=ago(0), started_at=None)

    def expired_with_slot(self) -> TenantJobQuerySet:
        """The same of jobs that were admitted for a worker which has not come. As many as have slots are read."""
        return self.queued().filter(expires_at__lte=ago(0), started_at=None)

    def not_started(self) -> TenantJobQuerySet:
        """Jobs that no worker has begun."""
        return self.filter(state__in=UNSTARTED)

    def jobs(self) -> TenantJobQuerySet:
        """Without reservations."""
        return self.filter(kind=Kind.JOB)

    def reservations_to_begin(self) -> TenantJobQuerySet:
        """Reservations whose block has not begun: waiting, or just admitted."""
        return self.not_ended().filter(kind=Kind.RESERVATION, state__in=(State.WAITING, State.QUEUED))

    def stale(self) -> TenantJobQuerySet:
        """Running jobs whose lease has run out.

        Nobody sends heartbeats for a stock worker's jobs, so that their absence says nothing.
        """
        return self.running().filter(beats=True, beat_at__lt=ago(app_settings.LEASE_TTL))

    def counted_out(self) -> TenantJobQuerySet:
        """Jobs with a count that goes no further, because SQL from outside has put it at its end."""
        return self.filter(HAS_COUNTED_OUT)

    def ended(self) -> TenantJobQuerySet:
        return self.filter(stage=Stage.ENDED)

    def not_ended(self) -> TenantJobQuerySet:
        return self.exclude(stage=Stage.ENDED)

    def retryable(self) -> TenantJobQuerySet:
        """Failed and canceled jobs that may run again: RQ's own are requeued there; a reservation has no function."""
        return self.jobs().filter(state__in=(State.FAILED, State.CANCELED), rq_job_id="")

    def backlog(self) -> TenantJobQuerySet:
        """The waiting jobs of a tenant, next one first in each RQ queue."""
        return self.waiting().order_by("-priority", "pk")

    def waiting_by_key(self) -> TenantJobQuerySet:
        """As `waiting`, from the index that has each concurrency key's jobs together."""
        return self.filter(ANY, stage__gt=Stage.SCHEDULED, stage__lt=Stage.HOLDING)

    def ahead_of(self, job: TenantJob) -> TenantJobQuerySet:
        """The waiting jobs of its tenant that go before it in its RQ queue."""
        beside = self.waiting().filter(tenant_queue=job.tenant_queue_id, rq_queue=job.rq_queue)
        return beside.filter(Q(priority__gt=job.priority) | Q(priority=job.priority, pk__lt=job.pk))

    def held_as(self, job: TenantJob) -> TenantJobQuerySet:
        """The job's row, only while it holds its slot for the same admission and the same run."""
        return self.filter(state__in=HOLDING, pk=job.pk, attempt=job.attempt, token=job.token)

    @implemented_above
    def delete(self) -> tuple[int, dict[str, int]]:
        """Django's, and those that hold a slot give it back in the same transaction. A run of one is stopped.

        Raises:
            TenantQueueLocked: another transaction keeps a tenant queue of jobs that have not ended; none is deleted.
        """
        raise NotImplementedError

    delete.queryset_only = True  # type: ignore[attr-defined]  # as Django's own: no Model.objects.delete()


if TYPE_CHECKING and not MYPY:

    class TenantJobManager(TenantJobQuerySet, InConfiguredDatabase["TenantJob"]):
        """What `from_queryset` makes, for type checkers that know nothing of Django."""


class TenantJob(models.Model):
    """One background job of one tenant, from enqueue to its end."""

    uuid = models.UUIDField(_("id"), default=uuid.uuid4, unique=True, editable=False)
    tenant_queue: models.ForeignKey[TenantQueue, TenantQueue] = ToOurRow(
        TenantQueue, models.CASCADE, related_name="jobs", db_index=False, verbose_name=_("tenant queue")
    )
    kind = models.CharField(_("kind"), max_length=12, choices=Kind, default=Kind.JOB, db_default=Kind.JOB)
    task = models.CharField(_("task"), max_length=255)
    args = StoredJSON(_("arguments"), default=list, fits=shapes.is_list, empty=UnreadableList)
    kwargs = StoredJSON(_("keyword arguments"), default=dict, fits=shapes.is_dict, empty=UnreadableDict)
    options = StoredJSON(
        _("options"),
        default=dict,
        fits=shapes.are_options,
        empty=UnreadableDict,
        help_text=_("RQ options: timeout, result_ttl, failure_ttl, description, meta, retry."),
    )
    context = SparseDict(
        _("context"),
        null=True,
        default=dict,
        fits=shapes.is_dict,
        empty=UnreadableDict,
        help_text=_("What CAPTURE_CONTEXT gave when the job was enqueued."),
    )
    rq_job_id = models.CharField(
        max_length=255,
        default="",
        db_default="",
        help_text=_("Set when the job came through plain RQ: the id of its RQ job."),
    )
    rq_queue = models.CharField(
        max_length=100, default="", db_default="", help_text=_("The RQ queue, where it is not the tenant queue's.")
    )
    asks = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("Whether a sweep asks the function's on_busy once the time of the job has come."),
    )
    awaited = models.BooleanField(
        default=False,
        db_default=False,
        help_text=_("Whether other jobs may have been enqueued to run after this one: its end is told to them."),
    )
    priority = models.IntegerField(_("priority"), default=0, help_text=_("Jobs with a higher priority go first."))
    run_after = Moment(_("not before"), null=True)
    expires_at = Moment(_("expires"), null=True)
    key = models.CharField(_("concurrency key"), max_length=255, default="")
    unique_key = models.CharField(
        max_length=64,
        default="",
        db_default="",
        help_text=_("Set while no duplicate of the job may be stored: a digest of what makes them duplicates."),
    )
    object_model = models.CharField(
        _("model"), max_length=255, default="", db_default="", help_text=_("Of a model's method: app_label.model.")
    )
    object_pk = models.CharField(_("object"), max_length=255, default="", db_default="")
    enqueued_at = Moment(_("enqueued"), db_default=DatabaseNow())

    # What an admission, a start and an end change stands together, and what they leave alone before and after it:
    # PostgreSQL logs of a new version of a row what is between the first change and the last.
    admitted_at = Moment(_("admitted"), null=True)
    attempt = models.PositiveIntegerField(
        _("attempt"),
        default=0,
        db_default=0,
        help_text=_("Counts the admissions; an earlier run of the job can change nothing any more."),
    )
    stage = Derived(
        expression=Case(
            When(state=State.SCHEDULED, then=Stage.SCHEDULED),
            When(state=State.WAITING, then=Stage.WAITING),
            When(state__in=HOLDING, then=Stage.HOLDING),
            default=Stage.ENDED,
        ),
        output_field=SmallIntegerField(),
        db_persist=True,
    )
    state = models.CharField(_("state"), max_length=10, choices=State, default=State.WAITING)
    ended_at = Moment(_("ended"), null=True)
    started_at = Moment(_("started"), null=True)
    beat_at = Moment(_("last heartbeat"), null=True)
    token = models.BigIntegerField(
        default=0, db_default=0, help_text=_("Random, drawn anew at each start: only who knows it speaks for the run.")
    )
    pid_started = models.BigIntegerField(default=0, db_default=0)
    pid = models.IntegerField(_("process"), default=0, db_default=0)
    horse = models.IntegerField(
        default=0, db_default=0, help_text=_("The work-horse in which the process runs the job, if it has one.")
    )
    beats = models.BooleanField(
        default=False, db_default=False, help_text=_("Whether the process gives heartbeats while it runs the job.")
    )
    worker = models.TextField(_("worker"), default="", db_default="")  # RQ sets no bound to a worker's name
    host = models.CharField(_("host"), max_length=100, default="", db_default="")

    cancel_requested_at = Moment(_("cancel requested"), null=True)
    crashes = models.PositiveIntegerField(_("crashes"), default=0, db_default=0)
    interruptions = models.PositiveIntegerField(_("interruptions"), default=0, db_default=0)
    failures = models.PositiveIntegerField(_("failures"), default=0, db_default=0)
    deferrals = models.PositiveIntegerField(
        _("deferrals"), default=0, db_default=0, help_text=_("How often it was put off because its tenant was busy.")
    )
    progress = StoredJSON(
        _("progress"),
        null=True,
        fits=shapes.is_progress,
        empty=UnreadableDict,
        help_text=_('What the job last reported: {"done": 40, "total": 100}.'),
    )
    stats = StoredJSON(
        _("statistics"),
        default=dict,
        fits=shapes.is_dict,
        empty=UnreadableDict,
        db_default=Value({}, models.JSONField()),
        help_text=_("What the job last reported, by name."),
    )
    result = StoredJSON(_("result"), null=True)
    error = models.TextField(_("error"), default="", db_default="")
    has_failed = Derived(
        expression=Case(When(state=State.FAILED, then=True), default=None),
        output_field=models.BooleanField(null=True),
        db_persist=True,
    )
    """For the index of failed jobs, whoever has them fail. NULL takes no room in the rows of the others."""
    is_canceled = Derived(
        expression=Case(When(state=State.CANCELED, then=True), default=None),
        output_field=models.BooleanField(null=True),
        db_persist=True,
    )
    """As `has_failed`."""
    error_class = models.CharField(  # noqa: DJ001  NULL takes no room
        _("error class"),
        max_length=ERROR_CLASS_LENGTH,
        null=True,
        help_text=_("Of a failed job: the class of what its function raised; empty if it failed in another way."),
    )
    runs = StoredJSON(
        null=True,
        fits=shapes.are_ended_runs,
        empty=UnreadableList,
        help_text=_("Its runs that failed, were lost or canceled, or asked for another one: the last 200."),
    )

    if TYPE_CHECKING and not MYPY:
        objects: ClassVar[TenantJobManager]
    objects = InConfiguredDatabase.from_queryset(TenantJobQuerySet)()

    class Meta:
        base_manager_name = "objects"
        verbose_name = _("tenant job")
        verbose_name_plural = _("tenant jobs")
        permissions = [
            ("view_job_arguments", _("Can view the arguments of tenant job")),
            ("stop_tenantjob", _("Can stop running tenant job")),
            ("retry_tenantjob", _("Can retry failed tenant job")),
            ("prioritize_tenantjob", _("Can change the priority of waiting tenant job")),
            ("release_tenantjob", _("Can release the stuck slot of tenant job")),
            ("force_release_tenantjob", _("Can release the slot of tenant job that seems to be alive")),
            ("export_tenantjob", _("Can export tenant job")),
        ]
        constraints = CONSTRAINTS
        indexes = INDEXES

    def __str__(self) -> str:
        return f"{self.task} {self.uuid}"

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        """SQLite leaves columns of two indexes out, which costs nothing but speed. Django says so when it migrates, and
        since 6.1 in each command, for every index.
        """
        return [message for message in super().check(**kwargs) if message.id != NO_COVERING_INDEXES]

    @property
    def rq_id(self) -> str:
        """The id of the RQ job of its last attempt. Each attempt has another one.

        Raises:
            NotInRQ: RQ does not know the job before it has a slot, or again before its next attempt, nor one that was
                canceled.
        """
        outside = self.is_reservation or not self.attempt or self.state in (*UNADMITTED, State.CANCELED)
        if outside and not self.rq_job_id:
            raise NotInRQ(job=self.uuid, state=self.state)
        return self.last_rq_id

    @property
    def last_rq_id(self) -> str:
        """As `rq_id`, whether or not RQ has it: for whoever looks."""
        return rq_id_of(self.uuid, self.attempt, self.rq_job_id)

    @property
    def rq_queue_name(self) -> str:
        return rq_queue_of(self.rq_queue, self.tenant_queue.queue)

    @property
    def is_reservation(self) -> bool:
        """Not a job of RQ: other code holds the slot, or waits for it."""
        return self.kind == Kind.RESERVATION

    @property
    def starts_where_admitted(self) -> bool:
        """A worker that admits it can run it. A reservation has a process; of a plain RQ job RQ has the arguments."""
        return not self.is_reservation and not self.rq_job_id

    @property
    def has_ended(self) -> bool:
        """Also in a state that only SQL from outside has written, as `stage` has it."""
        return self.state not in (*UNADMITTED, *HOLDING)

    @property
    def has_begun(self) -> bool:
        """Its last attempt. Until a job begins again its row tells of its start before: when, where, and by whom."""
        if not self.has_ended:
            return bool(self.state == State.RUNNING)
        started, admitted = self.started_at, self.admitted_at
        return started is not None and (admitted is None or bool(started >= admitted))

    def require_readable(self, *columns: str) -> None:
        """Raises UnreadableColumn when one of these holds something else than what was stored there."""
        for column in columns:
            value = getattr(self, column)
            if isinstance(value, Unreadable):
                raise UnreadableColumn(column=column, job=self.uuid, problem=value.problem)

    @implemented_above
    def cancel(self) -> bool:
        """Take the job out of the backlog, or stop it when it runs; False when it had ended, or was deleted.

        A running job is canceled once its process has really ended, so refresh before reading `state`.
        """
        raise NotImplementedError

    @implemented_above
    def set_priority(self, priority: int) -> bool:
        """Move the job within its tenant's backlog; False when it is not scheduled or waiting any more.

        Args:
            priority: from -1,000,000 to 1,000,000; a higher one goes first.

        Raises:
            InvalidOption: it is not such a number.
        """
        raise NotImplementedError

    @implemented_above
    def retry(self) -> None:
        """Put a failed or canceled job back at its old position in the backlog.

        Raises:
            NotRetryable: the job is in another state, or was deleted.
        """
        raise NotImplementedError

    @implemented_above
    def delete(self, using: Any = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Django's, with the slot that the job may hold. See `TenantJobQuerySet.delete`; `cancel` keeps the history."""
        raise NotImplementedError

    async def acancel(self) -> bool:
        """`cancel` for async code."""
        return await sync_to_async(self.cancel)()

    async def aretry(self) -> None:
        """`retry` for async code."""
        await sync_to_async(self.retry)()
