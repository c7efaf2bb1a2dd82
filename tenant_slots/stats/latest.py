"""As many jobs as may be looked at while somebody waits for a page: the latest ones that have ended."""

from __future__ import annotations

from tenant_slots.models import TenantJob, TenantJobQuerySet


def latest(ended: TenantJobQuerySet, most: int) -> tuple[TenantJobQuerySet, bool]:
    """The latest `most` of these jobs, and whether there are more. One query, or two where there are.

    The time is fetched by the second one: an ORDER BY would be of the selected column, for which a `Moment` has another
    text. It is a value in what is asked next, as PostgreSQL expects a third of the table from a subquery.
    """
    left_out = ended.order_by("-ended_at").values_list("pk", flat=True)[most : most + 1]
    for pk in left_out:
        for time in TenantJob.objects.filter(pk=pk).values_list("ended_at", flat=True):
            return ended.filter(ended_at__gt=time), True
    return ended, False
