"""Noting in the database that a job began and how it ended, whatever the database does meanwhile.

Recording never changes the outcome of a job. A process that nobody watches over tries for half a minute; under a worker
of ours an end is tried for a second, and then kept by the worker, which has other jobs to see to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from django.db import DatabaseError, Error, InterfaceError, InternalError, OperationalError, connections

from tenant_slots import logs, slots, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db import leftovers
from tenant_slots.db.sessions import end, renew
from tenant_slots.db.transactions import is_locked_out, waiting_at_most
from tenant_slots.models import ENDED, State, TenantJob, TenantQueue
from tenant_slots.owners import Owner, this_process
from tenant_slots.refusals import is_of_one, is_outage, is_refusal
from tenant_slots.releases import Release
from tenant_slots.statements import BY_START, JOB, NEXT
from tenant_slots.validation import storable

T = TypeVar("T")

Outcome = dict[str, Any]
"""New field values of a job that leaves its slot, as JSON, and the options of `slots.release`."""

logger = logging.getLogger("tenant_slots")

NOT_BEGUN: Outcome = {"state": State.WAITING, "unstarted": True}
"""Of a job that was marked as running, and whose function was never called."""

LEFT = ("result", "error", "progress", "stats", "runs")
"""The fields of an outcome that a database may refuse to store."""

ERROR_LENGTH = 20_000
"""Characters kept of an error, from its end, where a traceback says what happened."""

PASSING = (OperationalError, InterfaceError, InternalError)
"""What a database answers while it restarts or fails over: InternalError is a standby's refusal to write."""

PAUSES = (0.05, 0.1, 0.2, 0.5, *[1.0] * 29)
"""Seconds between tries to record something: together the half minute that a database needs to restart."""

BRIEFLY = PAUSES[:4]
"""For an end that somebody keeps if the database does not take it."""

TRIES = 3
"""After which a start is refused for good: somebody may have canceled the statement once, by hand or by a time-out."""

MOST_TRIES = 6
"""After which anything else is, an end above all: two seconds, as what the job has done is at stake."""

PATIENCE_SECONDS = 1
"""How long an end that somebody keeps waits for a tenant queue that is locked: other tenants' jobs wait meanwhile."""


class Refused(DatabaseError):
    """The database objects to what is to be recorded of this very job."""

    @property
    def reason(self) -> str:
        """What a database says in further lines is the row."""
        return str(self).partition("\n")[0]


class StartRefused(Refused):
    """To its start; it is marked as running nowhere."""


class StartKeptOut(Error):
    """It could not be written now, and nothing is wrong with it: see `is_kept_out`. The job keeps its slot, and a sweep
    pushes it to RQ again.
    """


class EndRefused(Refused):
    """To its end, also without what the job left; it has its slot."""


def record_start(job: TenantJob, owner: Owner, on_outage: Callable[[], object]) -> bool:
    """Mark an admitted job as running. False: it is not to be run, or the database stayed out of reach.

    Raises:
        StartRefused: as soon as that is known.
        StartKeptOut: the same.
    """
    return bool(persistently(_starting(job, owner), on_outage, about=[job]))


def record_end(job: TenantJob, outcome: Outcome, on_outage: Callable[[], object]) -> Release | None:
    """Give a job's slot back with what it left; None when the database stayed out of reach.

    The caller does what follows from it, see `transitions.follow`: that is not to be tried again.

    Raises:
        EndRefused: as soon as that is known.
    """
    give_back = unless_refused(lambda: release(job, outcome), EndRefused)
    return persistently(give_back, on_outage, about=[job], between=partial(_keep_lease, job))


def record_end_briefly(job: TenantJob, outcome: Outcome, on_outage: Callable[[], object]) -> Release | None:
    """As `record_end`, for one that is kept otherwise: None after a second, or when the tenant queue stays locked.

    Or when the database refuses it, whatever is left out and for whatever reason: it is not lost.
    """
    with waiting_at_most(PATIENCE_SECONDS):
        try:
            return persistently(lambda: release(job, outcome), on_outage, BRIEFLY, is_locked_out, [job])
        except Error as error:
            logger.error("the database refuses the end of job %s", job.uuid, exc_info=error, extra=logs.about(job))
            return None


def put_back(job: TenantJob, on_outage: Callable[[], object] = lambda: None) -> None:
    """An admitted job that is not to be started. Where it is kept out of the backlog a sweep comes to it."""
    unless_kept_out(lambda: transitions.put_back(job), on_outage, about=[job])


def unless_kept_out(
    action: Callable[[], T], on_outage: Callable[[], object] = lambda: None, about: Iterable[TenantJob] = ()
) -> T | None:
    """As `persistently`; None too where somebody or something keeps it out, for which others' jobs are not to wait."""
    with waiting_at_most(PATIENCE_SECONDS):
        return persistently(action, on_outage, give_up=is_kept_out, about=about)


def is_kept_out(error: Error) -> bool:
    """Whether somebody holds a row, or a trigger has met what would be about all, such as a disk that is full."""
    return is_locked_out(error) or (is_of_one(error) and not is_refusal(error))


def persistently(
    action: Callable[[], T],
    on_outage: Callable[[], object] = lambda: None,
    pauses: Sequence[float] | None = None,
    give_up: Callable[[Error], bool] = lambda error: False,
    about: Iterable[TenantJob] = (),
    between: Callable[[], object] = lambda: None,
) -> T | None:
    """The action's answer; None when the database stayed out of reach for the sum of the pauses, or of `PAUSES`.

    Args:
        on_outage: told of each error that keeps us from the database, and not from this very row: see `is_outage`.
        about: the job whose step it is, where there is one, for the log.
        between: what else is to be done before each further try.
    """
    pauses = PAUSES if pauses is None else pauses
    until = time.monotonic() + sum(pauses)
    for pause in pauses:
        try:
            _leave_users_transaction()
            return action()
        except PASSING as error:
            logger.warning("the database did not answer, trying again: %s", error, extra=logs.about(*about))
            if is_outage(error):  # asked as long as the session is there, as the next line may ask it too
                on_outage()
            is_over = give_up(error) or time.monotonic() > until
            connections[app_settings.DATABASE].close()
            if is_over:
                return None
            between()
            time.sleep(pause)
    return None


def storable_error(text: str) -> str:
    """The end of a text as every database takes it."""
    return storable(text)[-ERROR_LENGTH:]


def warm_up() -> None:
    """Load what the first queries of a process load; work-horses that are forked afterwards have it."""
    nobody = TenantJob(pk=0, attempt=0, tenant_queue=TenantQueue(pk=0))
    JOB.rows(uuid=nobody.uuid)
    NEXT.rows(pk=0, rq_queue="")
    slots.start(nobody, this_process("", beats=False))
    slots.release(nobody, state=State.FINISHED)


def _starting(job: TenantJob, owner: Owner) -> Callable[[], bool]:
    """A start that may be tried again: the first try may have been committed although its answer was lost."""
    tries = 0

    def start() -> bool:
        nonlocal tries
        tries += 1
        if tries > 1 and slots.is_running(job.pk, owner.token):
            job.token = owner.token
            job.refresh_from_db(fields=BY_START)
            return True
        try:
            return slots.start(job, owner)
        except Error as error:
            if _is_refused_for_good(error, tries >= TRIES):
                raise StartRefused(str(error)) from error
            if not is_kept_out(error):
                raise
            text = "job %s is left to a sweep, it cannot be started now: %s"
            logger.warning(text, job.uuid, error, extra=logs.about(job))
            raise StartKeptOut from error

    return start


def unless_refused(action: Callable[[], T], as_error: type[Refused] = Refused) -> Callable[[], T]:
    """For `persistently`, to which some refusals look like an outage. Raises `as_error` once one is known for it."""
    tries = 0

    def act() -> T:
        nonlocal tries
        tries += 1
        try:
            return action()
        except Error as error:
            if _is_refused_for_good(error, tries >= MOST_TRIES):
                raise as_error(str(error)) from error
            raise

    return act


def _is_refused_for_good(error: Error, was_last_try: bool) -> bool:
    return is_refusal(error) and (was_last_try or not isinstance(error, PASSING))


def release(job: TenantJob, outcome: Outcome) -> Release:
    """Once: the end with what the job left, or at least without what the database refuses to store.

    When a job is to run again is computed from what it has said. That it is checked before is one thing; that nobody's
    worker ends by it another.
    """
    try:
        return slots.release(job, **outcome)
    except PASSING:
        raise
    except DatabaseError:
        logger.exception("what job %s left cannot be stored; its end is", job.uuid, extra=logs.about(job))
        bare = {name: value for name, value in outcome.items() if name not in LEFT}
        return slots.release(job, **bare)
    except Exception as error:
        if isinstance(error, Error) or outcome["state"] in ENDED:
            raise
        logger.exception("job %s cannot go back as it wants to, and has failed", job.uuid, extra=logs.about(job))
        return slots.release(
            job, state=State.FAILED, error=storable_error(f"it cannot go back as it wants to: {error!r}")
        )


def _keep_lease(job: TenantJob) -> None:
    """The tenant queue may be locked by somebody for longer than a lease; the job has ended and is not to run again."""
    with suppress(Error):
        slots.beat(job.pk, job.token)


def found() -> leftovers.Found:
    """How a function finds our connection, which its end is recorded in."""
    return leftovers.found(connections[app_settings.DATABASE])


def leave_leftovers(job: TenantJob, before: leftovers.Found) -> None:
    """What a function has left in our connection must not swallow, refuse or hold up what we record there.

    Nor all later work of its process.
    """
    connection = connections[app_settings.DATABASE]
    leftovers.put_way_back(connection, before.way)
    if leftovers.has_left_transaction(connection, before):
        text = "job %s left a transaction open; what it wrote there is rolled back"
        logger.error(text, job.uuid, extra=logs.about(job))
        renew(connection)
    elif not leftovers.is_as_made(connection, before):
        end(connection)


def _leave_users_transaction() -> None:
    """A function that switched autocommit off and left work behind must not swallow what we record."""
    connection = connections[app_settings.DATABASE]
    if connection.connection is not None and not connection.autocommit and not connection.in_atomic_block:
        connection.close()
