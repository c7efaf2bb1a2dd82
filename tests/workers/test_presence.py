"""A worker without work-horses says by another thread that it runs a job, and no lease waits for that."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import django_rq
import pytest
from django.test import override_settings
from redis.exceptions import ReadOnlyError

from tenant_slots import fair_order, tenant_job
from tenant_slots.models import State, TenantJob
from tenant_slots.workers import TenantSimpleWorker, presence
from tenant_slots.workers.presence import Presence
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ASKED, ANSWERS = threading.Event(), threading.Event()
"""Whether the sign is being given, and whether Redis answers it."""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signs and heartbeats follow each other at once."""
    ASKED.clear()
    ANSWERS.clear()
    monkeypatch.setattr(presence, "SECONDS_BETWEEN_SIGNS", 0.01)
    with override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.05}):
        yield
    ANSWERS.set()


def work(worker_class: type[TenantSimpleWorker] = TenantSimpleWorker) -> TenantSimpleWorker:
    queue = django_rq.get_queue("imports")
    worker = worker_class([queue], connection=queue.connection)
    worker.work(burst=True, logging_level="ERROR")
    return worker


@tenant_job("imports", tenant="tenant")
def see_heartbeats_while_redis_hangs(tenant: str) -> None:
    assert ASKED.wait(30)
    try:
        for _ in range(2):
            before = TenantJob.objects.get().beat_at
            wait_until(lambda before=before: TenantJob.objects.get().beat_at > before, timeout=5)
    finally:
        ANSWERS.set()


class OneThreadForAll(TenantSimpleWorker):
    """That of the heartbeats gives its signs too."""

    def look_at_clock(self) -> None:
        self._say_that_it_runs_a_job()


@pytest.mark.parametrize(
    ("worker_class", "state"),
    [(TenantSimpleWorker, State.FINISHED), pytest.param(OneThreadForAll, State.FAILED, id="control: one thread")],
)
def test_no_lease_waits_for_a_redis_that_hangs(
    worker_class: type[TenantSimpleWorker], state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            ASKED.set()
            ANSWERS.wait(30)

    see_heartbeats_while_redis_hangs.enqueue("acme")
    monkeypatch.setattr(fair_order, "show_presence", hang)
    work(worker_class)
    assert TenantJob.objects.get().state == state


@tenant_job("imports", tenant="tenant")
def wait_for_sign(tenant: str) -> None:
    assert ASKED.wait(30)


@pytest.mark.parametrize("error", [ReadOnlyError("a replica"), RuntimeError("a bug")])
def test_no_error_of_the_thread_concerns_the_job_and_none_ends_the_thread(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[object] = []

    def fail(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            said.append(error)
            if len(said) > 1:
                ASKED.set()
            raise error

    wait_for_sign.enqueue("acme")
    monkeypatch.setattr(fair_order, "show_presence", fail)
    work()
    assert TenantJob.objects.get().state == State.FINISHED
    assert str(error) in caplog.text


def test_nothing_is_said_before_a_job_and_after_it() -> None:
    """Or a worker that has ended would count as there, and be on RQ's record again."""
    said: list[str] = []

    def say() -> None:
        said.append("begins")
        ASKED.set()
        assert ANSWERS.wait(30)
        said.append("ends")

    shown = Presence(say)
    shown.start()
    with shown.shown():
        assert ASKED.wait(30)
        threading.Timer(0.2, ANSWERS.set).start()
    said.append("the job is over")
    ASKED.clear()
    assert not ASKED.wait(0.2), "it was said after the job"
    shown.stop()
    assert said[-3:] == ["begins", "ends", "the job is over"]


def test_a_child_of_the_job_that_leaves_it_waits_for_no_sign_that_nobody_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forked while one was being given."""
    monkeypatch.setattr(presence, "SECONDS_TO_SAY", 0.1)

    def say() -> None:
        ASKED.set()
        ANSWERS.wait(30)

    shown = Presence(say)
    shown.start()
    child = -1
    try:
        with shown.shown():
            assert ASKED.wait(30)
            child = os.fork()
    finally:
        if child == 0:
            os._exit(0)
    wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, 10, "it hangs")
    ANSWERS.set()
    shown.stop()


def test_the_thread_ends_with_its_worker() -> None:
    assert not work().presence.is_alive()
