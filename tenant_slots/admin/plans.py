"""Which plan a tenant has: whoever wonders about a limit wants to know, and only the project can tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tenant_slots.admin.bases import QueueConcern


class Plans(QueueConcern):
    def plans_of(self, tenants: Collection[str]) -> Mapping[str, str]:
        """The names of the plans of these tenants, as far as they have any. Override it to have them shown.

        Asked once for all tenants of a page, and once for each part of an export.
        """
        return {}
