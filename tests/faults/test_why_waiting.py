"""Why is this job waiting? What is said of it beside real workers, as these come, are stopped, and are killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import django_rq
import pytest
from rq import Worker

from tenant_slots.admin import reasons
from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import fresh
from tests.faults.conftest import FaultWorkers
from tests.faults.servers import Valkey
from tests.history import History
from tests.processes import wait_until

STOCK = "rq.Worker"


@dataclass(frozen=True)
class Scene:
    workers: FaultWorkers
    history: History
    door: Path

    def running(self, tenant: str, worker_class: str | None = None) -> TenantJob:
        """A job that a worker has begun, and that lasts until the door opens."""
        self.workers.start(worker_class=worker_class)
        job = self.enqueued(tenant)
        wait_until(lambda: fresh(job).state == State.RUNNING)
        return job

    def enqueued(self, tenant: str) -> TenantJob:
        return jobs.wait_for_file.enqueue(tenant, tenant, self.history.path, str(self.door))


@pytest.fixture
def scene(workers: FaultWorkers, history: History, door: Path) -> Scene:
    return Scene(workers, history, door)


def why(job: TenantJob) -> str:
    return " ".join(reasons.why_waiting(TenantJob.objects.select_related("tenant_queue").get(pk=job.pk)))


def is_said(job: TenantJob, *texts: str) -> bool:
    """Any of these."""
    said = why(job)
    return any(text in said for text in texts)


def beside_a_busy_one(scene: Scene) -> TenantJob:
    scene.running("beta")
    return scene.enqueued("acme")


def behind_one_that_runs(scene: Scene) -> TenantJob:
    scene.running("acme")
    return scene.enqueued("acme")


def behind_one_of_a_stock_worker(scene: Scene) -> TenantJob:
    scene.running("acme", worker_class=STOCK)
    return scene.enqueued("acme")


def it_starts_its_shutdown(scene: Scene) -> None:
    scene.workers.kill(number=signal.SIGTERM)


def it_is_killed(scene: Scene) -> None:
    scene.workers.kill()


def it_is_killed_and_its_record_expires(scene: Scene) -> None:
    """As Redis lets it, a minute after the worker has written it last."""
    scene.workers.stop()
    connection = django_rq.get_connection("imports")
    connection.delete(*Worker.all_keys(connection=connection))


Stage = Callable[[Scene], TenantJob]
Happens = Callable[[Scene], None]

CASES: dict[str, tuple[Stage, str, Happens, tuple[str, ...]]] = {
    "only one that shuts down": (
        beside_a_busy_one,
        "1 worker of queue imports is alive, 1 busy.",
        it_starts_its_shutdown,
        ("1 worker of queue imports is alive, but ends after the job that it runs.",),
    ),
    "only a killed one": (
        beside_a_busy_one,
        "1 worker of queue imports is alive, 1 busy.",
        it_is_killed,
        ("No worker of queue imports is alive.", "it was killed, or its host is gone."),
    ),
    "a stale owner before it, and nobody sweeps": (
        behind_one_that_runs,
        "at its limit (slots taken: 1 of 1). Held by",
        it_is_killed,
        ("has sent no heartbeat since", "Nobody has swept for"),
    ),
    "a stock worker before it is gone": (
        behind_one_of_a_stock_worker,
        "at its limit (slots taken: 1 of 1). Held by",
        it_is_killed_and_its_record_expires,
        ("which RQ does not know any more",),
    ),
}
"""What is enqueued beside which worker, what is said then, what happens to the worker, and what is said after that."""


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_the_workers_is_said(case: str, scene: Scene) -> None:
    stage, before, happens, after = CASES[case]
    job = stage(scene)
    wait_until(lambda: is_said(job, before) and not is_said(job, *after), message="the control: all is well so far")
    happens(scene)
    wait_until(lambda: all(is_said(job, text) for text in after))


def test_a_worker_of_another_queue_is_none_and_one_of_its_own_runs_the_job(scene: Scene) -> None:
    scene.workers.start(queues=("reports",))
    job = scene.enqueued("acme")
    assert "No worker of queue imports is alive. Start one: manage.py rqworker imports." in why(job)
    scene.workers.start()
    wait_until(lambda: why(job) == "")


def test_redis_that_does_not_answer_is_not_taken_for_workers_that_are_gone(scene: Scene, valkey: Valkey) -> None:
    job = beside_a_busy_one(scene)
    wait_until(lambda: "1 worker of queue imports is alive, 1 busy." in why(job))
    valkey.stop()
    wait_until(lambda: "Redis does not answer" in why(job))
    assert "No worker" not in why(job)
