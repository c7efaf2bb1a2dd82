"""The functions of ``work.py`` as tenant jobs."""

from __future__ import annotations

import time
from datetime import timedelta

from benchmarks import work
from tenant_slots import Reschedule, tenant_job
from tenant_slots.models import TenantJob, TenantQueue


@tenant_job("bench", tenant="tenant")
def sleep(tenant: str, name: str, seconds: float) -> None:
    work.sleep(tenant, name, seconds)


@tenant_job("bench", tenant="tenant")
def nothing(tenant: str, name: str) -> None:
    work.nothing(tenant, name)


@tenant_job("bench", tenant="tenant")
def query(tenant: str, name: str) -> None:
    work.query(tenant, name)


@tenant_job("bench", tenant="tenant")
def hold(tenant: str, name: str, path: str) -> None:
    work.hold(tenant, name, path)


@tenant_job("bench", tenant="tenant", key="name", unique_for=timedelta(hours=1))
def once(tenant: str, name: str) -> None:
    work.nothing(tenant, name)


def _decide(job: TenantJob, tenant_queue: TenantQueue) -> Reschedule:
    """Takes as long as a query or two."""
    time.sleep(0.002)
    return Reschedule(600)


@tenant_job("bench", tenant="tenant", on_busy=_decide)
def asking(tenant: str, name: str, seconds: float) -> None:
    work.sleep(tenant, name, seconds)
