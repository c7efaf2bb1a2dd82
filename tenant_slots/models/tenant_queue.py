"""How much one tenant may run at once on one queue, and what changes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Case, F, Q, When
from django.utils.translation import gettext_lazy as _

from tenant_slots import rates
from tenant_slots.conf import app_settings
from tenant_slots.db.transactions import seeing_others
from tenant_slots.layering import implemented_above
from tenant_slots.models import shapes
from tenant_slots.models.fields import Moment, StoredJSON, UnreadableList
from tenant_slots.models.manager import MYPY, InConfiguredDatabase
from tenant_slots.models.states import LimitSource
from tenant_slots.validation import HIGHEST_COUNT

HIGHEST_LIMIT = 10_000
"""More slots than any worker pool has; a number above it is a typing error."""

HIGHEST_SHARE = 1000
"""One tenant against another may weigh a thousand times as much, not more."""

GUARDED = (
    "max_job", "limit_source", "override_until", "share", *rates.SETTINGS, "max_job_per_key", "max_waiting", "paused",
    "resume_at",
)  # fmt: skip
"""What a tenant queue lets its jobs do, and whether a default says so.

Saving one of these raises `TenantQueue.version` and admits what fits now.
"""

NEXT_VERSION = Case(When(version__gte=HIGHEST_COUNT, then=0), default=F("version") + 1)
"""Begins anew where SQL from outside has put it at its end: each change is to have another version than the last."""

RATE_IS_WHOLE = Q(rate_number=None, rate_per=None, rate_burst=None) | Q(
    rate_number__isnull=False,
    rate_number__range=(1, rates.HIGHEST_NUMBER),
    rate_per__isnull=False,
    rate_per__range=(rates.SHORTEST_PERIOD, rates.LONGEST_PERIOD),
    rate_burst__isnull=False,
    rate_burst__range=(1, rates.HIGHEST_NUMBER),
) & Q(rate_burst__lte=rates.most_burst())
"""None of its fields is set, or all of them: a CHECK lets pass what is unknown. And together they are a `Rate`."""


@dataclass(frozen=True)
class Change:
    """One change of a tenant queue's limits or of its pause."""

    what: str
    """``"limit"``, ``"share"``, ``"rate"``, ``"paused"``, ``"resting"``, ``"max_job_per_key"`` or ``"max_waiting"``."""
    old: int | bool | str | None
    new: int | bool | str | None
    """Of a rate its text, "100/m, burst 10"; None for none."""
    by: str
    reason: str
    until: datetime | None
    """When the sweep takes it back, if it does."""


class TenantQueueQuerySet(models.QuerySet["TenantQueue"]):
    def with_free(self, slots: Any) -> TenantQueueQuerySet:
        """Rows that have so many slots free."""
        return self.filter(paused=False, current_job__lte=F("max_job") - slots)

    def delete(self) -> tuple[int, dict[str, int]]:
        """As `TenantQueue.delete`, all of them or none."""
        with seeing_others(self.db):
            return super().delete()

    delete.queryset_only = True  # type: ignore[attr-defined]  # as Django's own: no Model.objects.delete()


if TYPE_CHECKING and not MYPY:

    class TenantQueueManager(TenantQueueQuerySet, InConfiguredDatabase["TenantQueue"]):
        """What `from_queryset` makes, for type checkers that know nothing of Django."""


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
    share = models.IntegerField(
        _("share"),
        default=1,
        db_default=1,
        validators=[MinValueValidator(1), MaxValueValidator(HIGHEST_SHARE)],
        help_text=_(
            "The limit bounds how many of a tenant's jobs run at once; when tenants compete for workers, worker time "
            "is divided by their shares."
        ),
    )
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
    rate_number = models.PositiveIntegerField(_("starts in a period"), null=True, editable=False)
    rate_per = models.DurationField(_("period of the rate"), null=True, editable=False)
    rate_burst = models.PositiveIntegerField(_("burst"), null=True, editable=False)
    rate_empty_at = models.BigIntegerField(
        null=True, editable=False, help_text=_("Keeps how many starts of the rate are used up, see rates.py.")
    )
    paused = models.BooleanField(
        _("paused"), default=False, help_text=_("While paused, no job starts; running jobs go on.")
    )
    resume_at = Moment(
        _("resume at"),
        null=True,
        blank=True,
        help_text=_("The pause ends by itself then. Empty: it lasts until somebody resumes."),
    )
    rests_until = Moment(_("rests until"), null=True, editable=False)
    rested_until = Moment(null=True, editable=False)
    rest_reason = models.CharField(_("reason of the rest"), max_length=200, default="", db_default="", editable=False)
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
    override_until = Moment(
        _("override until"), null=True, blank=True, help_text=_("The previous limit comes back then.")
    )
    override_by = models.CharField(_("override by"), max_length=150, default="", db_default="", editable=False)
    limit_before_override = models.IntegerField(_("limit before the override"), null=True, editable=False)
    limit_history = StoredJSON(
        null=True,
        editable=False,
        fits=shapes.is_limit_history,
        empty=UnreadableList,
        help_text=_("For charts: [time of a change, limit before it], oldest first."),
    )
    created_at = Moment(_("created"), auto_now_add=True)

    if TYPE_CHECKING and not MYPY:
        objects: ClassVar[TenantQueueManager]
    objects = InConfiguredDatabase.from_queryset(TenantQueueQuerySet)()

    class Meta:
        base_manager_name = "objects"
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
                condition=Q(share__gte=1, share__lte=HIGHEST_SHARE), name="tenant_slots_share_1_to_1000"
            ),
            models.CheckConstraint(condition=RATE_IS_WHOLE, name="tenant_slots_rate_is_whole"),
            models.CheckConstraint(
                condition=Q(max_job_per_key=None) | Q(max_job_per_key__gte=1), name="tenant_slots_per_key_gte_1"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant or _('no tenant')} on {self.queue}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Admits the waiting jobs that fit now, once this has committed. Counts `version` up for a limit or a pause.

        Never writes `current_job`, `rate_empty_at` or a rest of an existing row unless asked to: the values in memory
        are already old.
        """
        kwargs.setdefault("using", app_settings.DATABASE)
        may_have_jobs = not self._state.adding or self.pk is not None
        if self._state.adding:
            super().save(*args, **kwargs)
        else:
            self._save_changes(*args, **kwargs)
        if may_have_jobs:
            self.admit_waiting()

    def delete(self, using: Any = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Django's, with its ended jobs. Raises TenantQueueInUse while there are others."""
        alias = using or app_settings.DATABASE
        with seeing_others(alias):
            return super().delete(alias, keep_parents)

    def validate_constraints(self, exclude: Any = None) -> None:
        """Django's, by our database."""
        errors: dict[str, Any] = {}
        for constraint in self._meta.constraints:
            try:
                constraint.validate(type(self), self, exclude=exclude, using=app_settings.DATABASE)
            except ValidationError as error:
                errors = error.update_error_dict(errors)
        if errors:
            raise ValidationError(errors)

    def _save_changes(self, *args: Any, **kwargs: Any) -> None:
        fields = self._fields_to_save(kwargs.get("update_fields"))
        if fields.isdisjoint(GUARDED):
            super().save(*args, **{**kwargs, "update_fields": fields})
        else:
            self._save_as_next_version(*args, **{**kwargs, "update_fields": fields | {"version"}})

    def _fields_to_save(self, asked: Iterable[str] | None) -> set[str]:
        if asked is not None:
            return set(asked)
        never = {"current_job", "rate_empty_at", "rests_until", "rested_until", "rest_reason", "version"}
        return {field.name for field in self._meta.concrete_fields if not field.primary_key} - never

    def _save_as_next_version(self, *args: Any, **kwargs: Any) -> None:
        before = self.version
        self.version = NEXT_VERSION
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

    @property
    def rate(self) -> rates.Rate | None:
        """How many jobs may start in a time; None for any number. See `set_rate`."""
        return rates.of(self)

    @implemented_above
    def admit_waiting(self) -> None:
        """Let waiting jobs take the free slots, and push them to RQ, once the current transaction has committed."""
        raise NotImplementedError

    @implemented_above
    def set_limit(self, max_job: int, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
        """Change the limit for good; waiting jobs that now fit are admitted once it commits. Lowering stops no job.

        Args:
            max_job: how many jobs may run at once, from 0 to ``HIGHEST_LIMIT``.
            by, reason: for the log, the history in the admin and the signal ``limit_changed``.
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
    def set_share(self, share: int, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
        """Change the part of the workers' time that this tenant queue gets while others want it too.

        Args:
            share: from 1 to ``HIGHEST_SHARE``; twice the share of another is twice its worker time.

        Raises:
            InvalidShare: it is not such a number.
            StaleVersion: as `set_limit`.
        """
        raise NotImplementedError

    @implemented_above
    def set_rate(
        self,
        number: int | None,
        *,
        per: timedelta | None = None,
        burst: int | None = None,
        by: str = "",
        reason: str = "",
        version: int | None = None,
    ) -> list[Change]:
        """Change how many jobs may start in a time; ``set_rate(None)`` for any number.

        What was used stays used: nobody gets tokens back by a change, as far as the new burst holds them.

        Args:
            number: of starts, from 1 to 1,000,000.
            per: within so long, from 1 second to 366 days.
            burst: how many may start at once after a quiet time; without it what one second brings, at least 1. So
                no more than ``burst + number`` jobs start within any `per`.

        Raises:
            InvalidRate: a number is out of range, or `per` is missing.
            StaleVersion: as `set_limit`.
        """
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

    @implemented_above
    def end_rest(self, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
        """End the rest that a job's `TenantBusy` has begun; waiting jobs are admitted once that commits.

        Does nothing when there is none. See `set_limit`.
        """
        raise NotImplementedError
