"""A transaction that holds one tenant queue: whoever admits, releases or changes a limit does it inside.

No transaction holds the rows of two tenants, but one that deletes unused ones and waits for none; and nothing but the
database is talked to while one is held.

PostgreSQL gives up a transaction's locks when its commit is on the disk, so a tenant could have no more transactions in
a second than the disk has flushes, however many workers it has. Whoever had to wait for the row therefore lets the next
one have it before the disk is done, and waits for the disk afterwards. Nobody is told anything before that, and nothing
that builds on such a commit can be on the disk without it, because the log is written in its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DatabaseError, connections

from tenant_slots.conf import app_settings
from tenant_slots.db.compiled import Asked, takes_one_at_a_time, together
from tenant_slots.db.consequences import update_all, update_unless_locked
from tenant_slots.db.prepared import is_read_by_index
from tenant_slots.db.transactions import bounded, is_open, send, sqlstate
from tenant_slots.models import TenantQueue
from tenant_slots.statements import FREE, LOCK, LOCK_IF_FREE

AS_INDEXED = ("SET LOCAL enable_sort = off", "SET LOCAL jit = off")
"""Who is next is read from the index that has a backlog in its order, whatever PostgreSQL believes of its length.

A tenant whose jobs came after the last ANALYZE has a row or two for all that PostgreSQL knows. To read these by any
index of that tenant's jobs and to sort them is a little cheaper then, and reads a hundred thousand where there are as
many. Before version 18 a sort that cannot be helped counts as so dear that the statement would be compiled.
"""

COMMIT_AT_ONCE = "SET LOCAL synchronous_commit = off"

WAIT_FOR_DISK = "SELECT pg_logical_emit_message(true, 'tenant_slots', '')"
"""The smallest transaction that writes: its commit waits until all of the log before it is safe, as configured."""

SOUGHT_FOR = 8
"""Transactions of this process during which a row is not expected to be free that was not once.

Where eight workers share one tenant this saves each of them one of five round trips. Where the others have gone it
costs one round trip, that of `WAIT_FOR_DISK`, in as many transactions.
"""

MOST_SOUGHT = 1000
"""Rows that a process keeps in mind: it forgets all of them rather than more."""

NOT_TOGETHER = ("0A000", "27000")
"""PostgreSQL's SQLSTATEs of a table with a rule that does something besides, and of a trigger on a job's row that
writes its tenant queue: neither goes together with one statement that updates both. Nothing was done then."""


class NotTogether(Exception):
    """One of these has come, and nothing was done."""


_step_by_step: set[str] = set()
"""Databases of which this process has learnt that."""

_sought: dict[int, int] = {}
"""How many of these transactions are left, by primary key. A thread that counts beside another does no harm."""


@contextmanager
def locked(tenant_queue_id: int) -> Iterator[TenantQueue]:
    """A transaction that holds the tenant queue, or a part of the caller's own, which then holds it to its end.

    NO KEY, because whoever enqueues takes a share lock on the key, see ``tenant_rows.py``. A caller's transaction may
    have that for minutes, and neither must ever wait for the other.

    Raises:
        TenantQueue.DoesNotExist: the row was deleted.
        TenantQueueLocked: somebody else keeps it, or one of its jobs, for longer than our patience.
    """
    with locked_and_asked(tenant_queue_id) as (tenant_queue, _):
        yield tenant_queue


@contextmanager
def locked_and_asked(tenant_queue_id: int, *asked: Asked) -> Iterator[tuple[TenantQueue, list[Any]]]:
    """As `locked`, with what a question gives that was sent along and answered after the lock was there.

    No answer inside a transaction of the caller's, or where no two statements go together.
    """
    alias = app_settings.DATABASE
    is_part = is_open(alias)
    lock = Asked(LOCK, {"pk": tenant_queue_id})
    with bounded(alias, tenant_queue_id) as rules:
        if rules and not is_part:
            found, answers, is_contended = _begun_with(rules, lock, asked)
        else:
            found, answers, is_contended = lock.statement.rows(rules, **lock.values), [], False
        if not found:
            raise TenantQueue.DoesNotExist(f"TenantQueue {tenant_queue_id} was deleted")
        yield found[0], answers
    if is_contended:
        send(alias, [WAIT_FOR_DISK])


def update_if_free(tenant_queue_id: int, update: Asked, *then: Asked) -> list[Any]:
    """As a transaction that holds the tenant queue, in one round trip, for what depends on nothing else of the row.

    Args:
        update: of a row of another table.
        then: what follows from it.

    Returns:
        The changed row. An empty list where that was not done, as somebody else has the tenant queue, or cannot be.

    Raises:
        TenantQueueLocked: somebody else keeps the row that is updated.
    """
    alias = app_settings.DATABASE
    if is_open(alias) or takes_one_at_a_time(alias) or alias in _step_by_step or tenant_queue_id in _sought:
        return []
    with suppress(NotTogether), _learning(alias), bounded(alias, tenant_queue_id) as rules:
        is_free, found = update_unless_locked(rules, Asked(FREE, {"pk": tenant_queue_id}), update, then)
        if not is_free:
            _note_sought(tenant_queue_id)
        return found
    return []


def update_last(*updates: Asked) -> list[Any] | None:
    """Update one row with each of these, as the last thing in the block of `locked`: the commit goes along.

    Only where the statements have their plans, without which this one takes longer than it saves, and the transaction
    is ours. Else they are sent together, and the block commits.

    Returns:
        As `update_all`; or with 0 or an empty list for what has changed nothing, and nothing is committed yet.
    """
    connection = connections[app_settings.DATABASE]
    is_ours = connection.commit_on_exit and not connection.savepoint_ids
    if not (updates and is_ours and is_read_by_index(connection)) or connection.alias in _step_by_step:
        return together((), *updates)
    with suppress(NotTogether), _learning(connection.alias):
        return update_all(updates)
    return None


@contextmanager
def _learning(alias: str) -> Iterator[None]:
    """Note that a rule or trigger of the project does not go together with what the block sends.

    Raises:
        NotTogether: so it is.
    """
    try:
        yield
    except DatabaseError as error:
        if sqlstate(error) not in NOT_TOGETHER:
            raise
        _step_by_step.add(alias)
        raise NotTogether from error


def _begun_with(rules: Sequence[str], lock: Asked, asked: Sequence[Asked]) -> tuple[list[Any], list[Any], bool]:
    """The row in a list, what the questions give, and whether others want the row: they wait for our round trips."""
    pk = lock.values["pk"]
    if not is_read_by_index(connections[app_settings.DATABASE]):
        rules = (*rules, *AS_INDEXED)
    if not _is_sought(pk):
        found, *answers = together(rules, Asked(LOCK_IF_FREE, lock.values), *asked)
        if found:
            return found, answers, False
        _note_sought(pk)
        rules = ()
    found, *answers = together((*rules, COMMIT_AT_ONCE), lock, *asked)
    return found, answers, True


def _is_sought(pk: int) -> bool:
    """Whether somebody had it a few transactions ago, so that it is not worth a round trip to see if it is free."""
    left = _sought.pop(pk, 0)
    if left > 1:
        _sought[pk] = left - 1
    return left > 0


def _note_sought(pk: int) -> None:
    if len(_sought) >= MOST_SOUGHT:
        _sought.clear()
    _sought[pk] = SOUGHT_FOR
