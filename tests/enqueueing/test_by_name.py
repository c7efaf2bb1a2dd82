"""The ways to enqueue can be given to RQ, as its cron is: they are pickled by name."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django_rq
import pytest
from rq.cron import CronScheduler

from tenant_slots.exceptions import MethodNotPicklable, UnknownJob
from tenant_slots.models import State, TenantJob
from tests import jobs
from tests.factories import work
from tests.processes import Workers, wait_until
from tests.reports_app.models import Report

pytestmark = pytest.mark.django_db(transaction=True)


def due(function: Any, *args: Any, **kwargs: Any) -> None:
    """RQ's cron has come to the time of a function."""
    scheduler = CronScheduler(connection=django_rq.get_connection("reports"), logging_level="ERROR")
    scheduler.register(function, queue_name="reports", args=args, kwargs=kwargs, interval=3600)
    scheduler.enqueue_jobs()


@pytest.mark.parametrize("way", ["enqueue", "delay"])
def test_rqs_cron_enqueues_a_job_of_ours(way: str) -> None:
    due(getattr(jobs.add, way), 1, 2, tenant="acme")
    work()
    job = TenantJob.objects.get()
    assert (job.state, job.result, job.tenant_queue.tenant, job.rq_job_id) == (State.FINISHED, 3, "acme", "")


@pytest.mark.parametrize("way", ["enqueue_many", "aenqueue_many"])
def test_rqs_cron_enqueues_a_job_for_every_tenant(way: str, workers: Workers) -> None:
    """In a process of its own: RQ leaves the event loop open in which it runs a coroutine."""
    due(getattr(jobs.add, way), [((1, 2), {"tenant": tenant}) for tenant in ("acme", "other")])
    workers.run("--burst", queues=("reports",))
    assert sorted(TenantJob.objects.values_list("tenant_queue__tenant", "state")) == [
        ("acme", State.FINISHED),
        ("other", State.FINISHED),
    ]


def test_what_using_has_changed_goes_along() -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    changed = jobs.add.using(priority=7, run_after=later, queue="imports", tenant="other", key="user-7")
    due(changed.enqueue, 1, 2, tenant="acme")
    work()
    job = TenantJob.objects.select_related("tenant_queue").get()
    assert (job.priority, job.run_after, job.key) == (7, later, "user-7")
    assert (job.tenant_queue.tenant, job.tenant_queue.queue) == ("other", "imports")


def test_rqs_queue_takes_them_like_any_function() -> None:
    django_rq.get_queue("reports").enqueue(jobs.add.enqueue, 1, 2, tenant="acme")
    work()
    assert TenantJob.objects.get().state == State.FINISHED


@pytest.mark.parametrize("worker_class", ["tenant_slots.workers.TenantPreforkWorker", "rq.Worker"])
def test_rqcron_lives_and_a_worker_runs_what_it_enqueued(worker_class: str, workers: Workers, tmp_path: Path) -> None:
    config = tmp_path / "cron_config.py"
    config.write_text(
        "from rq import cron\nfrom tests import jobs\n"
        "cron.register(jobs.add.enqueue, queue_name='reports', args=(1, 2), kwargs={'tenant': 'acme'}, interval=1)\n"
    )
    cron = workers.start_cron(config)
    wait_until(lambda: len(django_rq.get_queue("reports")) >= 2, message="rqcron has not enqueued twice")
    assert cron.poll() is None
    cron.kill()
    cron.wait()
    workers.run("--burst", queues=("reports",), worker_class=worker_class)
    assert {job.state for job in TenantJob.objects.all()} == {State.FINISHED}
    assert TenantJob.objects.count() >= 2


def test_the_pickle_names_the_function_and_holds_none() -> None:
    pickled = pickle.dumps(jobs.add.enqueue)
    assert b"tests.jobs.add" in pickled
    assert pickle.loads(pickled).__self__.tenant_task is jobs.add.tenant_task


def test_a_pickle_that_names_another_function_makes_nothing_of_it() -> None:
    pickled = pickle.dumps(jobs.add.enqueue).replace(b"tests.jobs.add", b"tests.jobs.sum")
    with pytest.raises(UnknownJob):
        pickle.loads(pickled)


def test_a_method_is_refused_as_before() -> None:
    report = Report.objects.create(tenant="acme")
    for way in (report.execute.enqueue, Report.execute.enqueue):
        with pytest.raises(MethodNotPicklable):
            pickle.dumps(way)
