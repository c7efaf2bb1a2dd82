"""What RQ keeps of an error: nothing, as its pages are open to all staff. Exception handlers get the error itself."""

from __future__ import annotations

import zlib
from base64 import b64decode
from contextlib import suppress
from typing import Any

import django_rq
import pytest
from django.test import Client
from django.urls import reverse
from django_rq.settings import get_queues_list
from rq.job import Job, JobStatus
from rq.results import Result

from tenant_slots import queue_directory
from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.admin.site import signed_in
from tests.factories import fresh
from tests.history import History
from tests.processes import Workers

OURS = ["tenant_slots.workers.TenantWorker", "tenant_slots.workers.TenantPreforkWorker",
        "tenant_slots.workers.TenantSimpleWorker"]  # fmt: skip
STOCK = ["rq.Worker", "rq.SimpleWorker", "rq.worker.SpawnWorker"]

SECRET = "card of Jo Quux"
"""In letters that no hexadecimal id or time has."""

every_class = pytest.mark.parametrize("worker_class", [*OURS, *STOCK])


def record(job: TenantJob) -> Job:
    job.refresh_from_db()
    found: Job = queue_directory.queue_named("imports").fetch_job(job.rq_id)
    assert found is not None, "RQ has forgotten the job"
    return found


def in_redis() -> str:
    """All that RQ has in Redis, unpacked."""
    connection = django_rq.get_connection("imports")
    values: list[bytes] = []
    for key in connection.keys("rq:*"):
        if connection.type(key) == b"hash":
            values += connection.hgetall(key).values()
        if connection.type(key) == b"stream":
            values += [value for _, entry in connection.xrange(key) for value in entry.values()]
    return "\n".join(unpacked(value) for value in values)


def unpacked(value: bytes) -> str:
    for unpack in (zlib.decompress, lambda packed: zlib.decompress(b64decode(packed))):
        with suppress(ValueError, zlib.error):  # it is not packed in this way
            return unpack(value).decode()
    return value.decode(errors="replace")


@every_class
def test_a_failed_job_of_ours_is_named_and_nothing_of_its_error_is_kept(workers: Workers, worker_class: str) -> None:
    job = jobs.fail.enqueue("acme", SECRET)
    workers.run("--burst", worker_class=worker_class)
    assert fresh(job).state == State.FAILED
    assert SECRET in job.error
    one = record(job)
    result = one.latest_result()
    assert (one.get_status(), result.type) == (JobStatus.FAILED, Result.Type.FAILED)
    assert str(job.uuid) in result.exc_string
    assert "Tenant jobs" in result.exc_string
    assert one.id in queue_directory.queue_named("imports").failed_job_registry
    assert str(job.uuid) in in_redis(), "this would find nothing anyway"
    assert "Quux" not in in_redis()


@pytest.mark.parametrize("worker_class", [*OURS, *STOCK[:2]])  # RQ's SpawnWorker calls none (RQ 2.12)
def test_exception_handlers_get_the_error_itself(workers: Workers, worker_class: str, history: History) -> None:
    workers.variables |= {"TEST_EXCEPTION_HANDLERS": "tests.workers.handlers.note_message", "NOTES": history.path}
    jobs.fail.enqueue("acme", "card-of-quux")
    workers.run("--burst", worker_class=worker_class)
    assert [(event.kind, event.tenant, event.name) for event in history.events()] == [
        ("ValueError", "card-of-quux", "fail")
    ]


@every_class
def test_the_error_of_a_plain_rq_job_is_kept_as_rq_keeps_it(workers: Workers, worker_class: str) -> None:
    """The control: it is not ours to hide, and its arguments stand beside it."""
    rq_job = django_rq.get_queue("imports").enqueue(jobs.fail, "acme", SECRET)
    workers.run("--burst", worker_class=worker_class)
    rq_job.refresh()
    assert SECRET in rq_job.latest_result().exc_string


def test_staff_without_a_permission_see_no_error_on_rqs_pages(workers: Workers) -> None:
    job = jobs.fail.enqueue("acme", SECRET)
    workers.run("--burst")
    one, client = record(job), signed_in()
    assert SECRET not in page(client, "django_rq:job_detail", one.id)
    text = page(client, "django_rq:result_detail", one.id, one.latest_result().id)
    assert SECRET not in text
    assert str(job.uuid) in text


def page(client: Client, name: str, *arguments: Any) -> str:
    response = client.get(reverse(name, args=[list_index(), *arguments]))
    assert response.status_code == 200
    return response.content.decode()


def list_index() -> int:
    return [queue["name"] for queue in get_queues_list()].index("imports")
