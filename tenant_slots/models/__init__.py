"""The tables: tenant queues, their jobs and changes, bulk changes, what each minute brought, and who sweeps.

Everything else stands on them, so they import next to nothing. What moves a job between states is in ``slots.py``.
Methods whose body needs the layers above are declared here and written there, see ``layering.py``.
"""

from tenant_slots.models.bulk_change import BulkChange, BulkChunk, Ending
from tenant_slots.models.job_dependency import JobDependency
from tenant_slots.models.job_indexes import ANY, ANY_OF_ALL, COUNTS, HAS_COUNTED_OUT, IN_OVERFLOW_QUEUE, READY_AT
from tenant_slots.models.kept_change import KeptChange
from tenant_slots.models.queue_minute import QueueMinute
from tenant_slots.models.queue_total import QueueTotal
from tenant_slots.models.states import ENDED, HOLD_SLOT, HOLDING, Kind, LimitSource, Stage, State
from tenant_slots.models.sweep_claim import EVERYWHERE, SweepClaim
from tenant_slots.models.tenant_job import (
    CONTENT,
    EXPIRED,
    NOT_BEFORE,
    REFUSED,
    UNKNOWN_TASK,
    UNTIL_START,
    TenantJob,
    TenantJobQuerySet,
    overflow_queue_of,
    rq_id_of,
    rq_queue_of,
)
from tenant_slots.models.tenant_queue import GUARDED, HIGHEST_LIMIT, HIGHEST_SHARE, NEXT_VERSION, Change, TenantQueue

__all__ = [
    "ANY",
    "ANY_OF_ALL",
    "CONTENT",
    "COUNTS",
    "ENDED",
    "EVERYWHERE",
    "EXPIRED",
    "GUARDED",
    "HAS_COUNTED_OUT",
    "HIGHEST_LIMIT",
    "HIGHEST_SHARE",
    "HOLDING",
    "HOLD_SLOT",
    "IN_OVERFLOW_QUEUE",
    "NEXT_VERSION",
    "NOT_BEFORE",
    "READY_AT",
    "REFUSED",
    "UNKNOWN_TASK",
    "UNTIL_START",
    "BulkChange",
    "BulkChunk",
    "Change",
    "Ending",
    "JobDependency",
    "KeptChange",
    "Kind",
    "LimitSource",
    "QueueMinute",
    "QueueTotal",
    "Stage",
    "State",
    "SweepClaim",
    "TenantJob",
    "TenantJobQuerySet",
    "TenantQueue",
    "overflow_queue_of",
    "rq_id_of",
    "rq_queue_of",
]
