"""What bulk changes run by: an action on other rows too leaves it alone, so that it can always be undone."""

from __future__ import annotations

from django.db.models import Model, QuerySet
from django.utils.translation import ngettext_lazy

from tenant_slots.db.compiled import among
from tenant_slots.models import TenantQueue
from tenant_slots.tenants import ADMIN_TENANT

SPARED = "of bulk changes"
"""The outcome for one that was left alone."""

OF_QUEUES = {
    SPARED: ngettext_lazy(
        "Left alone: %(count)d tenant queue, as bulk changes run in it. Change it by itself.",
        "Left alone: %(count)d tenant queues, as bulk changes run in them. Change them by themselves.",
        "count",
    )
}
"""For what is about to be done as for what was done."""

OF_JOBS = {
    SPARED: ngettext_lazy(
        "Left alone: %(count)d job that carries out a bulk change. Choose it by itself.",
        "Left alone: %(count)d jobs that carry out bulk changes. Choose them by themselves.",
        "count",
    )
}


def with_others(visible: QuerySet[Model], pks: list[int]) -> set[int]:
    """Those of the rows that an action on all of them leaves alone; none where it is about no others.

    Args:
        visible: the rows of the model that the viewer may see.
    """
    tenant = "tenant" if issubclass(visible.model, TenantQueue) else "tenant_queue__tenant"
    own = set(visible.filter(among(pks), **{tenant: ADMIN_TENANT}).order_by().values_list("pk", flat=True))
    return own if len(own) < len(pks) else set()
