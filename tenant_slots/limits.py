"""Every change of a tenant queue's limits: one at a time, seen by its version, told to whoever listens.

The methods are declared, with their arguments and errors, by `TenantQueue`. A change that makes room
admits waiting jobs: saving the row does so, once the change has committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.utils import timezone
from django.utils.functional import Promise

from tenant_slots import rates, rests, signals, tenants, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.db.commits import after_commit
from tenant_slots.exceptions import InvalidLimit, InvalidOption, InvalidRate, InvalidTime, StaleVersion, TimeHasPassed
from tenant_slots.layering import implements
from tenant_slots.locks import locked
from tenant_slots.models import GUARDED, HIGHEST_LIMIT, Change, KeptChange, LimitSource, State, TenantQueue
from tenant_slots.validation import is_whole, name_text, storable, time_problem, type_problem

Edit = Callable[[TenantQueue], None]
"""Sets the attributes of a row in memory."""

CAPS = ("share", "max_job_per_key", "max_waiting")
"""Changed by themselves: neither an override nor the default has a say in them."""

DECIDE_LIMIT = ("max_job", "limit_source", "override_until")
"""A default that somebody sets as it is counts as a change: whoever goes by the default is to leave it alone then."""

WHAT_CHANGES = ("limit", "paused", "resting", "rate", *CAPS)
"""What each `Change` is of."""

CHANGEABLE = (
    *GUARDED, "rests_until", "rest_reason", "rate_empty_at", "limit_set_by", "override_by", "limit_before_override",
)  # fmt: skip
"""What a change may touch: what the jobs may do, and where the limit comes from."""

LONGEST_NAME: int = TenantQueue._meta.get_field("limit_set_by").max_length or 0

LARGEST_BACKLOG = 2**31 - 1
"""What the column of ``max_waiting`` holds."""

CHANGES_KEPT = 100
"""Of `TenantQueue.limit_history`, which the charts draw the limit from, and of each row's `KeptChange`."""

CHANGES_BETWEEN_CLEANUPS = 50

LONGEST_REASON = 1000
"""Characters of a reason that are kept; the admin's are shorter."""


@implements(TenantQueue.admit_waiting)
def admit_waiting(tenant_queue: TenantQueue) -> None:
    after_commit(partial(transitions.offer_everywhere, tenant_queue))


@implements(TenantQueue.set_limit)
def set_limit(
    tenant_queue: TenantQueue, max_job: int, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    tenants.require_limit(max_job, tenant_queue.tenant, tenant_queue.queue)
    return _change(tenant_queue, limited(max_job, by), by, reason, version)


@implements(TenantQueue.set_override)
def set_override(
    tenant_queue: TenantQueue,
    max_job: int,
    until: datetime,
    *,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    tenants.require_limit(max_job, tenant_queue.tenant, tenant_queue.queue)
    require_future(until)
    return _change(tenant_queue, overridden(max_job, until, by), by, reason, version)


@implements(TenantQueue.end_override)
def end_override(
    tenant_queue: TenantQueue, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    def apply(row: TenantQueue) -> None:
        if is_whole(row.limit_before_override, 0):  # SQL from outside may have left none
            row.max_job = row.limit_before_override
        _forget_override(row)

    return _change(tenant_queue, apply, by, reason, version)


@implements(TenantQueue.reset_to_default)
def reset_to_default(
    tenant_queue: TenantQueue, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    default = tenants.default_max_job(tenant_queue.tenant, tenant_queue.queue)

    def apply(row: TenantQueue) -> None:
        _forget_override(row)
        row.max_job, row.limit_source, row.limit_set_by = default, LimitSource.DEFAULT, ""

    return _change(tenant_queue, apply, by, reason, version)


@implements(TenantQueue.set_share)
def set_share(
    tenant_queue: TenantQueue, share: int, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    tenants.require_share(share, tenant_queue.tenant, tenant_queue.queue)
    return _change(tenant_queue, setting("share", share), by, reason, version)


@implements(TenantQueue.set_rate)
def set_rate(
    tenant_queue: TenantQueue,
    number: int | None,
    *,
    per: timedelta | None = None,
    burst: int | None = None,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    rate = _rate(number, per, burst)

    def apply(row: TenantQueue) -> None:
        if row.rate != rate:
            admitted = row.jobs.holding().filter(state=State.QUEUED).count()
            row.rate_empty_at = rates.carried_over(row, rate, clock.now(), admitted)
            for name, value in rates.fields_of(rate).items():
                setattr(row, name, value)

    return _change(tenant_queue, apply, by, reason, version)


@implements(TenantQueue.set_max_job_per_key)
def set_max_job_per_key(
    tenant_queue: TenantQueue,
    max_job_per_key: int | None,
    *,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    _require_cap(max_job_per_key, tenant_queue, 1, HIGHEST_LIMIT)
    return _change(tenant_queue, setting("max_job_per_key", max_job_per_key), by, reason, version)


@implements(TenantQueue.set_max_waiting)
def set_max_waiting(
    tenant_queue: TenantQueue, max_waiting: int | None, *, by: str = "", reason: str = "", version: int | None = None
) -> list[Change]:
    _require_cap(max_waiting, tenant_queue, 0, LARGEST_BACKLOG)
    return _change(tenant_queue, setting("max_waiting", max_waiting), by, reason, version)


@implements(TenantQueue.pause)
def pause(
    tenant_queue: TenantQueue,
    *,
    until: datetime | None = None,
    by: str = "",
    reason: str = "",
    version: int | None = None,
) -> list[Change]:
    if until is not None:
        require_future(until)
    return _change(tenant_queue, paused(until), by, reason, version)


@implements(TenantQueue.resume)
def resume(tenant_queue: TenantQueue, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
    return _change(tenant_queue, resumed, by, reason, version)


@implements(TenantQueue.end_rest)
def end_rest(tenant_queue: TenantQueue, *, by: str = "", reason: str = "", version: int | None = None) -> list[Change]:
    return _change(tenant_queue, rest_ended, by, reason, version)


def limited(max_job: int, by: str) -> Edit:
    """What `TenantQueue.set_limit` changes. A limit that somebody has set already keeps its author and its reason."""

    def edit(row: TenantQueue) -> None:
        if (row.max_job, row.limit_source, row.override_until) == (max_job, LimitSource.SET, None):
            return
        _forget_override(row)
        row.max_job, row.limit_source, row.limit_set_by = max_job, LimitSource.SET, by

    return edit


def overridden(max_job: int, until: datetime, by: str) -> Edit:
    """What `TenantQueue.set_override` changes. One that is there already keeps its author and its reason."""

    def edit(row: TenantQueue) -> None:
        if (row.max_job, row.override_until) == (max_job, until):
            return
        if row.override_until is None:
            row.limit_before_override = row.max_job
        row.max_job, row.override_until, row.override_by = max_job, until, by

    return edit


def paused(until: datetime | None) -> Edit:
    """What `TenantQueue.pause` changes."""

    def edit(row: TenantQueue) -> None:
        row.paused, row.resume_at = True, until

    return edit


def resumed(row: TenantQueue) -> None:
    """What `TenantQueue.resume` changes."""
    row.paused, row.resume_at = False, None


def rest_ended(row: TenantQueue, now: datetime | None = None) -> None:
    """What `TenantQueue.end_rest` changes. `now` is by the database's clock, for who changes many."""
    if rests.seconds_left(row, now):
        row.rests_until, row.rest_reason = None, ""


def setting(field: str, value: int | None) -> Edit:
    """What the methods for a single number change."""
    return lambda row: setattr(row, field, value)


def _change(tenant_queue: TenantQueue, apply: Edit, by: str, reason: str, version: int | None) -> list[Change]:
    """Save what `apply` sets on the row as it is stored, locked; `tenant_queue` has the stored values afterwards.

    Raises:
        InvalidOption: `by` or `reason` is no text.
        StaleVersion: the row's version is not `version`.
    """
    _require_texts(tenant_queue, by=by, reason=reason)
    with locked(tenant_queue.pk) as row:
        row.refresh_from_db(fields=row.get_deferred_fields())
        if version is not None and row.version != version:
            raise StaleVersion(tenant_queue=row, max_job=row.max_job, version=row.version)
        changed, changes = edited(row, apply, by, reason)
        if changed:  # `save` counts the version up, and admits the jobs that fit now, once this has committed
            row.save(update_fields=changed)
        _keep(row, changes)
        for one in changes:
            transaction.on_commit(partial(tell, row, one), using=app_settings.DATABASE, robust=True)
    _copy(row, tenant_queue)
    return changes


def _require_texts(row: TenantQueue, **given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, (str, Promise)):  # which a text that is to be translated is
            raise InvalidOption(option=name, value=value, task=f"a change of {row}", problem=type_problem(value, str))


def edited(row: TenantQueue, apply: Edit, by: str, reason: str) -> tuple[set[str], list[Change]]:
    """Have `apply` change a row in memory. Returns the fields that differ now, and the changes that this means."""
    before = _values(row)
    apply(row)
    row.limit_set_by, row.override_by = stored_name(row.limit_set_by), stored_name(row.override_by)
    changed = {name for name, value in _values(row).items() if value != before[name]}
    if "max_job" in changed:
        moment = round(timezone.now().timestamp(), 3)
        row.limit_history = [*(row.limit_history or []), [moment, before["max_job"]]][-CHANGES_KEPT:]
        changed.add("limit_history")
    return changed, list(_changes(row, before, by, reason))


def stored_name(text: str) -> str:
    """Who changes a limit, as a column keeps it."""
    return storable(text)[:LONGEST_NAME]


def _values(row: TenantQueue) -> dict[str, Any]:
    return {name: getattr(row, name) for name in CHANGEABLE}


def _changes(row: TenantQueue, before: dict[str, Any], by: str, reason: str) -> Iterator[Change]:
    if any(getattr(row, name) != before[name] for name in DECIDE_LIMIT):
        yield Change("limit", before["max_job"], row.max_job, by, reason, row.override_until)
    if (row.paused, row.resume_at) != (before["paused"], before["resume_at"]):
        yield Change("paused", before["paused"], row.paused, by, reason, row.resume_at)
    if row.rests_until != before["rests_until"]:
        yield Change("resting", True, False, by, reason, None)
    if row.rate != (rate := rates.of(SimpleNamespace(**before))):
        yield Change("rate", _text(rate), _text(row.rate), by, reason, None)
    for name in CAPS:
        if getattr(row, name) != before[name]:
            yield Change(name, before[name], getattr(row, name), by, reason, None)


def _keep(row: TenantQueue, changes: list[Change]) -> None:
    """In the history of the row, for the admin. The oldest leave it now and then."""
    KeptChange.objects.bulk_create([KeptChange(**kept_values(row, one)) for one in changes])
    if changes:
        forget_oldest([row])


def forget_oldest(rows: Iterable[TenantQueue]) -> None:
    """Now and then, of those whose turn it is together."""
    if due := [row.pk for row in rows if row.version % CHANGES_BETWEEN_CLEANUPS == 0]:
        place = Window(RowNumber(), partition_by=F("tenant_queue"), order_by=F("pk").desc())
        placed = KeptChange.objects.filter(tenant_queue__in=due).annotate(place=place)
        KeptChange.objects.filter(pk__in=placed.filter(place__gt=CHANGES_KEPT).values("pk")).delete()


def kept_values(row: TenantQueue, change: Change) -> dict[str, Any]:
    """Of the `KeptChange` of a change."""
    return {
        "tenant_queue_id": row.pk,
        "at": DatabaseNow(),
        "what": change.what,
        "old": _text(change.old),
        "new": _text(change.new),
        "until": change.until,
        "by": stored_name(change.by),
        "reason": storable(change.reason)[:LONGEST_REASON],
    }


def _copy(row: TenantQueue, to: TenantQueue) -> None:
    for name in (*CHANGEABLE, "version", "limit_history", "current_job"):
        setattr(to, name, getattr(row, name))


def tell(row: TenantQueue, change: Change) -> None:
    """Send the signal of a change that is committed."""
    signals.send("limit_changed", sender=TenantQueue, tenant_queue=row, change=change)


def _forget_override(row: TenantQueue) -> None:
    row.override_until, row.override_by, row.limit_before_override = None, "", None


def _require_cap(value: Any, row: TenantQueue, lowest: int, highest: int) -> None:
    if value is not None and not is_whole(value, lowest, highest):
        raise InvalidLimit(value=value, tenant=row.tenant, queue=row.queue, lowest=lowest, highest=highest)


def _text(value: object) -> str | None:
    return None if value is None else name_text(value)


def _rate(number: int | None, per: timedelta | None, burst: int | None) -> rates.Rate | None:
    if number is None:
        return None
    if per is None:
        raise InvalidRate(value=number, problem="give the period too: per=timedelta(minutes=1)")
    return rates.new(number, per, burst)


def require_future(until: datetime) -> None:
    """Raises InvalidTime for what is no time, and TimeHasPassed for one that is not to come."""
    if problem := time_problem(until, aware=settings.USE_TZ):
        raise InvalidTime(value=until, problem=problem)
    if until <= clock.now():
        raise TimeHasPassed(until=until)
