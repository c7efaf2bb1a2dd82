"""The worker with a fresh work-horse for each job."""

from __future__ import annotations

from tenant_slots.workers.supervisor import Supervisor


class TenantWorker(Supervisor):
    """Each job has a process of its own, as with RQ's worker: nothing that a job leaves in memory meets another one.

    The process for the next job is forked and connected while the worker waits for that job.
    """

    @property
    def jobs_per_horse(self) -> int:
        return 1
