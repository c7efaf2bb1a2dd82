"""A web process under gevent: its threads are greenlets, which go on only where one of them waits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processes import ROOT, environment

pytestmark = pytest.mark.django_db(transaction=True)

ENQUEUE_CANCEL_AND_HOLD = """
from gevent import monkey; monkey.patch_all()
import django; django.setup()
from django.test import override_settings
from tenant_slots import hold_slot
from tests import jobs
from tests.factories import fresh
from tests.processes import wait_until

assert monkey.is_module_patched("threading")
with override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.2}):
    job = jobs.add.enqueue(1, 2, tenant="acme")
    assert job.cancel()
    assert fresh(job).state == "canceled"
    with hold_slot("acme", "imports", timeout=5) as reservation:
        begun = fresh(reservation.job).beat_at
        wait_until(lambda: fresh(reservation.job).beat_at > begun)
        assert (reservation.job.state, reservation.is_lost) == ("running", False)
    assert fresh(reservation.job).state == "finished"
print("all is well")
"""


def test_jobs_are_enqueued_and_canceled_and_a_slot_is_held_from_beat_to_beat() -> None:
    command = [sys.executable, "-W", "ignore", "-c", ENQUEUE_CANCEL_AND_HOLD]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert ended.stdout == "all is well\n", ended.stderr
