"""Jobs that wait for what has come already, or for longer than they were to: for others, for a time, for nothing.

Each tenant's are ended a few at a time, so that many of one tenant, or such as the database refuses or takes long for,
leave the others their turns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db.models import QuerySet

from tenant_slots import chains, transitions
from tenant_slots.enqueueing import expiry
from tenant_slots.models import TenantJob
from tenant_slots.repair import findings
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.repair.pace import Pace
from tenant_slots.repair.report import Report
from tenant_slots.repair.together import jobs_together
from tenant_slots.repair.turns import fitting_lease, in_turns, share_of

SECONDS_TO_TELL = 1
"""After which a sweep leaves such jobs to the next one."""

JOBS_OF_ONE = 1000
"""Most jobs of a tenant in one turn."""

CHOSEN_FROM = 20 * JOBS_OF_ONE
"""Of so many jobs of a tenant, or twice as many, those of one turn are drawn."""

SECONDS_BETWEEN_LOOKS_FOR_FORGOTTEN = 300
"""The look reads all jobs that run after others."""


def end_waits(report: Report, contact: Contact) -> None:
    """Jobs that wait for what has come already, or for longer than they were to.

    Of those that run after others: nobody told them, because a process died, or because there were too many. Tenants
    take turns. Who waits for what is canceled here is told in the next round.
    """
    are_told, expired = findings.waits_that_are_over()
    if _cancel_all_expired(report, contact.pace, expired) or not are_told:
        _tell_all(report, contact.pace)


def _cancel_all_expired(report: Report, pace: Pace, tenants: list[int]) -> int:
    """How many were canceled."""
    before, until = report.canceled, time.monotonic() + fitting_lease(SECONDS_TO_TELL)
    in_turns(tenants, until, partial(_cancel_expired, report, pace, until))
    return report.canceled - before


def _tell_all(report: Report, pace: Pace) -> None:
    """The time is that for telling: however long it takes to find who is to be told, some are."""
    tenants = chains.concerned()
    until = time.monotonic() + fitting_lease(SECONDS_TO_TELL)
    while tenants:
        random.shuffle(tenants)
        told = [unless_locked(_tell_some, report, pace, pk, until) for pk in tenants if time.monotonic() < until]
        if not any(told):
            return
        tenants = chains.concerned()


def _cancel_expired(report: Report, pace: Pace, until: float, tenant_queue_id: int) -> bool:
    """False where there are no more, or somebody holds the tenant queue."""
    canceled = unless_locked(_cancel_some, pace, tenant_queue_id, until)
    report.canceled += canceled or 0
    return bool(canceled)


def _cancel_some(pace: Pace, tenant_queue_id: int, until: float) -> int:
    pks = _drawn(expiry.without_slot(tenant_queue_id).values_list("pk", flat=True), pace)
    with pace.noting(pks):
        canceled = jobs_together(pks, "canceled", partial(expiry.cancel_these, tenant_queue_id), share_of(until))
    return canceled or expiry.cancel_with_slot(tenant_queue_id, unless_locked)


def _tell_some(report: Report, pace: Pace, tenant_queue_id: int, until: float) -> bool:
    """False where nobody could be told."""

    def tell(pks: Sequence[int]) -> int:
        told = transitions.tell_some(tenant_queue_id, jobs=pks)
        report.promoted += len(told.promoted)
        report.canceled += len(told.canceled)
        return len(pks)

    pks = _drawn(chains.to_be_told(tenant_queue_id), pace, "job")
    with pace.noting(pks):
        return bool(jobs_together(pks, "told of an end", tell, share_of(until)))


def _drawn(pks: QuerySet[Any, int], pace: Pace, key: str = "pk") -> list[int]:
    """As many as one turn changes: any of them, so that those that the database refuses are not in all draws.

    Where there are more than are drawn from, some from anywhere behind the first ones are among these.

    Args:
        key: the field with the primary key of the job.
    """
    found = set(pks[:CHOSEN_FROM])
    if len(found) == CHOSEN_FROM:
        newest = TenantJob.objects.order_by("-pk").values_list("pk", flat=True)[:1]
        anywhere = random.randint(min(found), max(found.union(newest)))
        found.update(pks.filter(**{f"{key}__gte": anywhere})[:CHOSEN_FROM])
    return random.sample(sorted(found), min(pace.fitting(JOBS_OF_ONE), len(found)))


def promote_forgotten(report: Report, contact: Contact) -> None:
    """Scheduled jobs that wait for no time and for no job, which only SQL from outside makes of them."""
    if time.monotonic() < contact.looked_for_forgotten_at + SECONDS_BETWEEN_LOOKS_FOR_FORGOTTEN:
        return
    tenants = list(chains.forgotten().order_by().values_list("tenant_queue", flat=True).distinct())
    until = time.monotonic() + fitting_lease(SECONDS_TO_TELL)  # the look itself may take longer
    in_turns(tenants, until, lambda pk: unless_locked(_promote_some, report, contact.pace, pk, until))
    if not tenants or time.monotonic() < until:  # the next sweep goes on
        contact.looked_for_forgotten_at = time.monotonic()


def _promote_some(report: Report, pace: Pace, tenant_queue_id: int, until: float) -> bool:
    """False where there are no more."""

    def promote(pks: Sequence[int]) -> int:
        report.promoted += len(transitions.promote_forgotten(tenant_queue_id, pks).promoted)
        return len(pks)

    pks = _drawn(chains.forgotten().filter(tenant_queue=tenant_queue_id).values_list("pk", flat=True), pace)
    with pace.noting(pks):
        return bool(jobs_together(pks, "promoted", promote, share_of(until)))
