"""What became of a job that left its slot, of the slot, and of a tenant's turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from tenant_slots.models import State, TenantJob


@dataclass(frozen=True)
class Admission:
    """What came of a tenant's turn in one RQ queue."""

    jobs: list[TenantJob] = field(default_factory=list)
    """Those that are to be pushed, and reservations that were before them."""
    started: TenantJob | None = None
    """The one that was started where it was admitted."""
    is_full: bool = False
    """More waits, or may wait, than it may have now: all its slots are taken, or it is paused, or rests, or those who
    wait may be at the cap of a concurrency key. It goes on after a release, or a change of its limits."""
    is_shut: bool = False
    """It is full whichever job were the next one: no further enqueue changes that."""
    waits_for_time: bool = False
    """It has slots left, and no token, or rests."""
    wakes_in: float | None = None
    """Seconds until it may start one more, where its rest or its rate does not let it now."""
    has_more: bool = False
    """There may be further jobs that could have a slot."""


@dataclass(frozen=True)
class Release:
    """What one release did. Falsy if it did nothing."""

    state: State | None
    """Where the job went; None if it was another run's slot by then, in another state, or its tenant queue deleted."""
    is_awaited: bool = False
    """Whether other jobs may wait for the end of this one."""
    admission: Admission | None = None
    """Of the same tenant's next turn, where it was taken in the same transaction."""

    def __bool__(self) -> bool:
        return self.state is not None
