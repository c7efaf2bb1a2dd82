"""Jobs whose time has come, and whose tenant is busy, do what their `on_busy` says.

They are in the backlog by then: whatever the project's callables do, they hold up no promotion.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from django.db import connections

from tenant_slots import dispatch
from tenant_slots.alarm import time_limit
from tenant_slots.conf import app_settings
from tenant_slots.db.sessions import close_if_ended, leave_statements
from tenant_slots.enqueueing import on_busy
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import TenantJob
from tenant_slots.repair import findings
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.repair.pace import Pace
from tenant_slots.repair.report import Report
from tenant_slots.repair.together import jobs_together
from tenant_slots.repair.turns import fitting_lease, in_turns, share_of
from tenant_slots.repair.unlocked import unlocked

SECONDS_TO_ASK = 2
"""For which a sweep asks: its worker may have no job meanwhile, and waits for it.

In a tenant's turn one job is asked, however long that takes.
"""

SECONDS_TO_NOTE = 1
"""For what is noted when the sweep's time is over."""

JOBS_OF_ONE = 50
"""Most jobs of a tenant in one turn: those that wait unasked if the process that asks is killed."""


def ask(report: Report, contact: Contact) -> None:
    """Tenants take turns."""
    until = time.monotonic() + fitting_lease(SECONDS_TO_ASK)
    tenants = list(findings.to_ask().order_by().values_list("tenant_queue", flat=True).distinct())
    left_out: set[int] = set()
    in_turns(tenants, until, lambda pk: unless_locked(_ask_some, contact.pace, pk, share_of(until), left_out))


def _ask_some(pace: Pace, tenant_queue_id: int, until: float, left_out: set[int]) -> bool:
    """A tenant's turn. False: it needs no other one in this sweep.

    Who is to be asked is noted as asked before: no other sweep asks him too, and a callable that takes its process
    along does so once.
    """
    known = len(left_out)
    jobs = _noted_as_asked(pace, tenant_queue_id, until, left_out)
    unasked = [job.pk for job in jobs]
    try:
        answers = unless_locked(on_busy.turn_away, tenant_queue_id, jobs, until)
    except SweepTimeout as alarm:
        _note_in_the_end(unasked, alarm)
        raise
    except BaseException:
        _note_as_unasked(unasked)
        raise
    _note_as_unasked(unasked if answers is None else answers.unasked)
    if answers is None:
        return False
    for job in answers.discarded:
        if job.rq_job_id:
            dispatch.remove(job)  # it has deferred itself in RQ, which would deliver it again
    return bool(jobs) or len(left_out) > known


def _noted_as_asked(pace: Pace, tenant_queue_id: int, until: float, left_out: set[int]) -> list[TenantJob]:
    """Those of its next jobs that could be noted.

    Args:
        pace: says how many are tried.
        tenant_queue_id, until: of the turn.
        left_out: has those that this sweep has found to be refused by the database, and takes more of them.
    """
    noted: list[TenantJob] = []

    def note(pks: Sequence[int]) -> int:
        with unlocked(findings.to_ask().filter(pk__in=pks)) as jobs:
            jobs.update(asks=False)
            fields = ("tenant_queue__queue", "task", "options", "uuid", "attempt")
            found = list(jobs.select_related("tenant_queue").only(*fields).order_by("pk"))
        noted.extend(found)
        return len(found)

    own = findings.to_ask().filter(tenant_queue=tenant_queue_id).exclude(pk__in=left_out).order_by("pk")
    with unlocked(own[: pace.fitting(JOBS_OF_ONE)]) as next_ones:
        pks = list(next_ones.values_list("pk", flat=True))
    with pace.noting(pks):
        jobs_together(pks, "asked", note, until, left_out)
    return noted


def _note_in_the_end(unasked: list[int], alarm: SweepTimeout) -> None:
    """The sweep's time is over, so that this needs a limit of its own, and a session where that was closed."""
    if isinstance(alarm, on_busy.Unanswered):
        unasked = [pk for pk in unasked if pk != alarm.pk]
    with time_limit(SECONDS_TO_NOTE, SweepTimeout, leave_statements):
        close_if_ended(connections[app_settings.DATABASE])
        _note_as_unasked(unasked)


def _note_as_unasked(pks: list[int]) -> None:
    """All, however late it is: no other sweep would find them. There are a few."""

    def note(pks: Sequence[int]) -> int:
        with unlocked(TenantJob.objects.waiting().filter(pk__in=pks)) as jobs:
            return jobs.update(asks=True)

    if pks:
        jobs_together(pks, "noted as not asked yet", note)
