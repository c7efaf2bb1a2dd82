"""The search of the job list, made of what indexes have: ids, tenants, and the tasks of the latest jobs."""

from __future__ import annotations

import re
from string import hexdigits
from typing import Any
from uuid import UUID

from django.db.models import Q

from tenant_slots.admin.lists import MOST_COUNTED, Reading
from tenant_slots.db.compiled import among
from tenant_slots.models import TenantQueue

MOST_COMPARED = 50_000
"""Jobs whose tasks are looked at, the first ones of the list: no index has tasks, because every job would pay for it
with each change of its state."""

SHORTEST_BEGINNING = 4
"""Characters of an id by which it is found."""

HEXADECIMAL = frozenset(hexdigits.lower())

OF_AN_ATTEMPT = re.compile(r"(.{36})-\d+")
"""The id that RQ has of one, as its pages and a worker's log show it."""


def search_jobs(jobs: Any, term: str, reading: Reading) -> Any:
    """The jobs with this id, those of tenants that are called so, and those of the first ones whose task is.

    What may be the beginning of an id is looked for among tasks only where it is neither that nor a part of a tenant.
    What is found by a name are the first `MOST_COUNTED`: the list shows no more, and an action on all takes no more.

    Args:
        jobs: what the filters leave, in the order of the list.
        reading: how the list reads them.
    """
    if not term or "\0" in term:
        return jobs.none() if term else jobs
    if uuid := _uuid(term):  # which may be a tenant's identifier just as well
        return jobs.filter(Q(uuid=uuid) | Q(tenant_queue__in=row_ids(term)))
    rows = list(TenantQueue.objects.filter(tenant__icontains=term).values_list("pk", flat=True))
    by_index = Q(among(rows, "tenant_queue")) if rows else Q()
    if (ids := _ids_that_begin_with(term)) is not None:
        by_index |= ids
        if not _is_a_word(term) and jobs.filter(by_index).order_by().exists():
            return jobs.filter(by_index)
    return jobs.filter(among(_named(jobs, term, by_index, reading)))


def row_ids(tenant: str) -> list[int]:
    """Fetched, not joined: with the numbers at hand PostgreSQL reads the tenant's jobs from their index."""
    if "\0" in tenant:
        return []
    return list(TenantQueue.objects.filter(tenant=tenant).values_list("pk", flat=True))


def _named(jobs: Any, term: str, by_index: Q, reading: Reading) -> list[int]:
    """The primary keys of the first `MOST_COUNTED` jobs that match.

    First among those whose tasks are looked at. If these are not enough, the others are those that an index has; they
    are sorted then, because the first of them may be far down the list.
    """
    first = jobs.filter(_first_ones(jobs, reading), by_index | Q(task__icontains=term))
    found = list(first.values_list("pk", flat=True)[:MOST_COUNTED])
    if by_index and len(found) < MOST_COUNTED:
        others = jobs.filter(by_index).order_by(*reading.sorted_by).values_list("pk", flat=True)
        found = list(dict.fromkeys([*found, *others[:MOST_COUNTED]]))[:MOST_COUNTED]
    return found


def _first_ones(jobs: Any, reading: Reading) -> Q:
    """The condition of the first `MOST_COMPARED` jobs of the list."""
    if reading.is_small:
        return Q()
    last = jobs.select_related(None).only(*reading.columns)[MOST_COMPARED - 1 : MOST_COMPARED]
    return next((reading.up_to(job) for job in last), Q())


def _uuid(text: str) -> UUID | None:
    attempt = OF_AN_ATTEMPT.fullmatch(text)
    try:
        return UUID(attempt[1] if attempt else text)
    except ValueError:
        return None


def _ids_that_begin_with(term: str) -> Q | None:
    """As a range, which the index of the ids has; None for what is too short or no beginning of an id."""
    digits = term.replace("-", "").lower()
    if not SHORTEST_BEGINNING <= len(digits) <= 32 or not HEXADECIMAL.issuperset(digits):
        return None
    return Q(uuid__range=(UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))))


def _is_a_word(term: str) -> bool:
    """Such as "feed" and "cafe", which are more likely a part of a task than the beginning of an id."""
    return term.isalpha() and len(term) < 8
