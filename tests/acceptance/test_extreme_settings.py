"""Workers whose settings are all at an end of what the system checks accept."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from tenant_slots.models import State, TenantJob
from tenant_slots.setting_rules import LONGEST, LONGEST_LEASE, SHORTEST_LEASE
from tests import jobs
from tests.factories import counters_match, tenant_queue
from tests.processes import Workers, wait_until

HIGHEST: dict[str, Any] = {
    "RESCHEDULE_DELAY": LONGEST,
    "BEAT_INTERVAL": LONGEST_LEASE / 2,
    "LEASE_TTL": LONGEST_LEASE,
    "SWEEP_INTERVAL": LONGEST,
    "MAX_CRASHES": 10**400,
    "MAX_INTERRUPTIONS": 10**400,
    "UNKNOWN_TASK_WAIT": LONGEST,
    "RETENTION": LONGEST,
    "QUEUE_WEIGHTS": {"reports": sys.float_info.max, "imports": 5e-324},
    "JOBS_PER_HORSE": 10**400,
    "HORSE_MAX_RSS": 10**400,
}

LOWEST: dict[str, Any] = {
    "RESCHEDULE_DELAY": 5e-324,
    "BEAT_INTERVAL": 5e-324,
    "LEASE_TTL": SHORTEST_LEASE,
    "SWEEP_INTERVAL": 5e-324,
    "MAX_CRASHES": 0,
    "MAX_INTERRUPTIONS": 0,
    "UNKNOWN_TASK_WAIT": 0,
    "QUEUE_WEIGHTS": {"reports": 5e-324, "imports": 5e-324},
    "JOBS_PER_HORSE": 1,
    "HORSE_MAX_RSS": 1,
}


@pytest.mark.parametrize("worker_class", ["TenantWorker", "TenantPreforkWorker"])
@pytest.mark.parametrize("configured", [HIGHEST, LOWEST], ids=["highest", "lowest"])
def test_a_worker_runs_its_jobs(configured: dict[str, Any], worker_class: str, workers: Workers) -> None:
    with override_settings(TENANT_SLOTS=configured):
        assert not [one for one in run_checks(tags=["tenant_slots"]) if one.is_serious()]
    tenant_queue("acme", queue="reports", max_job=2)
    for _ in range(3):
        jobs.add.enqueue(1, 2, tenant="acme")
    workers.variables = {"TEST_TENANT_SLOTS": json.dumps(configured)}
    workers.start(queues=("reports", "imports"), worker_class=f"tenant_slots.workers.{worker_class}")
    wait_until(lambda: TenantJob.objects.filter(state=State.FINISHED).count() == 3)
    wait_until(counters_match)
