"""The statements of the algorithm, in the order in which a job meets them; ``slots.py`` says when each one runs.

LOCK, LOCK_IF_FREE and FREE are for ``locks.py``, JOB and QUEUE_OF_JOB for ``running/``. Those that name a job's primary
key ask for its state and never for its stage, which conditions of indexes name: PostgreSQL could prefer such an index,
which it believes to be small, and read all of its dead entries while somebody holds an old snapshot.
"""

from __future__ import annotations

import functools
from typing import Any

from django.db.models import (
    BigIntegerField,
    Case,
    CharField,
    Count,
    DateTimeField,
    DurationField,
    Exists,
    F,
    IntegerField,
    Q,
    Subquery,
    UUIDField,
    Value,
    When,
)
from django.db.models.functions import Coalesce

from tenant_slots import rates, rests
from tenant_slots.db.clock import DatabaseNow, from_now
from tenant_slots.db.compiled import IsOneOf, Keys, Parameter, Statement, fields_of
from tenant_slots.db.consequences import HasChanged
from tenant_slots.models import ENDED, UNTIL_START, Kind, State, TenantJob, TenantJobQuerySet, TenantQueue
from tenant_slots.owners import OWNER_FIELDS

PK = Parameter("pk", IntegerField())
PKS = Keys("pks")
ATTEMPT = Parameter("attempt", IntegerField())
TOKEN = Parameter("token", BigIntegerField())
HEARD_AT = Parameter("heard_at", DateTimeField())
SLOTS = Parameter("slots", IntegerField())
STARTS = Parameter("starts", IntegerField())
RQ_QUEUE = Parameter("rq_queue", CharField())

LOCKED = (
    "tenant",
    "queue",
    "max_job",
    "max_job_per_key",
    "current_job",
    "paused",
    "rests_until",
    "share",
    *rates.SETTINGS,
    "rate_empty_at",
)
"""What is read of a tenant queue while it is locked; Django fetches anything else when it is asked for."""

ADMITTED = (
    "uuid",
    "tenant_queue",
    "kind",
    "task",
    "options",
    "rq_job_id",
    "rq_queue",
    "priority",
    "state",
    "attempt",
    "token",
)
"""What a push to RQ needs to know of a job."""

LOCK = Statement(lambda: TenantQueue.objects.select_for_update(no_key=True).filter(pk=PK).only(*LOCKED), prepared=True)

LOCK_IF_FREE = Statement(
    lambda: TenantQueue.objects.select_for_update(no_key=True, skip_locked=True).filter(pk=PK).only(*LOCKED),
    prepared=True,
)
"""No row when somebody has it locked: the only thing that is asked by it. Nobody goes on without LOCK then."""

FREE = Statement(
    lambda: TenantQueue.objects.select_for_update(no_key=True, skip_locked=True).filter(pk=PK).values_list("pk"),
    prepared=True,
)
"""As LOCK_IF_FREE, for what does not depend on the row."""

TAKE = Statement(
    lambda: TenantQueue.objects.filter(pk=PK).with_free(SLOTS),
    {"current_job": F("current_job") + SLOTS},
    prepared=True,
)

TOKENS_LEFT = Statement(lambda: TenantQueue.objects.filter(pk=PK).annotate(left=rates.left()).values_list("left"))

UNTIL_TOKEN = Statement(
    lambda: TenantQueue.objects.filter(pk=PK).annotate(wait=rates.until_token()).values_list("wait")
)

TAKE_AT_RATE = Statement(
    lambda: TenantQueue.objects.filter(rates.allows(STARTS), pk=PK).with_free(SLOTS),
    {"current_job": F("current_job") + SLOTS, **rates.taken(STARTS)},
)
"""Where the row has a rate: so many starts, and as many slots less those that a job has just left."""

GIVE_TOKEN_BACK = Statement(lambda: TenantQueue.objects.filter(pk=PK), rates.given_back(1))

GIVE_BACK = Statement(
    lambda: TenantQueue.objects.filter(pk=PK, current_job__gte=SLOTS),
    {"current_job": F("current_job") - SLOTS},
    prepared=True,
)

GIVE_BACK_THEN = Statement(
    lambda: TenantQueue.objects.filter(HasChanged(), pk=PK, current_job__gte=SLOTS),
    {"current_job": F("current_job") - SLOTS},
    prepared=True,
)
"""As GIVE_BACK, where a job has left."""

CLAIM = Statement(
    lambda: TenantJob.objects.filter(pk=PK, state=State.WAITING),
    {"state": State.QUEUED, "attempt": F("attempt") + 1, "admitted_at": DatabaseNow()},
    prepared=True,
)

CLAIM_ALL = Statement(
    lambda: TenantJob.objects.filter(IsOneOf("pk", PKS), state=State.WAITING),
    {"state": State.QUEUED, "attempt": F("attempt") + 1, "admitted_at": DatabaseNow()},
)
"""As CLAIM, of many in one round trip: their tenant queue is locked meanwhile."""

CLAIMED = Statement(lambda: TenantJob.objects.filter(IsOneOf("pk", PKS), state=State.QUEUED).values_list("pk"))

UNHELD = Statement(
    lambda: (
        TenantJob.objects.select_for_update(no_key=True, skip_locked=True)
        .filter(IsOneOf("pk", PKS), state=State.WAITING)
        .values_list("pk")
    )
)
"""Waiting jobs that nobody else has locked, and that this transaction has locked then."""

UUID = Parameter("uuid", UUIDField())

JOB = Statement(lambda: TenantJob.objects.filter(uuid=UUID), prepared=True)

QUEUE_OF_JOB = Statement(lambda: TenantQueue.objects.filter(jobs__uuid=UUID))

_STARTED = {
    "state": State.RUNNING,
    "started_at": DatabaseNow(),
    "beat_at": DatabaseNow(),
    "unique_key": Case(When(unique_key__startswith=UNTIL_START, then=Value("")), default=F("unique_key")),
    "expires_at": Case(When(started_at=None, then=F("expires_at")), default=Value(None)),
    **fields_of(TenantJob, OWNER_FIELDS),
}
"""No index is written where the digest stays as it is, nor more of the log. What has begun before expires no more."""

BY_START = ("started_at", "expires_at")
"""What the row has by then that it had not before."""

START = Statement(
    lambda: TenantJob.objects.filter(pk=PK, attempt=ATTEMPT, state=State.QUEUED),
    _STARTED,
    returning=BY_START,
    prepared=True,
)

TENANT_QUEUE = Parameter("tenant_queue", IntegerField())
PRIORITY = Parameter("priority", IntegerField())


def _may_keep_slot() -> Q:
    """What the job's row says is given: asked of the row itself, PostgreSQL would join all tenants' backlogs to it."""
    key_may = Q(max_job_per_key=None) | Q(max_job_per_key__gte=_held_by_its_key())
    return Q(Exists(_its_row().filter(rests.is_over(), key_may, paused=False, current_job__lte=F("max_job"))))


def _is_first() -> Q:
    more_urgent = TenantJob.objects.waiting().filter(
        tenant_queue=TENANT_QUEUE, rq_queue=RQ_QUEUE, priority__gt=PRIORITY
    )
    return Q(~Exists(more_urgent)) | Q(Exists(_its_row().exclude(max_job_per_key=None)))


def _its_row() -> Any:
    return TenantQueue.objects.filter(pk=TENANT_QUEUE)


def _held_by_its_key() -> Any:
    """How many slots the job's concurrency key has, the job's own among them; 0 if it has no key.

    The key is asked for by a question of its own, for the reason above.
    """
    key = TenantJob.objects.filter(pk=PK).exclude(key="").values("key")
    held = TenantJob.objects.holding().filter(tenant_queue=TENANT_QUEUE, key=Subquery(key[:1]))
    return Coalesce(Subquery(held.order_by().values("key").annotate(slots=Count("pk")).values("slots")), 0)


START_IF_DUE = Statement(
    lambda: TenantJob.objects.filter(_may_keep_slot(), _is_first(), pk=PK, attempt=ATTEMPT, state=State.QUEUED),
    _STARTED,
    returning=BY_START,
)
"""Of a job that may have waited for a worker since its admission: what was changed since then counts.

With a cap per concurrency key a higher priority alone does not: a job that is passed over would keep all others from
starting, as each of them is the next one again once it has been put back.
"""

START_RESERVATION = Statement(
    lambda: TenantJob.objects.filter(_may_keep_slot(), pk=PK, attempt=ATTEMPT, state=State.QUEUED),
    _STARTED,
    returning=BY_START,
)
"""Whose process may not have seen yet that it has a slot, when that is taken from it."""

CLAIM_AND_START = Statement(
    lambda: TenantJob.objects.filter(pk=PK, state=State.WAITING),
    {**_STARTED, "attempt": F("attempt") + 1, "admitted_at": DatabaseNow()},
    returning=True,
    prepared=True,
)
"""Of a job that the process which admits it runs at once."""

NOTE_AWAITED = Statement(
    lambda: TenantJob.objects.filter(pk=PK).exclude(state__in=ENDED),
    {"awaited": True},
)

BEAT = Statement(
    lambda: TenantJob.objects.filter(pk=PK, token=TOKEN, state=State.RUNNING),
    {"beat_at": DatabaseNow(), **fields_of(TenantJob, ["horse"])},
    prepared=True,
)
"""The work-horse too: it may have been forked after its worker recorded the start."""


def _backlog() -> TenantJobQuerySet:
    backlog: TenantJobQuerySet = TenantJob.objects.filter(tenant_queue=PK, rq_queue=RQ_QUEUE).backlog()
    return backlog


def _reservations() -> TenantJobQuerySet:
    """Those that wait, which stand in their tenant queue's own backlog."""
    reservations: TenantJobQuerySet = TenantJob.objects.reservations_to_begin().filter(tenant_queue=PK).backlog()
    return reservations


FIRST_FIELDS = ("kind", "rq_job_id", "priority")
"""What is to be known of a job to choose it, or to see that others are to be asked for more of it."""

NEXT = Statement(lambda: _backlog().only(*FIRST_FIELDS)[:2], prepared=True)
"""The head of a backlog, and whether it is not alone: as much of it as whoever starts it at once is to know."""

NEXT_RESERVATION = Statement(lambda: _reservations().only(*FIRST_FIELDS)[:1], prepared=True)
"""Goes before the head of an overflow queue's backlog if it is older."""

RESERVATIONS = Statement(lambda: _reservations().only(*ADMITTED, "key"))
"""Of one tenant queue: each is a thread that waits."""


def first_waiting(number: int) -> Statement:
    """The head of a backlog: at least so many jobs, where there are as many, and less than twice as many."""
    return _first_waiting(_power_of_two(number))


def first_reservations(number: int) -> Statement:
    """As `first_waiting`, of the reservations alone."""
    return _first_reservations(_power_of_two(number))


def _power_of_two(number: int) -> int:
    """A LIMIT is part of the text of a statement, of which there is one for each power up to the highest limit."""
    return 1 << (number - 1).bit_length()


@functools.lru_cache(maxsize=16)
def _first_waiting(number: int) -> Statement:
    return Statement(lambda: _backlog().only(*ADMITTED)[:number], prepared=True)


@functools.lru_cache(maxsize=16)
def _first_reservations(number: int) -> Statement:
    return Statement(lambda: _reservations().only(*ADMITTED)[:number], prepared=True)


HEADS = Statement(
    lambda: (
        TenantJob.objects.filter(IsOneOf("pk", PKS), state=State.WAITING).order_by("-priority", "pk").only(*ADMITTED)
    )
)
"""Waiting jobs that were chosen by their primary keys, in their order."""


@functools.lru_cache(maxsize=64)
def leaving(
    states: tuple[State, ...], state: State, later: bool, unbegun: bool, silent: bool, values: tuple[str, ...]
) -> Statement:
    """A job leaves its slot, which it must hold in one of these states. One that is to be canceled goes nowhere else.

    Nobody can stop a reservation: it is told, and ends as it does.

    With `unbegun` its function was not called, so that a job which still has a time to begin until has never begun.
    With `silent` no heartbeat has come since its last one was read.

    One statement for each set of fields that some caller writes: about twenty. It gives back whether other jobs wait
    for this one: who begins to do so meanwhile notes it in the same row, see ``chains.py``.
    """
    leaver = TenantJob.objects.filter(pk=PK, attempt=ATTEMPT, token=TOKEN, state__in=states)
    if silent:
        leaver = leaver.filter(beat_at__lt=HEARD_AT)
    if state != State.CANCELED:
        leaver = leaver.filter(Q(cancel_requested_at=None) | Q(kind=Kind.RESERVATION))
    changes: dict[str, Any] = dict(fields_of(TenantJob, values))
    if state in ENDED:
        changes["ended_at"] = DatabaseNow()
    if later:
        changes["run_after"] = from_now(Parameter("later", DurationField()))
    if unbegun:
        changes["started_at"] = Case(When(expires_at=None, then=F("started_at")), default=Value(None))
    return Statement(lambda: leaver, changes, returning=["awaited"], prepared=True)
