"""The worker classes, and the only place that overrides RQ (written against RQ 2.12).

The gate is in the job, so any worker class keeps the limits. What only a worker itself can do is here: renew the leases
of its runs, see at once that a work-horse died with a slot, take the horse along when it dies, keep an end that the
database does not take, and sweep.
"""

from tenant_slots.workers.forking import TenantWorker
from tenant_slots.workers.prefork import TenantPreforkWorker
from tenant_slots.workers.simple import TenantSimpleWorker

__all__ = ["TenantPreforkWorker", "TenantSimpleWorker", "TenantWorker"]
