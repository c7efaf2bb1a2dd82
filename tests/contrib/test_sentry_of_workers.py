"""What real workers and their work-horses tell Sentry: all of it, and once."""

from __future__ import annotations

import json

import django_rq
import pytest
from sentry_sdk.consts import DEFAULT_OPTIONS

from tests.contrib import jobs
from tests.contrib.sentry_server import SentryServer
from tests.contrib.traces import ONLY_SENTRY, PAGE, PREFORK, SIMPLE, python_in
from tests.factories import fresh
from tests.processes import Workers, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_thread_that_sends_to_sentry_is_no_reason_for_another_work_horse(
    workers: Workers, sentry_server: SentryServer
) -> None:
    made = [jobs.process.enqueue("acme") for _ in range(4)]
    assert workers.run("--burst", worker_class=PREFORK).returncode == 0
    assert len({fresh(job).result for job in made}) == 1
    assert sentry_server.of("transaction") == [job.task for job in made]


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_the_queries_of_a_job_are_in_its_trace(workers: Workers, sentry_server: SentryServer, kind: str) -> None:
    for _ in range(2):
        jobs.counts.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    told = [one for one in sentry_server.told if "spans" in one]
    assert [sum("COUNT" in span["description"] for span in one["spans"]) for one in told] == [1, 1]


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK, SIMPLE, "rq.Worker"])
def test_each_failure_up_to_the_last_job_of_a_work_horse_reaches_sentry_once(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    job = jobs.process.enqueue("acme", "enough", leaves=True)
    jobs.process.enqueue("acme", "no such feed")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert (sentry_server.of("event"), sentry_server.of("transaction")) == ([job.task] * 2, [job.task] * 2)


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK, SIMPLE, "rq.Worker"])
def test_in_every_worker_a_failure_is_told_once_whatever_is_told_or_raised_after_it(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    jobs.fails_twice.enqueue("acme")
    jobs.fails_unspeakably.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert sentry_server.errors() == ["ValueError", "KeyError", "ValueError"]


@pytest.mark.parametrize(
    ("kind", "variables", "told"),
    [
        (PREFORK, {}, "OSError"),
        ("rq.Worker", {}, "OSError"),
        (PREFORK, {"SENTRY_WITHOUT_RQ": "yes"}, "rq.worker"),
        (SIMPLE, {"SENTRY_WITHOUT_RQ": "yes"}, "rq.worker"),
    ],
)
def test_a_plain_rq_job_that_fails_after_one_of_ours_inside_of_it_is_told_too(
    workers: Workers, sentry_server: SentryServer, kind: str, variables: dict[str, str], told: str
) -> None:
    """By the integration, or else by the log."""
    workers.variables |= {"TEST_TENANT_SLOTS": json.dumps({**ONLY_SENTRY, "IMMEDIATE": True}), **variables}
    django_rq.get_queue("imports").enqueue(jobs.fails_after_one_of_ours)
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert sentry_server.errors() == ["ValueError", told]


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_a_run_is_told_with_its_tenant_and_queue_whether_the_worker_has_it_from_rqs_list_or_took_it_itself(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    for _ in range(3):
        jobs.fails.enqueue("acme")
    in_list = django_rq.get_queue("imports").count
    assert workers.run("--burst", worker_class=kind).returncode == 0
    events = [one for one in sentry_server.told if "exception" in one]
    tags = [(one["tags"].get("tenant_slots.tenant"), one["tags"].get("tenant_slots.queue")) for one in events]
    assert tags == [("acme", "imports")] * 3
    assert in_list == 1, "control: the others are taken"


def test_without_its_rq_integration_sentry_is_told_of_plain_rq_jobs_by_the_log_as_ever(
    workers: Workers, sentry_server: SentryServer
) -> None:
    """And of ours once."""
    workers.variables["SENTRY_WITHOUT_RQ"] = "yes"
    queue = django_rq.get_queue("imports")
    queue.enqueue(jobs.fails_in_plain_rq)
    queue.enqueue(jobs.fails, "acme")
    queue.enqueue(jobs.fails_in_plain_rq)
    job = jobs.fails.enqueue("acme")
    assert workers.run("--burst", worker_class=SIMPLE).returncode == 0
    events = [one for one in sentry_server.told if one.get("level") == "error"]
    assert sorted(one.get("logger") or one["transaction"] for one in events) == ["rq.worker"] * 2 + [job.task] * 2


ENDS_ITS_PROCESS = """
@receiver(job_ended)
def ends_its_process(job, **kwargs):
    if not job.task.endswith("succeeds"):
        os._exit(1)
"""
ERROR_AT_ITS_START = """
import logging
logging.getLogger("shop").error("an old setting")
"""


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_what_a_worker_has_not_sent_yet_when_it_forks_is_sent_once(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    """The server answers no error of the worker before it has heard of a job of the last work-horse."""
    workers.variables["RECEIVER"] = "import os\nfrom django.dispatch import receiver\n" + (
        "from tenant_slots.signals import job_ended\n" + ENDS_ITS_PROCESS + 2 * ERROR_AT_ITS_START
    )
    for _ in range(3):
        jobs.process.enqueue("acme")
    last = jobs.succeeds.enqueue("acme")
    sentry_server.answers.clear()
    (worker,) = workers.start(worker_class=kind)
    wait_until(lambda: last.task in sentry_server.of("transaction"))
    sentry_server.answers.set()
    worker.terminate()
    assert worker.wait(30) == 0
    assert sentry_server.errors() == ["shop"] * 2 + ["tenant_slots"] * 3


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_what_a_job_tells_is_sent_while_its_work_horse_lives_whatever_its_worker_has_sent_before(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    workers.variables["RECEIVER"] = ERROR_AT_ITS_START
    workers.start(worker_class=kind)
    wait_until(lambda: sentry_server.errors() == ["shop"])
    job = jobs.succeeds.enqueue("acme")
    wait_until(lambda: sentry_server.of("transaction") == [job.task])


@pytest.mark.skipif("enable_logs" not in DEFAULT_OPTIONS, reason="sentry_sdk is older than its logs")
@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_what_is_logged_before_a_worker_begins_is_sent_once(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    """Sentry collects logs for five seconds, which is longer than this worker lives."""
    workers.variables |= {"SENTRY_LOGS": "yes", "RECEIVER": ERROR_AT_ITS_START}
    for _ in range(2):
        jobs.process.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    assert sentry_server.logs().count("an old setting") == 1


@pytest.mark.parametrize("kind", ["tenant_slots.workers.TenantWorker", PREFORK])
def test_the_receiver_of_the_page_tells_of_a_job_whose_process_was_killed_and_of_no_other(
    workers: Workers, sentry_server: SentryServer, kind: str
) -> None:
    (code,) = [one for one in python_in(PAGE) if "@receiver" in one]
    settings = {**ONLY_SENTRY, "MAX_CRASHES": 0}
    workers.variables |= {"RECEIVER": code, "TEST_TENANT_SLOTS": json.dumps(settings)}
    jobs.fails.enqueue("acme")
    jobs.succeeds.enqueue("acme")
    job = jobs.dies.enqueue("acme")
    assert workers.run("--burst", worker_class=kind).returncode == 0
    errors = [one for one in sentry_server.told if one.get("level") == "error"]
    assert [one.get("message", "").partition(" failed: ")[0] for one in errors] == ["", str(fresh(job))]
