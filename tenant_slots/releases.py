"""What became of a job that left its slot, and of the slot."""

from __future__ import annotations

from dataclasses import dataclass, field

from tenant_slots.models import State, TenantJob


@dataclass(frozen=True)
class Release:
    """What one release did. Falsy if it did nothing."""

    state: State | None
    """Where the job went; None if it was another run's slot by then, in another state, or its tenant queue deleted."""
    admitted: list[TenantJob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.state is not None
