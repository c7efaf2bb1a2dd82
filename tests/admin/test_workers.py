"""The page of the workers."""

from __future__ import annotations

import re
from typing import Any

import django_rq
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from redis.exceptions import ConnectionError as RedisConnectionError
from rq import Queue

from tenant_slots import fleet, queue_directory
from tenant_slots.admin import TenantQueueAdmin, workers
from tenant_slots.models import TenantQueue
from tenant_slots.stats import lanes
from tests import jobs
from tests.admin.site import HOSTILE, QUEUES, change_page, signed_in
from tests.factories import (
    another_process,
    many_waiting,
    running_job,
    tenant_queue,
    waiting_job,
    worker_on_record,
)
from tests.plans import analyze, rows_read, without

pytestmark = pytest.mark.django_db

WORKERS = reverse("admin:tenant_slots_tenantqueue_workers")


@pytest.fixture(autouse=True)
def _no_worker() -> None:
    django_rq.get_connection("imports").flushall()


def page(client: Client) -> str:
    return client.get(WORKERS).content.decode()


def lane(client: Client, name: str) -> Any:
    return next(lane for lane in client.get(WORKERS).context["lanes"] if lane.name == name)


def test_it_shows_each_worker_with_its_queue_host_class_and_heartbeat(viewer: Client) -> None:
    worker = worker_on_record("first")
    worker_on_record("theirs", "reports", of_ours=False)
    shown = {one.member.name: one for one in viewer.get(WORKERS).context["workers"]}
    assert (shown["first"].state, shown["first"].short_class) == ("idle", "TenantWorker")
    assert shown["first"].member.host == worker.hostname
    assert shown["first"].member.heard_at is not None
    assert shown["theirs"].short_class == "not ours"
    assert shown["theirs"].member.queues == ("reports",)


def test_a_dead_worker_comes_first_and_says_so(viewer: Client) -> None:
    worker_on_record("a-lives")
    worker_on_record("b-was-killed", says_so=False)
    first, second = viewer.get(WORKERS).context["workers"]
    assert (first.member.name, first.state) == ("b-was-killed", "dead")
    assert second.state == "idle"


def test_the_job_that_a_worker_runs_is_linked_for_those_who_may_see_it(viewer: Client) -> None:
    job = running_job(tenant_queue(), another_process())
    worker = worker_on_record("busy")
    worker.set_state("busy")
    worker.connection.hset(worker.key, "current_job", job.rq_id)
    assert change_page(job) in page(viewer)
    assert change_page(job) not in page(signed_in("view_tenantqueue"))


def test_a_job_of_ours_that_came_through_plain_rq_is_linked_too(viewer: Client) -> None:
    job = running_job(tenant_queue(), another_process(), rq_job_id="an-import")
    worker = worker_on_record("busy")
    worker.connection.hset(worker.key, "current_job", "an-import")
    assert change_page(job) in page(viewer)
    assert change_page(job) not in page(signed_in("view_tenantqueue"))


def test_of_any_other_job_it_has_the_id_for_those_who_may_see_all_tenants(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_on_record("busy")
    worker.connection.hset(worker.key, "current_job", "nightly report of beta")
    assert "nightly report of beta" in page(viewer)
    own = TenantQueue.objects.filter(tenant="acme")
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: own)
    assert "nightly report of beta" not in page(viewer)


def test_nobody_without_the_permission_sees_workers() -> None:
    assert signed_in("view_tenantjob").get(WORKERS).status_code == 403
    assert signed_in("view_tenantqueue").get(WORKERS).status_code == 200, "the control"


def test_a_queue_with_jobs_and_nobody_raises_an_alarm_and_an_empty_one_does_not(viewer: Client) -> None:
    assert not lane(viewer, "imports").is_deserted
    waiting_job(tenant_queue())
    assert lane(viewer, "imports").is_deserted
    assert not lane(viewer, "reports").is_deserted
    assert "nobody takes its jobs" in page(viewer)
    worker_on_record("a", "reports")
    assert lane(viewer, "imports").is_deserted, "a worker of another queue is none of this one"
    worker_on_record("b")
    assert not lane(viewer, "imports").is_deserted


def test_plain_jobs_and_nobody_raise_an_alarm_too(viewer: Client) -> None:
    Queue("imports", connection=django_rq.get_connection("imports")).enqueue(jobs.add, 1, 2, tenant="acme")
    assert (lane(viewer, "imports").has_jobs, lane(viewer, "imports").is_deserted) == (True, True)
    assert workers.deserted(fleet.known()) == ("imports",)
    worker_on_record("a")
    assert not lane(viewer, "imports").is_deserted


def test_jobs_of_an_overflow_queue_need_its_own_worker(viewer: Client) -> None:
    waiting_job(tenant_queue(), rq_queue="reports")
    worker_on_record("a")
    assert (lane(viewer, "imports").is_deserted, lane(viewer, "reports").is_deserted) == (False, True)


def test_jobs_that_may_not_start_alarm_nobody(viewer: Client) -> None:
    waiting_job(tenant_queue(paused=True)), waiting_job(tenant_queue("zero", max_job=0))
    assert lanes.with_jobs() == []


@pytest.mark.skipif(connection.vendor != "postgresql", reason="how PostgreSQL plans")
def test_whether_a_queue_has_jobs_is_not_asked_of_all_that_wait() -> None:
    for number in range(300):
        many_waiting(tenant_queue(f"tenant {number}"), 10)
    with CaptureQueriesContext(connection) as queries:
        assert lanes.with_jobs() == ["imports"]
    analyze()
    with without("seqscan", "bitmapscan"), connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + queries[0]["sql"])
        ((plans,),) = cursor.fetchall()
    assert rows_read(plans[0]["Plan"]) < 400


def test_the_list_says_for_which_queues_there_is_nobody(boss: Client) -> None:
    waiting_job(tenant_queue())
    worker_on_record("a", "reports")
    shown = boss.get(QUEUES).content.decode()
    assert re.search(r'data-slots="tile.deserted" data-alarm="yes">imports<', shown)
    assert WORKERS in shown


def test_redis_away_is_said_and_is_no_alarm(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> Any:
        raise RedisConnectionError("away")

    monkeypatch.setattr(queue_directory, "reaching", away)
    assert "does not answer" in page(viewer)


def test_what_a_worker_calls_itself_is_no_markup(viewer: Client) -> None:
    worker_on_record(HOSTILE)
    assert HOSTILE not in page(viewer)
    assert "&lt;script&gt;" in page(viewer)


def test_the_page_takes_as_many_queries_however_many_workers_there_are(viewer: Client) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            page(viewer)
        return len(captured)

    job = running_job(tenant_queue(), another_process())
    for number in range(2):
        worker = worker_on_record(f"worker-{number}")
        worker.connection.hset(worker.key, "current_job", job.rq_id)
    before = queries()
    for number in range(30):
        worker = worker_on_record(f"more-{number}")
        worker.connection.hset(worker.key, "current_job", job.rq_id)
    assert queries() == before <= 12
