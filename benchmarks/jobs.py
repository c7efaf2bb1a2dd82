"""The functions of ``work.py`` as tenant jobs."""

from __future__ import annotations

from benchmarks import work
from tenant_slots import tenant_job


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
