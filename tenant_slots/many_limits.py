"""The limits of many tenant queues, one transaction each: what `limits` does with one, in fewer round trips.

A row is read with others and without a lock, edited in memory, and written in one statement if it still has the version
that was read; with it what is to be known of the change. Whoever changes several waits for the disk once, after them.

PostgreSQL only: elsewhere a row is changed by its own methods.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import OperationalError, connections
from django.db.models import Exists, IntegerField, OuterRef

from tenant_slots import limits, transitions
from tenant_slots.conf import app_settings
from tenant_slots.db.commits import after_commit
from tenant_slots.db.compiled import Parameter, Statement, among, fields_of
from tenant_slots.db.consequences import Consequence, inserted_then, update_with
from tenant_slots.db.transactions import impatient, is_locked_out, is_open, patience, send
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.limits import Edit
from tenant_slots.locks import COMMIT_AT_ONCE, WAIT_FOR_DISK
from tenant_slots.models import GUARDED, NEXT_VERSION, BulkChunk, Change, KeptChange, TenantJob, TenantQueue
from tenant_slots.validation import HIGHEST_COUNT


@dataclass(frozen=True)
class Edited:
    """A row as it is to be, in memory."""

    row: TenantQueue
    version: int
    """As it was read."""
    fields: frozenset[str]
    """That differ; none where there is nothing to do."""
    changes: tuple[Change, ...]


def is_possible() -> bool:
    """Not inside a transaction of whoever called the job: each row is to be one."""
    alias = app_settings.DATABASE
    return connections[alias].vendor == "postgresql" and not is_open(alias)


def edited(row: TenantQueue, edit: Edit, by: str, reason: str) -> Edited:
    version = row.version
    fields, changes = limits.edited(row, edit, by, reason)
    return Edited(row, version, frozenset(fields), tuple(changes))


def write(one: Edited, chunk: Mapping[str, int] | None = None, consequences: Iterable[Consequence] = ()) -> bool:
    """Store an edited row and what follows, in a transaction of its own. False: it was changed meanwhile, or the chunk.

    The disk may not have it yet: see `wait_for_disk`.

    Args:
        chunk: primary key and step of the `BulkChunk` that says what is left to do, if there is one.
        consequences: what else is to be stored with it.

    Raises:
        TenantQueueLocked: another transaction keeps the row.
    """
    is_guarded = not one.fields.isdisjoint(GUARDED)
    values = {name: getattr(one.row, name) for name in one.fields}
    kept = [inserted_then(KeptChange, limits.kept_values(one.row, change)) for change in one.changes]
    before = (*impatient(app_settings.DATABASE, patience.get()), COMMIT_AT_ONCE)
    try:
        written = update_with(
            before,
            _update(one.fields, is_guarded, chunk is not None),
            [*kept, *consequences],
            pk=one.row.pk,
            known_version=one.version,
            **({} if chunk is None else {"chunk": chunk["pk"], "step": chunk["step"]}),
            **values,
        )
    except OperationalError as error:
        if not is_locked_out(error):
            raise
        raise TenantQueueLocked(tenant_queue=one.row, seconds=patience.get()) from error
    if written and is_guarded:
        one.row.version = 0 if one.version >= HIGHEST_COUNT else one.version + 1
    return written


@functools.lru_cache(maxsize=64)
def _update(fields: frozenset[str], is_guarded: bool, is_of_chunk: bool) -> Statement:
    """One for each set of fields that some action writes."""
    row = TenantQueue.objects.filter(
        pk=Parameter("pk", IntegerField()), version=Parameter("known_version", IntegerField())
    )
    if is_of_chunk:
        chunk = BulkChunk.objects.filter(pk=Parameter("chunk", IntegerField()), step=Parameter("step", IntegerField()))
        row = row.filter(Exists(chunk))
    changes: dict[str, Any] = dict(fields_of(TenantQueue, sorted(fields)))
    if is_guarded:
        changes["version"] = NEXT_VERSION
    return Statement(lambda: row, changes)


def wait_for_disk() -> None:
    """Until all that was written before is safe. Nobody is to be told of it sooner."""
    send(app_settings.DATABASE, [WAIT_FOR_DISK])


def follow(written: Sequence[Edited]) -> None:
    """What follows from changes that are safe: histories stay short, they are told, and tenants have their turns."""
    for one in written:
        for change in one.changes:
            limits.tell(one.row, change)
    changed = [one.row for one in written if one.changes]
    limits.forget_oldest(changed)
    _offer(changed)


def _offer(changed: Sequence[TenantQueue]) -> None:
    """None is shut any more when it is asked who has work: what is enqueued from then on leads to a turn by itself."""
    queues: dict[str, list[tuple[int, int]]] = {}
    for row in changed:
        queues.setdefault(row.queue, []).append((row.pk, row.share))
    for queue, tenants in queues.items():
        after_commit(partial(transitions.tell_shares, queue, tenants))
    with_work = _with_work([row.pk for row in changed if not row.paused])
    for queue, tenants in queues.items():
        to_offer = [tenant for tenant in tenants if tenant[0] in with_work]
        after_commit(partial(transitions.offer_again, queue, to_offer))


def _with_work(pks: list[int]) -> set[int]:
    """Those with a waiting job: to offer any other would only have somebody look in vain."""
    waiting = TenantJob.objects.waiting().filter(tenant_queue=OuterRef("pk"))
    return set(TenantQueue.objects.filter(among(pks), Exists(waiting)).order_by().values_list("pk", flat=True))
