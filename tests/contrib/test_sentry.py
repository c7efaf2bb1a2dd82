"""A job is a transaction of Sentry under its task's name, in the trace of its request, and its failure one event."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django_rq
import pytest
import sentry_sdk
from django.db.models import JSONField, Value
from django.test import override_settings
from sentry_sdk.integrations.rq import RqIntegration

from tenant_slots.contrib import sentry
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import State, TenantJob
from tenant_slots.tasks.context import IN_META
from tests.contrib import jobs
from tests.contrib.traces import ONLY_SENTRY, InMemory, errors_in, sentry_on
from tests.factories import fresh, tenant_queue, waiting_job, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_is_one_transaction_named_after_its_task_in_the_trace_of_the_request(sent: InMemory) -> None:
    with sentry_sdk.start_transaction(name="request", op="http.server") as asked:
        job = jobs.succeeds.enqueue("acme")
    work()
    transactions = {one["transaction"]: one for one in sent.of("transaction")}
    assert set(transactions) == {"request", job.task}
    run = transactions[job.task]
    assert run["contexts"]["trace"]["trace_id"] == asked.trace_id
    assert run["tags"]["tenant_slots.tenant"] == "acme"
    known = {key: value for key, value in run["contexts"]["trace"]["data"].items() if key.startswith("tenant_slots.")}
    assert known.pop("tenant_slots.wait") >= 0
    assert known == {
        "tenant_slots.task": job.task,
        "tenant_slots.tenant": "acme",
        "tenant_slots.queue": "imports",
        "tenant_slots.job": str(job.uuid),
        "tenant_slots.attempt": 1,
    }
    assert run["transaction_info"] == {"source": "task"}
    assert not sent.of("event")


def test_a_failure_is_one_event_with_the_right_stack_and_name(sent: InMemory) -> None:
    job = jobs.fails.enqueue("acme", secret="471100815")
    work()
    (event,) = sent.of("event")
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no such feed")
    assert error["stacktrace"]["frames"][-1]["function"] == "fails"
    assert event["transaction"] == job.task
    assert event["tags"]["tenant_slots.task"] == job.task
    assert event["contexts"]["tenant_slots"]["job"] == str(job.uuid)
    (run,) = sent.of("transaction")
    assert run["contexts"]["trace"]["status"] == "internal_error"
    assert run["contexts"]["trace"]["trace_id"] == event["contexts"]["trace"]["trace_id"]


def test_the_time_outs_of_a_task_are_one_issue(sent: InMemory) -> None:
    """sentry_sdk's integration for RQ groups them by the function that RQ calls, which is one for all tasks."""
    job = jobs.has_no_more_time.enqueue("acme")
    work()
    (event,) = sent.of("event")
    assert event["fingerprint"] == ["rq", "JobTimeoutException", job.task]


def test_a_fingerprint_that_a_job_gives_its_time_out_stays() -> None:
    with sentry_on(InMemory()) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        jobs.has_no_more_time.enqueue("acme", fingerprint=["by", "hand"])
        work()
    (event,) = sent.of("event")
    assert event["fingerprint"] == ["by", "hand"]


@pytest.mark.parametrize(
    ("task", "errors"), [(jobs.fails_twice, ["ValueError", "KeyError"]), (jobs.fails_unspeakably, ["ValueError"])]
)
def test_a_failure_is_told_once_whatever_is_told_or_raised_after_it(task: Any, errors: list[str]) -> None:
    """sentry_sdk drops an error that is the same object as the last one. What is not ours is told as ever."""
    queue = django_rq.get_queue("imports")
    with sentry_on(InMemory(), RqIntegration()) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        queue.enqueue(jobs.fails_in_plain_rq)
        work()
        plain = errors_in(sent)  # none with older versions of sentry_sdk, which do not know this class of workers
        task.enqueue("acme")
        queue.enqueue(jobs.fails_in_plain_rq)
        work()
    assert plain in ([], ["OSError"])
    assert errors_in(sent) == [*plain, *errors, *plain]


def test_a_sampler_of_the_project_is_given_the_job() -> None:
    def rate(known: dict[str, Any]) -> float:
        job = known.get("tenant_slots_job")
        return 0.0 if job is not None and job.tenant_queue.tenant == "chatty" else 1.0

    with sentry_on(InMemory(), traces_sampler=rate) as sent, override_settings(TENANT_SLOTS=ONLY_SENTRY):
        for tenant in ("chatty", "acme"):
            jobs.succeeds.enqueue(tenant)
        work()
    assert [one["tags"]["tenant_slots.tenant"] for one in sent.of("transaction")] == ["acme"]


@pytest.mark.parametrize("task", [jobs.fails, jobs.fails_twice, jobs.fails_unspeakably])
def test_in_immediate_mode_a_failure_is_told_once_too(sent: InMemory, task: Any) -> None:
    """The log has it as well, and what ``on_failure`` raises is another failure."""
    with override_settings(TENANT_SLOTS={**ONLY_SENTRY, "IMMEDIATE": True}):
        task.enqueue("acme")
    assert errors_in(sent) == ["ValueError", *(["KeyError"] if task is jobs.fails_twice else [])]


@pytest.mark.parametrize("way", ["immediate", "synchronous"])
def test_a_plain_rq_job_has_its_transaction_whatever_runs_inside_of_it(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("CALLS_SYNCHRONOUSLY", "yes" if way == "synchronous" else "")
    settings = {**ONLY_SENTRY, "IMMEDIATE": way == "immediate"}
    queue = django_rq.get_queue("imports")
    with sentry_on(InMemory(), RqIntegration()) as sent, override_settings(TENANT_SLOTS=settings):
        queue.enqueue(os.getpid)
        work()
        control = [one["transaction"] for one in sent.of("transaction")]
        queue.enqueue(jobs.calls_one_of_ours)
        work()
    assert control in ([], ["posix.getpid"])  # none with older versions of sentry_sdk
    inside, *around = [one["transaction"] for one in sent.of("transaction")][len(control) :]
    assert inside == jobs.succeeds.tenant_task.path
    assert around == ["tests.contrib.jobs.calls_one_of_ours"] * len(control)


@pytest.mark.parametrize("settings", [{}, ONLY_SENTRY], ids=["control: without our context", "with it"])
def test_a_plain_rq_job_is_in_the_trace_that_sentrys_rq_integration_has_noted(settings: dict[str, Any]) -> None:
    """It brings no context of ours, unless the project puts it there."""
    with sentry_on(InMemory(), RqIntegration()) as sent, override_settings(TENANT_SLOTS=settings):
        with sentry_sdk.start_transaction(name="request", op="http.server") as asked:
            django_rq.get_queue("imports").enqueue(jobs.process, "acme")
        work()
    runs = [one for one in sent.of("transaction") if one["transaction"] != "request"]
    assert runs or not settings, "older versions of sentry_sdk do not know this class of workers by themselves"
    assert {one["contexts"]["trace"]["trace_id"] for one in runs} <= {asked.trace_id}


def test_a_plain_rq_job_that_brings_our_context_is_in_that_trace(sent: InMemory) -> None:
    with sentry_sdk.start_transaction(name="first") as first:
        meta = {IN_META: sentry.capture()}
    with sentry_sdk.start_transaction(name="second"):
        django_rq.get_queue("imports").enqueue(jobs.process, "acme", meta=meta)
    work()
    trace_of = {one["transaction"]: one["contexts"]["trace"]["trace_id"] for one in sent.of("transaction")}
    assert trace_of[jobs.process.tenant_task.path] == first.trace_id


@pytest.mark.parametrize("in_a_trace", [True, False])
@pytest.mark.parametrize("task", [jobs.succeeds_in_vain, jobs.fails_twice])
def test_an_error_of_a_callback_is_told_with_the_jobs_name_and_tags_in_the_trace_of_its_run(
    sent: InMemory, task: Any, in_a_trace: bool
) -> None:
    if in_a_trace:
        with sentry_sdk.start_transaction(name="request"):
            job = task.enqueue("acme")
    else:
        with override_settings(TENANT_SLOTS={}):
            job = task.enqueue("acme")
    work()
    (run,) = [one for one in sent.of("transaction") if one["transaction"] == job.task]
    (event,) = [one for one in sent.of("event") if one["exception"]["values"][-1]["type"] == "KeyError"]
    assert event["transaction"] == job.task
    assert event["tags"].items() >= {"tenant_slots.tenant": "acme", "tenant_slots.task": job.task}.items()
    assert event["contexts"]["trace"]["trace_id"] == run["contexts"]["trace"]["trace_id"]


def test_an_error_of_a_callback_is_told_once(sent: InMemory) -> None:
    jobs.succeeds_in_vain.enqueue("acme")
    work()
    assert errors_in(sent) == ["KeyError"]


def moved(job: TenantJob) -> None:
    """To where no worker finds it any more."""
    TenantJob.objects.filter(pk=job.pk).update(task="shop.nowhere.fails")


def spoilt(job: TenantJob) -> None:
    TenantJob.objects.filter(pk=job.pk).update(args=Value("none of ours", JSONField()))


def refused(job: TenantJob) -> None:
    TenantJob.objects.filter(pk=job.pk).update(context={"refused": True})


def had_its_retry(job: TenantJob) -> None:
    TenantJob.objects.filter(pk=job.pk).update(failures=1)


@contextmanager
def doorkeeper(job: TenantJob) -> Iterator[None]:
    """One of the project's contexts, after ours."""
    if job.context.get("refused"):
        raise PermissionError("not today")
    yield


@pytest.mark.parametrize(
    ("task", "happens", "error"),
    [
        (jobs.leaves, None, "SystemExit"),
        (jobs.gives_up, None, "CancelledError"),
        (jobs.asks_again, had_its_retry, "RetriesExceeded"),
        (jobs.asks_for_nonsense, None, "InvalidOption"),
        (jobs.succeeds, refused, "PermissionError"),
        (jobs.succeeds, moved, "UnknownJob"),
        (jobs.succeeds, spoilt, "UnreadableColumn"),
    ],
)
def test_whatever_ends_a_job_is_one_event_with_its_tags(sent: InMemory, task: Any, happens: Any, error: str) -> None:
    both = [*ONLY_SENTRY["JOB_CONTEXT"], f"{__name__}.doorkeeper"]
    with override_settings(TENANT_SLOTS={**ONLY_SENTRY, "JOB_CONTEXT": both, "UNKNOWN_TASK_WAIT": 0}):
        job = task.enqueue("acme")
        if happens is not None:
            happens(job)
        work()
    job.refresh_from_db()
    assert job.state == State.FAILED
    (event,) = sent.of("event")
    assert event["exception"]["values"][-1]["type"] == error
    assert event["tags"]["tenant_slots.tenant"] == "acme"
    assert event["tags"]["tenant_slots.task"] == event["transaction"] == job.task
    assert [one["transaction"] for one in sent.of("transaction")] == [job.task]


def test_a_job_that_waits_for_a_worker_that_knows_its_function_is_no_event(sent: InMemory) -> None:
    job = jobs.succeeds.enqueue("acme")
    moved(job)
    work()
    assert fresh(job).state == State.SCHEDULED
    assert sent.items == []


def test_a_delivery_in_which_nothing_runs_is_no_transaction(sent: InMemory) -> None:
    """A plain RQ job of a tenant without a slot comes again and again; the other one is of an attempt that is over."""
    row = tenant_queue(max_job=0)
    ended = waiting_job(row)
    queue = django_rq.get_queue("imports")
    queue.enqueue(jobs.succeeds, "acme")
    queue.enqueue("tenant_slots.run_job", str(ended.uuid), 7)
    work()
    assert TenantJob.objects.filter(state=State.WAITING).count() == 2
    assert sent.items == []


def test_a_busy_tenant_is_no_failed_transaction(sent: InMemory) -> None:
    failed, busy = jobs.fails.enqueue("acme"), jobs.busy.enqueue("other")
    work()
    status_of = {one["transaction"]: one["contexts"]["trace"].get("status") for one in sent.of("transaction")}
    assert status_of[failed.task] == "internal_error"
    assert status_of[busy.task] in (None, "ok")


def test_a_busy_tenant_is_no_event(sent: InMemory) -> None:
    job = jobs.busy.enqueue("acme")
    work()
    assert fresh(job).state == State.WAITING
    assert not sent.of("event")


def test_a_run_that_ends_with_its_worker_is_no_event(sent: InMemory) -> None:
    job = waiting_job(tenant_queue(), attempt=1)
    with pytest.raises(EndedAtOnce), sentry.job_context(job):
        raise EndedAtOnce
    assert [kind for kind, _ in sent.items] == ["transaction"]


def test_tags_of_one_job_are_not_those_of_the_next(sent: InMemory) -> None:
    jobs.succeeds.enqueue("acme")
    work()
    sentry_sdk.capture_message("between")
    (event,) = sent.of("event")
    assert not event.get("tags")


def test_a_failure_is_told_with_what_the_job_did_and_nothing_of_what_was_before(sent: InMemory) -> None:
    """A worker has its own work behind it, and other tenants' jobs."""
    sentry_sdk.add_breadcrumb(message="for another tenant")
    jobs.fails.enqueue("acme")
    work()
    sentry_sdk.capture_message("control")
    failure, control = ([crumb["message"] for crumb in event["breadcrumbs"]["values"]] for event in sent.of("event"))
    assert "read the feed" in failure
    assert "for another tenant" not in failure
    assert "for another tenant" in control


def test_where_sentry_is_off_nothing_is_kept_and_jobs_run() -> None:
    with override_settings(TENANT_SLOTS=ONLY_SENTRY):
        job = jobs.succeeds.enqueue("acme")
        work()
    assert sentry.capture() == {}
    assert (fresh(job).state, fresh(job).context) == (State.FINISHED, {})
