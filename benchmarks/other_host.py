"""A worker that believes itself on another host, so that one machine can show what two would do."""

from __future__ import annotations

from tenant_slots import owners
from tenant_slots.workers import TenantWorker


class OtherHostWorker(TenantWorker):
    def bootstrap(self, *args: object, **kwargs: object) -> None:
        owners.this_host = lambda: "another host"  # type: ignore[assignment]
        super().bootstrap(*args, **kwargs)
