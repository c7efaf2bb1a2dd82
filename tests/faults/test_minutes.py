"""A process that counts minutes for the overview is killed in the middle of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection, transaction

from tenant_slots.models import QueueMinute
from tenant_slots.models.queue_minute import ALL_QUEUES
from tests.factories import tenant_queue
from tests.processes import ROOT, environment, somebody_waits_for_a_lock, wait_until
from tests.repair.test_minutes import count, ended, start_of, this_minute, total

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


@pytest.fixture
def sweep() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_it_had_not_committed_is_counted_by_the_next(
    sweep: list[subprocess.Popen[bytes]], is_killed: bool
) -> None:
    """It has written the rows of all queues when it waits for that of one. Without the kill it counts: the control."""
    row, now = tenant_queue(), this_minute()
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - 30))
    for minute in range(now - 29, now):
        ended(row, minute)
    with transaction.atomic():
        QueueMinute.objects.create(queue="imports", minute=start_of(now - 2))
        command = [sys.executable, "-W", "ignore", "manage.py", "slots_sweep"]
        sweep.append(subprocess.Popen(command, cwd=ROOT, env=environment()))
        wait_until(somebody_waits_for_a_lock, message="the sweep did not come so far")
        if is_killed:
            sweep[0].kill()
            sweep[0].wait()
        transaction.set_rollback(True)
    if is_killed:
        assert total("finished") == 0
        count()
    else:
        assert sweep[0].wait(30) == 0
    assert total("finished") == total("finished", "imports") == 29
