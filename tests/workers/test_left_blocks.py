"""A job that leaves a block of ``atomic()`` which ends later, as a generator does that nobody has gone through.

Python ends that when it is collected, and Django then ends whatever transaction is open by that time.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import django_rq
import pytest
from django.db import transaction
from rq.worker import BaseWorker

from tenant_slots import garbage, tenant_job
from tenant_slots.db import sessions
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tenant_slots.workers import sessions as sessions_of_workers
from tests.factories import burst, counters_match

pytestmark = pytest.mark.django_db(transaction=True)

kept: list[Iterator[TenantQueue]] = []


def rows() -> Iterator[TenantQueue]:
    with transaction.atomic():
        yield from TenantQueue.objects.all()


@tenant_job("imports", tenant="tenant")
def leave_garbage(tenant: str) -> int:
    going_on = rows()
    next(going_on)
    circle: list[object] = [going_on]
    circle.append(circle)
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def leave_error(tenant: str) -> None:
    """Which holds the block as long as it is dealt with, and then is garbage, as it is a name in its own traceback."""
    going_on = rows()
    next(going_on)
    error = ValueError(tenant)
    raise error


@tenant_job("imports", tenant="tenant")
def leave_kept(tenant: str) -> int:
    kept.append(rows())
    next(kept[0])
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def write(tenant: str) -> int:
    with transaction.atomic():
        TenantQueue.objects.create(tenant="written", queue="imports")
        kept.clear()
        gc.collect()
    return os.getpid()


@pytest.fixture(autouse=True)
def _collected_when_told() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    kept.clear()
    gc.collect()
    sessions.take_left_block()


@pytest.fixture
def _nobody_minds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_collect", lambda: None)
    monkeypatch.setattr(sessions_of_workers, "take_left_block", lambda: False)


def is_written() -> bool:
    return TenantQueue.objects.filter(tenant="written").exists()


LEFT = [
    (TenantPreforkWorker, leave_garbage),
    (TenantPreforkWorker, leave_error),
    (TenantPreforkWorker, leave_kept),
    (TenantSimpleWorker, leave_garbage),
    (TenantSimpleWorker, leave_error),
]


@pytest.mark.parametrize(("worker_class", "leave"), [*LEFT, (TenantWorker, leave_kept)])
def test_what_the_next_job_writes_in_a_block_of_its_own_is_committed(
    worker_class: type[BaseWorker], leave: object
) -> None:
    leave.enqueue("acme")  # type: ignore[attr-defined]
    write.enqueue("acme")
    burst(worker_class)
    assert is_written()
    assert counters_match()


@pytest.mark.parametrize(("worker_class", "leave"), LEFT)
def test_of_plain_rq_jobs_too(worker_class: type[BaseWorker], leave: object) -> None:
    queue = django_rq.get_queue("imports")
    queue.enqueue(leave, "acme")
    queue.enqueue(write, "acme")
    burst(worker_class)
    assert is_written()
    assert counters_match()


@pytest.mark.usefixtures("_nobody_minds")
@pytest.mark.parametrize(("worker_class", "leave"), [LEFT[0], LEFT[2], LEFT[3]])
def test_control_where_nobody_minds_it_is_lost(worker_class: type[BaseWorker], leave: object) -> None:
    leave.enqueue("acme")  # type: ignore[attr-defined]
    write.enqueue("acme")
    burst(worker_class)
    assert [job.state for job in TenantJob.objects.order_by("pk")] == ["finished", "finished"]
    assert not is_written()
