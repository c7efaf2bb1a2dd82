"""The decorator's ``timeout`` holds for plain RQ jobs too, unless the call has one of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import django_rq
import pytest
from rq import Queue
from rq.cron import CronJob
from rq.job import Job, JobStatus

from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import counters_match, tenant_queue, work
from tests.processes import Workers

pytestmark = pytest.mark.django_db(transaction=True)

CLASSES = [
    *(f"tenant_slots.workers.Tenant{kind}Worker" for kind in ("", "Prefork", "Simple")),
    "rq.Worker",
    "rq.SimpleWorker",
]


@pytest.mark.parametrize("worker_class", CLASSES)
@pytest.mark.parametrize("tenant", ["acme", ""])
def test_a_plain_job_has_the_decorators_timeout(worker_class: str, tenant: str, workers: Workers) -> None:
    queue = django_rq.get_queue("reports")
    plain = queue.enqueue(jobs.say_timeout, tenant)
    own = queue.enqueue(jobs.say_timeout, tenant, job_timeout=33)
    without = queue.enqueue(jobs.say_timeout_of_queue, tenant)
    workers.run("--burst", queues=("reports",), worker_class=worker_class)
    assert [job.return_value(refresh=True) for job in (plain, own, without)] == [600, 33, 180]
    assert [job.get_status() for job in (plain, own, without)] == [JobStatus.FINISHED] * 3
    assert counters_match()


@pytest.mark.parametrize("worker_class", CLASSES[:3])
def test_a_job_whose_id_could_be_one_of_ours_is_known_to_rq_as_any_other(worker_class: str, workers: Workers) -> None:
    rq_job = django_rq.get_queue("reports").enqueue(jobs.say_timeout, "acme", job_id=f"{uuid4()}-7")
    workers.run("--burst", queues=("reports",), worker_class=worker_class)
    assert rq_job.return_value(refresh=True) == 600
    assert Job.fetch(rq_job.id, rq_job.connection).worker_name
    assert counters_match()


def by_cron(queue: Queue, name: str) -> Job:
    return CronJob(name, jobs.say_timeout, args=("acme",), interval=60).enqueue(queue.connection)


def by_a_queue_of_rqs_own(queue: Queue, name: str) -> Job:
    return Queue(name, connection=queue.connection).enqueue(jobs.say_timeout, "acme")


@pytest.mark.parametrize(
    ("enqueue", "seconds"),
    [
        (by_cron, 600),
        (by_a_queue_of_rqs_own, 600),
        (lambda queue, _: queue.enqueue(jobs.say_timeout, "acme"), 600),
        (lambda queue, _: queue.enqueue(jobs.say_timeout, "acme", job_timeout=33), 33),
    ],
)
def test_so_has_one_of_whoever_does_not_know_the_timeout_of_its_queue(
    settings: Any, enqueue: Callable[[Queue, str], Job], seconds: int
) -> None:
    settings.RQ_QUEUES = {name: {**options, "DEFAULT_TIMEOUT": 360} for name, options in settings.RQ_QUEUES.items()}
    queue = django_rq.get_queue("reports")
    assert queue._default_timeout == 360
    rq_job = enqueue(queue, "reports")
    work("reports")
    assert rq_job.return_value(refresh=True) == seconds


def test_a_shorter_one_ends_the_job_and_frees_its_slot(workers: Workers) -> None:
    rq_job = django_rq.get_queue("reports").enqueue(jobs.sleep_beyond_timeout, "acme")
    workers.run("--burst", queues=("reports",))
    assert rq_job.get_status() == JobStatus.FAILED
    assert "JobTimeoutException" in TenantJob.objects.get().error
    assert counters_match()


def test_neither_a_retry_nor_its_turn_is_lost_by_it() -> None:
    queue = django_rq.get_queue("reports")
    first = queue.enqueue(jobs.say_timeout, "acme")
    queue.enqueue(jobs.add, 1, 2, tenant="acme")
    work()
    first.refresh()
    assert not first.number_of_retries
    done = list(TenantJob.objects.order_by("ended_at").values_list("rq_job_id", flat=True))
    assert done[0] == first.id


def test_a_dependent_does_not_fire_before_it() -> None:
    tenant_queue(queue="reports", max_job=0)
    queue = django_rq.get_queue("reports")
    parent = queue.enqueue(jobs.say_timeout, "acme")
    child = queue.enqueue(jobs.add, 1, 2, tenant="other", depends_on=parent)
    work()
    assert child.get_status() == JobStatus.DEFERRED
    assert TenantJob.objects.get(rq_job_id=parent.id).state == State.WAITING


def test_a_job_on_a_synchronous_queue_just_runs() -> None:
    queue = Queue("reports", connection=django_rq.get_connection("reports"), is_async=False)
    assert queue.enqueue(jobs.say_timeout, "acme").is_finished


def test_a_queue_that_the_project_does_not_have_keeps_rqs_timeout() -> None:
    connection = django_rq.get_connection("reports")
    queue = Queue("unknown", connection=connection)
    rq_job = queue.enqueue(jobs.say_timeout, "")
    from tests.factories import DeafWorker

    DeafWorker([queue], connection=connection).work(burst=True, logging_level="ERROR")
    assert rq_job.return_value() == 180
