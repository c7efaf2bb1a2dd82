"""A job that leaves an event loop running, as Playwright's goes on in a greenlet until somebody stops it.

Python says of the whole thread that a loop runs there, and Django refuses each query.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import django_rq
import greenlet
import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.test import override_settings
from rq.job import JobStatus
from rq.worker import BaseWorker, SimpleWorker, Worker

from tenant_slots import tenant_job
from tenant_slots.models import TenantQueue
from tenant_slots.running import coroutines, runner
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, baseline, riding, simple
from tests.factories import counters_match, fresh

pytestmark = pytest.mark.django_db(transaction=True)

OURS = [TenantPreforkWorker, TenantWorker, TenantSimpleWorker]

kept: list[tuple[greenlet.greenlet, asyncio.AbstractEventLoop]] = []


async def _turn_away() -> None:
    parent = greenlet.getcurrent().parent
    assert parent is not None, "nobody to turn to"
    parent.switch()


def go_on() -> None:
    loop = asyncio.new_event_loop()
    going_on = greenlet.greenlet(lambda: loop.run_until_complete(_turn_away()))
    going_on.switch()
    kept.append((going_on, loop))


@tenant_job("imports", tenant="tenant")
def leave_loop(tenant: str, fails: bool = False) -> int:
    TenantQueue.objects.count()  # in a session that is to be put back
    go_on()
    if fails:
        raise ValueError(tenant)
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def ask_database(tenant: str) -> int:
    TenantQueue.objects.count()
    return os.getpid()


@tenant_job("imports", tenant="tenant", on_success=lambda job, result: go_on())
def leave_loop_when_done(tenant: str) -> None: ...


@contextmanager
def asks_at_its_end(job: object) -> Iterator[None]:
    """As one that takes back what it has set in the session."""
    yield
    TenantQueue.objects.count()


@pytest.fixture(autouse=True)
def _ended_loops() -> Iterator[None]:
    yield
    asyncio._set_running_loop(None)
    coroutines._has_left_loop = False
    for going_on, loop in kept:
        going_on.switch()
        loop.close()
    kept.clear()


@pytest.fixture
def _nobody_minds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (coroutines, runner, riding, simple):
        monkeypatch.setattr(module, "in_same_loop", nullcontext)


def burst(worker_class: type[BaseWorker]) -> None:
    queue = django_rq.get_queue("imports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="CRITICAL")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("worker_class", [*OURS, Worker, SimpleWorker])
def test_its_end_is_recorded_and_the_next_job_runs(worker_class: type[BaseWorker], fails: bool) -> None:
    jobs = [leave_loop.enqueue("acme", fails), ask_database.enqueue("acme")]
    burst(worker_class)
    ends = ["failed" if fails else "finished", "finished"]
    assert [(fresh(job).state, job.attempt) for job in jobs] == [(end, 1) for end in ends]
    assert worker_class is not TenantPreforkWorker or fails or jobs[0].result != jobs[1].result, "the same work-horse"
    assert counters_match()


@pytest.mark.parametrize("worker_class", [*OURS, Worker, SimpleWorker])
def test_of_a_plain_rq_job_too(worker_class: type[BaseWorker]) -> None:
    queue = django_rq.get_queue("imports")
    jobs = [queue.enqueue(leave_loop, "acme"), queue.enqueue(ask_database, "acme")]
    burst(worker_class)
    assert [job.get_status(refresh=True) for job in jobs] == [JobStatus.FINISHED, JobStatus.FINISHED]
    assert counters_match()


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("worker_class", [*OURS, Worker, SimpleWorker])
def test_its_context_may_ask_the_database_at_its_end(worker_class: type[BaseWorker], is_plain: bool) -> None:
    queue = django_rq.get_queue("imports")
    with override_settings(TENANT_SLOTS={"JOB_CONTEXT": f"{__name__}.asks_at_its_end"}):
        plain = queue.enqueue(leave_loop, "acme") if is_plain else None
        ours = None if is_plain else leave_loop.enqueue("acme")
        burst(worker_class)
    assert plain is None or plain.get_status(refresh=True) == JobStatus.FINISHED
    assert ours is None or fresh(ours).state == "finished"


@pytest.mark.parametrize("worker_class", [*OURS, Worker, SimpleWorker])
def test_a_callback_may_leave_one_too(worker_class: type[BaseWorker]) -> None:
    jobs = [leave_loop_when_done.enqueue("acme"), ask_database.enqueue("acme")]
    burst(worker_class)
    assert [(fresh(job).state, job.attempt) for job in jobs] == [("finished", 1), ("finished", 1)]
    assert counters_match()


@pytest.mark.usefixtures("_nobody_minds")
def test_control_a_worker_that_minds_no_loop_does_not_record_how_the_job_ended() -> None:
    job = leave_loop.enqueue("acme")
    with suppress(SystemExit, SynchronousOnlyOperation):
        burst(TenantSimpleWorker)
    asyncio._set_running_loop(None)
    assert fresh(job).state == "running"


@pytest.mark.usefixtures("_nobody_minds")
def test_control_in_a_work_horse_that_goes_on_the_next_job_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "has_left_loop", lambda: False)
    jobs = [leave_loop.enqueue("acme"), ask_database.enqueue("acme")]
    burst(TenantPreforkWorker)
    assert [fresh(job).state for job in jobs] == ["finished", "failed"]


def test_whoever_calls_a_job_from_a_running_loop_goes_on_in_it() -> None:
    async def call() -> asyncio.AbstractEventLoop:
        with coroutines.in_same_loop():
            asyncio._set_running_loop(None)
        return asyncio.get_running_loop()

    with asyncio.Runner() as loops:
        assert loops.run(call()) is loops.get_loop()
    assert coroutines.has_left_loop()
