"""The tables. What moves a job between states is in ``slots.py``; ``layering.py`` says who writes methods' bodies."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce, Greatest
from django.utils.translation import gettext_lazy as _

from tenant_slots.conf import app_settings
from tenant_slots.db.clock import DatabaseNow, ago
from tenant_slots.layering import implemented_above

HIGHEST_LIMIT = 10_000
"""More slots than any worker pool has; a number above it is a typing error."""


class State(models.TextChoices):
    SCHEDULED = "scheduled", _("scheduled")
    WAITING = "waiting", _("waiting")
    QUEUED = "queued", _("queued")
    RUNNING = "running", _("running")
    FINISHED = "finished", _("finished")
    FAILED = "failed", _("failed")
    CANCELED = "canceled", _("canceled")


HOLDING = (State.QUEUED, State.RUNNING)
UNADMITTED = (State.SCHEDULED, State.WAITING)
ENDED = (State.FINISHED, State.FAILED, State.CANCELED)

HOLD_SLOT = "tenant_slots.hold_slot"
"""What a reservation shows as its task."""

READY_AT = Greatest("enqueued_at", Coalesce("run_after", "enqueued_at"))
"""From when a job could have started: one that was put off did not wait before its time."""


class Kind(models.TextChoices):
    """What a row of `TenantJob` is."""

    JOB = "job", _("job")
    RESERVATION = "reservation", _("reservation")
    """A slot, or a place in the backlog, for code that is no job of RQ: see ``hold_slot``."""


class LimitSource(models.TextChoices):
    """Where a limit comes from, a temporary override aside."""

    UNRECORDED = "", _("not recorded")
    DEFAULT = "default", _("default")
    SET = "set", _("set")


GUARDED = ("max_job", "override_until", "max_job_per_key", "max_waiting", "paused", "resume_at")
"""What a tenant queue lets its jobs do. Saving one of these raises `TenantQueue.version` and admits what fits now."""


@dataclass(frozen=True)
class Change:
    """One change of a tenant queue's limits or of its pause."""

    what: str
    """``"limit"``, ``"paused"``, ``"max_job_per_key"`` or ``"max_waiting"``."""
    old: int | bool | None
    new: int | bool | None
    by: str
    reason: str
    until: datetime | None
    """When the sweep takes it back, if it does."""


class TenantQueueQuerySet(models.QuerySet["TenantQueue"]):
    def with_free(self, slots: Any) -> TenantQueueQuerySet:
        """Rows that have so many slots free."""
        return self.filter(paused=False, current_job__lte=F("max_job") - slots)


def rq_id_of(job: uuid.UUID, attempt: int, rq_job_id: str) -> str:
    """The id of an attempt's RQ job: a fresh one each time, unless the job came through plain RQ."""
    return rq_job_id or f"{job}-{attempt}"


def rq_queue_of(overflow_queue: str, queue: str) -> str:
    """The RQ queue that a job goes to. One whose overflow queue the project has given up goes to its own queue."""
    return overflow_queue if overflow_queue in getattr(settings, "RQ_QUEUES", {}) else queue


class TenantJobQuerySet(models.QuerySet["TenantJob"]):
    def scheduled(self) -> TenantJobQuerySet:
        return self.filter(state=State.SCHEDULED)

    def waiting(self) -> TenantJobQuerySet:
        return self.filter(state=State.WAITING)

    def queued(self) -> TenantJobQuerySet:
        return self.filter(state=State.QUEUED)

    def running(self) -> TenantJobQuerySet:
        return self.filter(state=State.RUNNING)

    def holding(self) -> TenantJobQuerySet:
        """Jobs that hold a slot."""
        return self.filter(state__in=HOLDING)

    def unadmitted(self) -> TenantJobQuerySet:
        """Jobs that have not ended and hold no slot."""
        return self.filter(state__in=UNADMITTED)

    def not_started(self) -> TenantJobQuerySet:
        """Jobs that no worker has begun."""
        return self.filter(state__in=(*UNADMITTED, State.QUEUED))

    def jobs(self) -> TenantJobQuerySet:
        """Without reservations."""
        return self.filter(kind=Kind.JOB)

    def reservations_to_begin(self) -> TenantJobQuerySet:
        """Reservations whose block has not begun: waiting, or just admitted."""
        return self.filter(kind=Kind.RESERVATION, state__in=(State.WAITING, State.QUEUED))

    def stale(self) -> TenantJobQuerySet:
        """Running jobs whose lease has run out.

        Nobody sends heartbeats for a stock worker's jobs, so that their absence says nothing.
        """
        return self.running().filter(beats=True, beat_at__lt=ago(app_settings.LEASE_TTL))

    def ended(self) -> TenantJobQuerySet:
        return self.filter(state__in=ENDED)

    def retryable(self) -> TenantJobQuerySet:
        """Failed and canceled jobs that may run again: RQ's own are requeued there; a reservation has no function."""
        return self.jobs().filter(state__in=(State.FAILED, State.CANCELED), rq_job_id="")

    def backlog(self) -> TenantJobQuerySet:
        """The waiting jobs of a tenant, next one first."""
        return self.waiting().order_by("-priority", "pk")

    def held_as(self, job: TenantJob) -> TenantJobQuerySet:
        """The job's row, only while this attempt of it still holds its slot."""
        return self.holding().filter(pk=job.pk, attempt=job.attempt)


class InConfiguredDatabase(models.Manager[Any]):
    """Reads and writes in ``TENANT_SLOTS["DATABASE"]`` unless told otherwise."""

    def get_queryset(self) -> models.QuerySet[Any]:
        return super().get_queryset().using(self._db or app_settings.DATABASE)


class TenantQueue(models.Model):
    """How much one tenant may run at once on one queue, and how much it runs now."""

    tenant = models.CharField(_("tenant"), max_length=255, help_text=_("How your project identifies the tenant."))
    queue = models.CharField(_("queue"), max_length=100, help_text=_("A queue of RQ_QUEUES."))
    max_job = models.IntegerField(
        _("limit"),
        default=1,
        validators=[MinValueValidator(0), MaxValueValidator(HIGHEST_LIMIT)],
        help_text=_("How many jobs may run at once; 0 lets none start."),
    )
    current_job = models.IntegerField(_("in use"), default=0, editable=False)
    max_job_per_key = models.IntegerField(
        _("limit per concurrency key"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(HIGHEST_LIMIT)],
        help_text=_(
            "How many jobs with the same concurrency key, such as one user's, may run at once. Empty: any number."
        ),
    )
    max_waiting = models.PositiveIntegerField(
        _("largest backlog"),
        null=True,
        blank=True,
        help_text=_("How many jobs may wait; more are refused when they are enqueued. Empty: any number."),
    )
    paused = models.BooleanField(
        _("paused"), default=False, help_text=_("While paused, no job starts; running jobs go on.")
    )
    resume_at = models.DateTimeField(
        _("resume at"),
        null=True,
        blank=True,
        help_text=_("The pause ends by itself then. Empty: it lasts until somebody resumes."),
    )
    version = models.PositiveIntegerField(
        _("version"),
        default=0,
        db_default=0,
        editable=False,
        help_text=_(
            "Counts the changes of limits and pause, so that nobody overwrites a change that they have not seen."
        ),
    )
    limit_source = models.CharField(
        _("source of the limit"),
        max_length=10,
        choices=LimitSource,
        default=LimitSource.DEFAULT,
        db_default=LimitSource.UNRECORDED,
        blank=True,
        editable=False,
    )
    limit_set_by = models.CharField(_("limit set by"), max_length=150, default="", db_default="", editable=False)
    override_until = models.DateTimeField(
        _("override until"), null=True, blank=True, help_text=_("The previous limit comes back then.")
    )
    override_by = models.CharField(_("override by"), max_length=150, default="", db_default="", editable=False)
    limit_before_override = models.IntegerField(_("limit before the override"), null=True, editable=False)
    limit_history = models.JSONField(
        null=True, editable=False, help_text=_("For charts: [time of a change, limit before it], oldest first.")
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = InConfiguredDatabase.from_queryset(TenantQueueQuerySet)()

    class Meta:
        verbose_name = _("tenant queue")
        verbose_name_plural = _("tenant queues")
        permissions = [
            ("pause_tenantqueue", _("Can pause tenant queue")),
            ("resume_tenantqueue", _("Can resume tenant queue")),
            ("set_limit_tenantqueue", _("Can set the limit of tenant queue")),
            ("cancel_waiting_tenantqueue", _("Can cancel the waiting jobs of tenant queue")),
            ("export_tenantqueue", _("Can export tenant queue")),
        ]
        indexes = [
            models.Index(
                fields=["override_until"], condition=Q(override_until__isnull=False), name="tenant_slots_overrides"
            ),
            models.Index(fields=["resume_at"], condition=Q(resume_at__isnull=False), name="tenant_slots_resumes"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "queue"], name="tenant_slots_queue_unique"),
            models.CheckConstraint(condition=Q(current_job__gte=0), name="tenant_slots_current_job_gte_0"),
            models.CheckConstraint(condition=Q(max_job__gte=0), name="tenant_slots_max_job_gte_0"),
            models.CheckConstraint(
                condition=Q(max_job_per_key=None) | Q(max_job_per_key__gte=1), name="tenant_slots_per_key_gte_1"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant or _('no tenant')} on {self.queue}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Never writes `current_job` of an existing row: the value in memory is already old. Counts `version` up."""
        if self._state.db is None:
            kwargs.setdefault("using", app_settings.DATABASE)
        if self._state.adding:
            super().save(*args, **kwargs)
            return
        fields = self._fields_to_save(kwargs.get("update_fields"))
        if not fields.isdisjoint(GUARDED):
            self._save_as_next_version(*args, **{**kwargs, "update_fields": fields | {"version"}})
            self.admit_waiting()
        else:
            super().save(*args, **{**kwargs, "update_fields": fields})

    def _fields_to_save(self, asked: Iterable[str] | None) -> set[str]:
        if asked is not None:
            return set(asked)
        never = {"current_job", "version"}
        return {field.name for field in self._meta.concrete_fields if not field.primary_key} - never

    def _save_as_next_version(self, *args: Any, **kwargs: Any) -> None:
        before = self.version
        self.version = F("version") + 1
        try:
            super().save(*args, **kwargs)
        except BaseException:
            self.version = before
            raise
        self.refresh_from_db(fields=["version"])

    @property
    def free(self) -> int:
        """Slots that a waiting job could take, as of when this row was read."""
        return 0 if self.paused else max(0, self.max_job - self.current_job)

    @implemented_above
    def admit_waiting(self) -> None:
        """Let waiting jobs take the free slots, and push them to RQ, once the current transaction has committed."""
        raise NotImplementedError

    @implemented_above
    def set_limit(self, max_job: int, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
        """Change the limit for good; waiting jobs that now fit are admitted once it commits. Lowering stops no job.

        Args:
            max_job: how many jobs may run at once, from 0 to ``HIGHEST_LIMIT``.
            by, reason: for the log and the signal ``limit_changed``.
            version: what `version` was when whoever decides looked at this row; None to change it in any case.

        Returns:
            What really changed, as the signal tells it. This object then has the values that are stored.

        Raises:
            InvalidLimit: `max_job` is not such a number.
            StaleVersion: another change came first; nothing is changed.
        """
        raise NotImplementedError

    @implemented_above
    def set_override(
        self, max_job: int, until: datetime, *, by: str = "", reason: str = "", version: int | None = None
    ) -> list[Change]:
        """Change the limit until a time; then a sweep brings back the limit from before. See `set_limit`.

        Raises:
            TimeHasPassed: `until` is not in the future.
            InvalidLimit, StaleVersion: as `set_limit`.
        """
        raise NotImplementedError

    @implemented_above
    def end_override(self, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
        """Bring back the limit from before the override. Does nothing when there is none. See `set_limit`."""
        raise NotImplementedError

    @implemented_above
    def reset_to_default(self, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
        """Give the row the limit that a new one would get. See `set_limit`."""
        raise NotImplementedError

    @implemented_above
    def set_max_job_per_key(
        self, max_job_per_key: int | None, *, by: str = "", reason: str = "", version: int | None = None
    ) -> list[Change]:
        """Change how many jobs with the same concurrency key may hold a slot at once; None for no such limit.

        Raises:
            InvalidLimit: it is neither None nor a whole number from 1 to ``HIGHEST_LIMIT``.
            StaleVersion: as `set_limit`.
        """
        raise NotImplementedError

    @implemented_above
    def set_max_waiting(
        self, max_waiting: int | None, *, by: str = "", reason: str = "", version: int | None = None
    ) -> list[Change]:
        """Change how many jobs may wait; None for any number. Jobs that wait already stay.

        Raises:
            InvalidLimit: it is neither None nor a whole number from 0 to ``LARGEST_BACKLOG``.
            StaleVersion: as `set_limit`.
        """
        raise NotImplementedError

    @implemented_above
    def pause(
        self, *, until: datetime | None = None, by: str = "", reason: str = "", version: int | None = None
    ) -> list[Change]:
        """Let no further job of this tenant start; running ones go on. With `until` a sweep resumes it then.

        Raises:
            TimeHasPassed: `until` is not in the future.
            StaleVersion: as `set_limit`.
        """
        raise NotImplementedError

    @implemented_above
    def resume(self, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
        """Undo `pause`; waiting jobs are admitted once that commits. See `set_limit`."""
        raise NotImplementedError


class TenantJob(models.Model):
    """One background job of one tenant, from enqueue to its end."""

    uuid = models.UUIDField(_("id"), default=uuid.uuid4, unique=True, editable=False)
    tenant_queue = models.ForeignKey(
        TenantQueue, models.CASCADE, related_name="jobs", db_index=False, verbose_name=_("tenant queue")
    )
    kind = models.CharField(_("kind"), max_length=12, choices=Kind, default=Kind.JOB, db_default=Kind.JOB)
    task = models.CharField(_("task"), max_length=255)
    args = models.JSONField(_("arguments"), default=list)
    kwargs = models.JSONField(_("keyword arguments"), default=dict)
    options = models.JSONField(
        _("options"),
        default=dict,
        help_text=_("RQ options: timeout, result_ttl, failure_ttl, description, meta, retry."),
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
    state = models.CharField(_("state"), max_length=10, choices=State, default=State.WAITING)
    attempt = models.PositiveIntegerField(
        _("attempt"),
        default=0,
        db_default=0,
        help_text=_("Counts the admissions; an earlier run of the job can change nothing any more."),
    )
    crashes = models.PositiveIntegerField(_("crashes"), default=0, db_default=0)
    failures = models.PositiveIntegerField(_("failures"), default=0, db_default=0)
    priority = models.IntegerField(_("priority"), default=0, help_text=_("Jobs with a higher priority go first."))
    run_after = models.DateTimeField(_("not before"), null=True)
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
    progress = models.JSONField(
        _("progress"), null=True, help_text=_('What the job last reported: {"done": 40, "total": 100}.')
    )
    stats = models.JSONField(
        _("statistics"),
        default=dict,
        db_default=Value({}, models.JSONField()),
        help_text=_("What the job last reported, by name."),
    )
    enqueued_at = models.DateTimeField(_("enqueued"), db_default=DatabaseNow())
    admitted_at = models.DateTimeField(_("admitted"), null=True)
    started_at = models.DateTimeField(_("started"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)
    beat_at = models.DateTimeField(_("last heartbeat"), null=True)
    cancel_requested_at = models.DateTimeField(_("cancel requested"), null=True)
    worker = models.CharField(_("worker"), max_length=255, default="", db_default="")
    host = models.CharField(_("host"), max_length=100, default="", db_default="")
    pid = models.IntegerField(_("process"), default=0, db_default=0)
    pid_started = models.BigIntegerField(default=0, db_default=0)
    beats = models.BooleanField(
        default=False, db_default=False, help_text=_("Whether the process gives heartbeats while it runs the job.")
    )
    result = models.JSONField(_("result"), null=True)
    error = models.TextField(_("error"), default="", db_default="")

    objects = InConfiguredDatabase.from_queryset(TenantJobQuerySet)()

    class Meta:
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
        constraints = [
            models.UniqueConstraint(
                fields=["rq_job_id"],
                condition=~Q(state__in=ENDED) & ~Q(rq_job_id=""),
                name="tenant_slots_one_per_rq_job",
            ),
            models.UniqueConstraint(
                fields=["unique_key"],
                condition=~Q(unique_key="") & ~Q(state__in=ENDED),
                name="tenant_slots_one_per_unique_key",
            ),
        ]
        indexes = [
            models.Index(
                "tenant_queue",
                F("priority").desc(),
                "id",
                condition=Q(state=State.WAITING),
                include=["key"],
                name="tenant_slots_backlog",
            ),
            models.Index(fields=["tenant_queue"], condition=Q(state__in=HOLDING), name="tenant_slots_holding"),
            models.Index(fields=["run_after"], condition=Q(state=State.SCHEDULED), name="tenant_slots_scheduled"),
            models.Index(fields=["tenant_queue"], condition=Q(state=State.SCHEDULED), name="tenant_slots_deferred"),
            models.Index(fields=["ended_at"], condition=Q(state__in=ENDED), name="tenant_slots_ended"),
            models.Index(fields=["tenant_queue", "-id"], name="tenant_slots_history"),
            models.Index("tenant_queue", READY_AT, condition=Q(state=State.WAITING), name="tenant_slots_longest_wait"),
            models.Index(READY_AT, condition=Q(state=State.WAITING), name="tenant_slots_oldest_wait"),
            models.Index(
                fields=["tenant_queue", "ended_at"], condition=Q(state__in=ENDED), name="tenant_slots_ended_of_row"
            ),
            models.Index(
                fields=["beat_at"],
                condition=Q(kind=Kind.RESERVATION, state__in=(State.WAITING, State.QUEUED)),
                name="tenant_slots_reservations",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.uuid}"

    @property
    def rq_id(self) -> str:
        return rq_id_of(self.uuid, self.attempt, self.rq_job_id)

    @property
    def rq_queue_name(self) -> str:
        return rq_queue_of(self.rq_queue, self.tenant_queue.queue)

    @property
    def is_reservation(self) -> bool:
        """Not a job of RQ: other code holds the slot, or waits for it."""
        return self.kind == Kind.RESERVATION

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @implemented_above
    def cancel(self) -> bool:
        """Take the job out of the backlog, or stop it when it runs; False when it had already ended.

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
        """Put a failed or canceled job back in its old place in the backlog.

        Raises:
            NotRetryable: the job is in another state.
        """
        raise NotImplementedError

    async def acancel(self) -> bool:
        """`cancel` for async code."""
        return await sync_to_async(self.cancel)()

    async def aretry(self) -> None:
        """`retry` for async code."""
        await sync_to_async(self.retry)()


class SweepClaim(models.Model):
    """Who sweeps now: a row per kind of sweep, taken by a conditional UPDATE until a time of the database's clock."""

    name = models.CharField(max_length=120, primary_key=True)
    sweeper = models.CharField(max_length=255, default="")
    until = models.DateTimeField()

    objects = InConfiguredDatabase()

    def __str__(self) -> str:
        return self.name
