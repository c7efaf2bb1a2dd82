"""What tests of workers with work-horses share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tenant_slots.models import State, TenantJob, TenantQueue
from tests.faults.conftest import SHORT, FaultWorkers
from tests.processes import test_database_url as database_url
from tests.processes import wait_until

LEASE = SHORT["LEASE_TTL"]

UNTIL_JUDGED = 90.0
"""Seconds for a run to be taken for lost: on a busy machine sweeps are given up, and each of them breaks contact."""

NO_PROMISE = 1000.0
"""Seconds, for an observer of a test in which nobody is there to free a slot, or to take a job."""


def ours(kind: str) -> str:
    return f"tenant_slots.workers.Tenant{kind}"


def of_tests(name: str, kind: str = "Worker") -> str:
    """Where a control is of what both kinds share, one of them shows it."""
    return f"tests.faults.workers.{name}{kind}"


def leases_pass(number: float) -> None:
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > number * LEASE)


def ran_once(job: TenantJob) -> bool:
    job.refresh_from_db()
    return (job.state, job.attempt, job.crashes, job.interruptions) == (State.FINISHED, 1, 0, 0)


def all_live(workers: FaultWorkers) -> bool:
    return all(process.poll() is None for process in workers.processes)


@contextmanager
def locked_by_somebody(row: TenantQueue) -> Iterator[None]:
    with psycopg.connect(database_url()) as session:
        session.execute("SELECT 1 FROM tenant_slots_tenantqueue WHERE id = %s FOR UPDATE", [row.pk])
        yield
        session.rollback()
