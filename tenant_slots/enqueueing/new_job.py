"""What one call becomes: a job that is not stored yet, and what is known of it meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from tenant_slots.models import TenantJob


@dataclass
class NewJob:
    tenant: str
    job: TenantJob
    is_counted: bool = False
    """Whether a throttle has counted it, which happens once however often its insert is tried."""
