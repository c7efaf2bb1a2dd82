"""The words of the tables: the states of a job and their groups, what a row is, where a limit comes from."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


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
UNSTARTED = (*UNADMITTED, State.QUEUED)
ENDED = (State.FINISHED, State.FAILED, State.CANCELED)


class Stage(models.IntegerChoices):
    """What the indexes know of a job's state.

    The start of a job is no change of it: PostgreSQL then writes none of the indexes, see ``TenantJob.stage``.
    """

    SCHEDULED = 1
    WAITING = 2
    HOLDING = 3
    """One of `HOLDING`."""
    ENDED = 4
    """One of `ENDED`."""


HOLD_SLOT = "tenant_slots.hold_slot"
"""What a reservation shows as its task."""


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
