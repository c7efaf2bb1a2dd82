"""The worker classes, and the only place that overrides RQ (written against RQ 2.12).

The gate is in the job, so any worker class keeps the limits. What only a worker itself can do is here: renew the lease
of its running job, see at once that a work-horse died with a slot, take the horse along when it dies, and sweep.
"""

from tenant_slots.workers.forking import TenantWorker
from tenant_slots.workers.simple import TenantSimpleWorker

__all__ = ["TenantSimpleWorker", "TenantWorker"]
