"""What Python collects of a job is collected before the next one begins in the same process."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import django_rq
import pytest
from django.db import connection, transaction
from rq.worker import BaseWorker

from tenant_slots import garbage, tenant_job
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests.factories import burst, tenant_queue

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no cursors on the server"),
]

CLASSES = [TenantPreforkWorker, TenantSimpleWorker]


def leave_cursor(in_circle: bool) -> list[object]:
    """Half read: when it is collected, Django closes a cursor that the server has closed with the session's others."""
    rows = TenantQueue.objects.iterator(chunk_size=1)
    next(rows)
    left: list[object] = [rows]
    if in_circle:
        left.append(left)
    return left


@tenant_job("imports", tenant="tenant")
def leave(tenant: str) -> int:
    leave_cursor(in_circle=True)
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def fail(tenant: str) -> None:
    left = leave_cursor(in_circle=False)
    error = ValueError(left)
    raise error


@tenant_job("imports", tenant="tenant")
def write(tenant: str) -> int:
    with transaction.atomic():
        TenantQueue.objects.create(tenant="written", queue="imports")
        gc.collect()
        assert TenantQueue.objects.exists()
    return os.getpid()


@pytest.fixture(autouse=True)
def _collected_when_told() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def state_after(worker_class: type[BaseWorker], enqueue_first: Callable[[], object]) -> str:
    """Of a job that has Python collect what there is while it writes."""
    tenant_queue(), tenant_queue("other")
    enqueue_first()
    job = write.enqueue("other")
    burst(worker_class)
    job.refresh_from_db()
    return job.state


FIRST = {
    "leaves garbage": lambda: leave.enqueue("acme"),
    "fails": lambda: fail.enqueue("acme"),
    "plain": lambda: django_rq.get_queue("imports").enqueue(leave, "acme"),
    "plain, fails": lambda: django_rq.get_queue("imports").enqueue(fail, "acme"),
}


@pytest.mark.parametrize("worker_class", CLASSES)
@pytest.mark.parametrize("first", FIRST)
def test_a_cursor_that_a_job_left_is_closed_in_no_transaction_of_the_next_one(
    worker_class: type[BaseWorker], first: str
) -> None:
    assert state_after(worker_class, FIRST[first]) == State.FINISHED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("worker_class", CLASSES)
def test_control_it_is_where_nothing_is_collected_in_between(
    worker_class: type[BaseWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "collect_between_jobs", lambda: None)
    assert state_after(worker_class, FIRST["leaves garbage"]) == State.FAILED


IN_CONTEXT: ContextVar[object] = ContextVar("in_context", default=None)


def _set_and_set_back() -> Iterator[None]:
    """As what a generator does inside of a block that sets something for the time being."""
    before = os.getcwd()
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('application_name', 'of everybody', false)")
    os.chdir("/")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('application_name', 'of the last job', false)")
        os.chdir(before)
        os.environ["LEFT_BY_GARBAGE"] = "yes"


def _half_way(in_circle: bool) -> list[object]:
    going = _set_and_set_back()
    next(going)
    left: list[object] = [going]
    if in_circle:
        left.append(left)
    return left


class Handler(list[object]):
    def __call__(self, *_: object) -> None: ...


HOLDERS: dict[str, Callable[[list[object]], object]] = {
    "nobody": lambda left: None,
    "a context variable": IN_CONTEXT.set,
    "a signal handler": lambda left: signal.signal(signal.SIGUSR2, Handler(left)),
    "a tracer of threads": lambda left: threading.settrace(Handler(left)),
}


@tenant_job("imports", tenant="tenant")
def leave_half_way(tenant: str, holder: str, in_circle: bool) -> None:
    os.chdir("/usr")
    HOLDERS[holder](_half_way(in_circle))


@tenant_job("imports", tenant="tenant")
def look_around(tenant: str) -> list[object]:
    gc.collect()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name')")
        name = cursor.fetchone()[0]
    return [name == "of the last job", os.getcwd(), os.environ.get("LEFT_BY_GARBAGE")]


@pytest.mark.parametrize("in_circle", [False, True])
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_a_job_has_somewhere_in_its_process_ends_before_the_next_one_too(holder: str, in_circle: bool) -> None:
    before = look_around.enqueue("other")
    leave_half_way.enqueue("acme", holder, in_circle)
    after = look_around.enqueue("other")
    burst(TenantPreforkWorker)
    assert TenantJob.objects.get(pk=after.pk).result == TenantJob.objects.get(pk=before.pk).result


class Held:
    """Something that a job uses."""


held: list[weakref.ref[Held]] = []


class Unreadable(Exception):
    """Another error is raised in its place, which can be told to Redis."""

    def __str__(self) -> str:
        return "\udcff"


ERRORS = {"readable": ValueError, "unreadable": Unreadable}


@tenant_job("imports", tenant="tenant")
def fail_with_something(tenant: str, kind: str) -> None:
    something = Held()
    held.append(weakref.ref(something))
    raise ERRORS[kind]


@tenant_job("imports", tenant="tenant")
def is_something_held(tenant: str) -> list[bool]:
    return [reference() is not None for reference in held]


@pytest.mark.parametrize("kind", ERRORS)
def test_the_error_of_a_job_holds_nothing_once_it_has_been_dealt_with(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nobody collects anything: it is no part of a circle, as of a frame of ours that its traceback holds."""
    monkeypatch.setattr(garbage, "collect_between_jobs", lambda: None)
    fail_with_something.enqueue("acme", kind)
    job = is_something_held.enqueue("acme")
    burst(TenantPreforkWorker)
    job.refresh_from_db()
    assert job.result == [False]


cache: list[list[int]] = []


@tenant_job("imports", tenant="tenant")
def fill_cache(tenant: str) -> int:
    cache.extend([number] for number in range(300_000))
    return gc.get_freeze_count()


@tenant_job("imports", tenant="tenant")
def look_at_what_was_put_aside(tenant: str) -> int:
    return gc.get_freeze_count()


@pytest.mark.parametrize("worker_class", CLASSES)
def test_much_that_stays_is_looked_at_once_by_each_worker(worker_class: type[BaseWorker]) -> None:
    for _ in range(2):
        gc.unfreeze()
        jobs = [task.enqueue("acme") for task in (fill_cache, look_at_what_was_put_aside)]
        burst(worker_class)
        before, after = [TenantJob.objects.get(pk=job.pk).result for job in jobs]
        assert after - before > 300_000
    if worker_class is TenantSimpleWorker:
        assert gc.get_freeze_count() == 0, "and again when it has ended"
    cache.clear()


def never_end() -> Iterator[int]:
    try:
        yield 1
    finally:
        time.sleep(600)


def never_end_block() -> Iterator[int]:
    with transaction.atomic():
        yield from never_end()


@tenant_job("imports", tenant="tenant")
def leave_what_never_ends(tenant: str, in_block: bool) -> int:
    """Several: Python goes on with the next one when one is interrupted."""
    for _ in range(3):
        going = never_end_block() if in_block else never_end()
        next(going)
        left: list[object] = [going]
        left.append(left)
    return os.getpid()


@tenant_job("imports", tenant="tenant")
def leave_in_context(tenant: str) -> None:
    going = never_end()
    next(going)
    IN_CONTEXT.set(going)


@tenant_job("imports", tenant="tenant")
def fail_beside_what_never_ends(tenant: str) -> None:
    """The error holds this frame, and that holds these."""
    first, second = never_end(), never_end()
    next(first), next(second)
    raise ValueError(tenant)


class Lasting(asyncio.SelectorEventLoop):
    def close(self) -> None:
        try:
            time.sleep(600)
        finally:
            super().close()


@tenant_job("imports", tenant="tenant")
def leave_loop(tenant: str) -> None:
    asyncio.set_event_loop(Lasting())


def test_nor_does_a_loop_that_takes_long_to_close_hold_its_slot_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "SECONDS_TO_END", 1)
    began = time.monotonic()
    job, after = leave_loop.enqueue("acme"), write.enqueue("other")
    burst(TenantPreforkWorker)
    assert [TenantJob.objects.get(pk=one.pk).state for one in (job, after)] == [State.FINISHED] * 2
    assert time.monotonic() - began < 300, "it was waited for"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])
@pytest.mark.parametrize("leaves", [fail_beside_what_never_ends, leave_in_context])
def test_nor_is_what_a_failed_job_held_waited_for_or_what_one_keeps_in_its_context(
    worker_class: type[BaseWorker], leaves: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "SECONDS_TO_END", 1)
    job, after = leaves.enqueue("acme"), write.enqueue("other")
    began = time.monotonic()
    burst(worker_class)
    assert time.monotonic() - began < 180, "it was waited for"
    assert TenantJob.objects.get(pk=job.pk).has_ended
    assert TenantJob.objects.get(pk=after.pk).state == State.FINISHED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("worker_class", "in_block"),
    [(TenantPreforkWorker, False), (TenantSimpleWorker, False), *((kind, True) for kind in (*CLASSES, TenantWorker))],
)
def test_what_does_not_come_to_its_end_is_left_after_a_while(
    worker_class: type[BaseWorker], in_block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "SECONDS_TO_END", 1)
    job, after = leave_what_never_ends.enqueue("acme", in_block), write.enqueue("other")
    began = time.monotonic()
    burst(worker_class)
    assert time.monotonic() - began < 300, "it was waited for"
    assert [TenantJob.objects.get(pk=one.pk).state for one in (job, after)] == [State.FINISHED] * 2
