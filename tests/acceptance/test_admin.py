"""What staff do in the admin reaches real workers at once."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from tenant_slots.models import State
from tests import jobs
from tests.admin.site import QUEUES
from tests.factories import tenant_queue
from tests.history import History
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_jobs_start_when_their_limit_is_raised_without_a_sweep(
    boss: Client, workers: Workers, history: History
) -> None:
    workers.variables["TEST_TENANT_SLOTS"] = json.dumps({"SWEEP_INTERVAL": 600})
    row = tenant_queue(max_job=0)
    workers.start()
    job = jobs.record.enqueue("acme", "first", history.path)
    assert job.state == State.WAITING

    boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": 1, "version": 0}, headers={"Accept": "application/json"})

    wait_until(lambda: history.started() == ["first"])
