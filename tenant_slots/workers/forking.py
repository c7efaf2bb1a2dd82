"""The worker with a fresh work-horse for each job."""

from __future__ import annotations

from tenant_slots.workers.supervisor import Supervisor


class TenantWorker(Supervisor):
    """Each job has a process of its own, as with RQ's worker: nothing that a job leaves in memory meets another one.

    It is forked when the job is marked as running, and has ended before the worker records the end, unless it has
    something to send after that: what the two share is then copied neither way.
    """

    @property
    def jobs_per_horse(self) -> int:
        return 1
