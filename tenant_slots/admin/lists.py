"""What keeps the job list quick with a million jobs and ten thousand tenants."""

from __future__ import annotations

from functools import cached_property
from string import hexdigits
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.http import HttpRequest

from tenant_slots.admin.bases import JobPaginator
from tenant_slots.models import Stage, State, TenantQueue

MOST_COUNTED = 10_000
"""Jobs that the list counts and pages through. Nobody pages further, and counting a million takes a while."""


SHORTEST_BEGINNING = 4
"""Characters of an id by which it is found."""

HEXADECIMAL = frozenset(hexdigits.lower())


WITH_INDEX = {
    State.QUEUED: Q(stage=Stage.HOLDING),
    State.RUNNING: Q(stage=Stage.HOLDING),
    State.FAILED: Q(has_failed=True),
}
"""What the jobs of a state have in common that an index has alone. They are few among all that are kept."""

SORTED_LATEST_FIRST = ((F("pk") + 0).desc(),)
"""As ``-pk``, but by no index: PostgreSQL would read a million jobs by their keys, in search of a few."""


def index_of_state(request: HttpRequest) -> Q | None:
    """What the list adds when it is filtered by a state, so that an index has its jobs."""
    state = request.GET.get("state__exact") or request.GET.get("state")
    return next((of_state for known, of_state in WITH_INDEX.items() if known == state), None)


class CappedPaginator(JobPaginator):
    """Counts no further than `MOST_COUNTED`."""

    object_list: QuerySet[Any]

    @cached_property
    def count(self) -> int:
        return self.object_list.order_by()[:MOST_COUNTED].count()


def search_jobs(jobs: Any, term: str) -> Any:
    """An id is found by its index and a tenant among the tenants; only a task is compared job by job.

    What may be the beginning of an id is looked for among tasks only where it is neither that nor a part of a tenant.
    """
    if not term or "\0" in term:
        return jobs.none() if term else jobs
    if uuid := _uuid(term):  # which may be a tenant's identifier just as well
        return jobs.filter(Q(uuid=uuid) | Q(tenant_queue__in=row_ids(term)))
    rows = TenantQueue.objects.filter(tenant__icontains=term).values_list("pk", flat=True)
    anywhere = Q(tenant_queue__in=rows) | Q(task__icontains=term)
    if (ids := _ids_that_begin_with(term)) is None:
        return jobs.filter(anywhere)
    if _is_a_word(term):
        return jobs.filter(anywhere | ids)
    by_index = jobs.filter(ids | Q(tenant_queue__in=found) if (found := list(rows)) else ids)
    return by_index if by_index.exists() else jobs.filter(anywhere)


def row_ids(tenant: str) -> list[int]:
    """Fetched, not joined: with the numbers at hand PostgreSQL reads the tenant's jobs from their index."""
    if "\0" in tenant:
        return []
    return list(TenantQueue.objects.filter(tenant=tenant).values_list("pk", flat=True))


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
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
