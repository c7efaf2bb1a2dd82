"""The indexes of the table of jobs, and the conditions by which PostgreSQL is kept to the one made for a query."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Greatest

from tenant_slots.models.states import Kind, Stage
from tenant_slots.validation import HIGHEST_COUNT

ANY = Q(crashes__gte=0)
"""True of every job. An index that has it in its condition is left alone by queries that do not ask for it.

Of a column that no index has: where the table was empty at the last ANALYZE, PostgreSQL would take any other index that
could answer a part of the question for just as good.

PostgreSQL takes a backlog that came after the last ANALYZE for a row or two, and then any index of waiting jobs for as
good as the one in their order: whoever asked for the first one would read and sort them all.
"""

ANY_OF_ALL = Q(interruptions__gte=0)
"""The same for the index that has the jobs of all tenants together, which is for nobody who asks for one tenant's."""

IN_OVERFLOW_QUEUE = ANY & ~Q(rq_queue="")
"""Of waiting jobs, those that do not wait in their tenant queue's own RQ queue."""

READY_AT = Greatest("enqueued_at", Coalesce("run_after", "enqueued_at"))
"""From when a job could have started: one that was deferred did not wait before its time."""

COUNTS = ("attempt", "crashes", "interruptions", "failures", "deferrals")
"""Of a job."""

HAS_COUNTED_OUT = Q(*((f"{name}__gte", HIGHEST_COUNT) for name in COUNTS), _connector=Q.OR)
"""Jobs with a count at its end, where only SQL from outside puts it. Nothing that a start or a heartbeat writes."""

CONSTRAINTS: list[models.BaseConstraint] = [
    models.UniqueConstraint(
        fields=["rq_job_id"],
        condition=~Q(stage=Stage.ENDED) & ~Q(rq_job_id=""),
        name="tenant_slots_one_per_rq_job",
    ),
    models.UniqueConstraint(
        fields=["unique_key"],
        condition=~Q(unique_key="") & ~Q(stage=Stage.ENDED),
        name="tenant_slots_one_per_unique_key",
    ),
]

INDEXES: list[models.Index] = [
    models.Index(
        "tenant_queue",
        "rq_queue",
        F("priority").desc(),
        "id",
        condition=Q(stage=Stage.WAITING),
        include=["key"],
        name="tenant_slots_backlog",
    ),
    models.Index(  # another text than `waiting`'s: neither this index nor those are taken for each other
        "tenant_queue",
        "rq_queue",
        "key",
        F("priority").desc(),
        "id",
        condition=ANY & Q(stage__gt=Stage.SCHEDULED, stage__lt=Stage.HOLDING),
        name="tenant_slots_backlog_by_key",
    ),
    models.Index(  # the many in their own queue pay nothing for it
        fields=["rq_queue", "tenant_queue"],
        condition=Q(stage=Stage.WAITING) & IN_OVERFLOW_QUEUE,
        name="tenant_slots_overflow",
    ),
    models.Index(fields=["tenant_queue"], condition=Q(stage=Stage.HOLDING), name="tenant_slots_holding"),
    models.Index(fields=["run_after"], condition=Q(stage=Stage.SCHEDULED), name="tenant_slots_scheduled"),
    models.Index(fields=["tenant_queue"], condition=Q(stage=Stage.SCHEDULED), name="tenant_slots_deferred"),
    models.Index(
        fields=["tenant_queue", "id"], condition=Q(stage=Stage.WAITING, asks=True), name="tenant_slots_to_ask"
    ),
    models.Index(
        fields=["expires_at"],
        condition=Q(stage__lt=Stage.HOLDING, expires_at__isnull=False),
        name="tenant_slots_expiring",
    ),
    models.Index(fields=["ended_at"], condition=Q(stage=Stage.ENDED), name="tenant_slots_ended"),
    models.Index(fields=["tenant_queue", "-id"], name="tenant_slots_history"),
    models.Index("tenant_queue", READY_AT, condition=ANY & Q(stage=Stage.WAITING), name="tenant_slots_longest_wait"),
    models.Index(READY_AT, condition=ANY_OF_ALL & Q(stage=Stage.WAITING), name="tenant_slots_oldest_wait"),
    models.Index(fields=["tenant_queue", "ended_at"], condition=Q(stage=Stage.ENDED), name="tenant_slots_ended_of_row"),
    models.Index(  # the many that do not fail pay nothing for it
        fields=["ended_at"],
        condition=Q(has_failed=True),
        include=["id", "task", "error_class", "key", "tenant_queue"],
        name="tenant_slots_failed",
    ),
    models.Index(fields=["ended_at"], condition=Q(is_canceled=True), name="tenant_slots_canceled"),
    models.Index(
        fields=["id"],
        condition=~Q(stage=Stage.ENDED) & Q(kind=Kind.RESERVATION),
        name="tenant_slots_reservations",
    ),
    models.Index(fields=["id"], condition=HAS_COUNTED_OUT, name="tenant_slots_counted_out"),
]
"""None of them has `state`, nor what a start or a heartbeat writes: PostgreSQL would write every index of a job, those
too that do not change, whenever one of their columns changes.
"""
