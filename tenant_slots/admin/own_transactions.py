"""Pages whose request is no transaction, also with ``ATOMIC_REQUESTS``."""

from __future__ import annotations

from typing import Any

from tenant_slots.admin.bases import AnyConcern
from tenant_slots.db.requests import outside_our_transactions


class OwnTransactions(AnyConcern):
    """Each row is changed in a transaction of its own: what one tenant's row waits for holds up no other tenant."""

    def get_urls(self) -> list[Any]:
        urls = super().get_urls()
        for url in urls:
            if callback := getattr(url, "callback", None):
                url.callback = outside_our_transactions(callback)
        return urls
