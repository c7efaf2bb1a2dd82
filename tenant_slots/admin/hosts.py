"""Where a job runs, in a word that people know: its row has the boot of a machine, which tells nobody anything."""

from __future__ import annotations

from collections.abc import Iterable

from tenant_slots import fleet
from tenant_slots.models import TenantJob


def name_hosts(jobs: Iterable[TenantJob]) -> None:
    """Give each a `host_name`: that of its worker, as RQ has it on record, or "". Nobody is asked without a worker."""
    working = [job for job in jobs if job.worker and job.has_begun]
    known = fleet.known() if working else fleet.Fleet((), ())
    hosts = {member.key: member.host for member in known.members}
    for job in jobs:
        worker = known.servers.get(job.rq_queue_name, ""), job.worker
        job.host_name = hosts.get(worker, "") if job.has_begun else ""  # type: ignore[attr-defined]  # for templates
