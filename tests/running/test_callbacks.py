"""What a function may say of its jobs' ends: after which errors they run again, and who is called afterwards."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django_rq
import pytest
from django.db import OperationalError
from rq import Retry

from tenant_slots import slots, tenant_job
from tenant_slots.exceptions import InvalidOption
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import callbacks
from tenant_slots.tasks import attempts
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests import contexts, jobs
from tests.factories import DeafWorker, counters_match, fresh, tenant_queue
from tests.history import History

pytestmark = pytest.mark.django_db(transaction=True)


def run(worker_class: Any = TenantSimpleWorker) -> None:
    queue = django_rq.get_queue("imports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")


def said(history: History) -> list[tuple[str, str, str]]:
    return [(event.kind, event.tenant, event.name) for event in history.events() if event.kind != "start"]


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
@pytest.mark.parametrize("then", ["", "raises", "exits", "is canceled", "leaves"])
def test_they_are_called_once_the_outcome_stands_and_change_nothing_about_it(
    worker_class: Any, then: str, history: History
) -> None:
    fine = jobs.calls_back.enqueue("acme", history=history.path, then=then)
    bad = jobs.calls_back.enqueue("acme", history=history.path, raises="KeyError", then=then)
    run(worker_class)
    assert (fresh(fine).state, fine.result) == (State.FINISHED, "fine")
    assert (fresh(bad).state, bad.failures, bad.error.strip().endswith("KeyError")) == (State.FAILED, 1, True)
    assert said(history) == [("success", "finished", "fine"), ("failure", "failed", "KeyError")]
    assert counters_match()


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
def test_one_that_does_not_return_is_ended_and_holds_no_slot_for_ever(
    worker_class: Any, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callbacks, "SECONDS", 1)
    fine = jobs.calls_back.enqueue("acme", history=history.path, then="stays")
    bad = jobs.calls_back.enqueue("acme", history=history.path, raises="KeyError", then="stays")
    run(worker_class)
    assert (fresh(fine).state, fresh(bad).state) == (State.FINISHED, State.FAILED)
    assert counters_match()


@pytest.mark.parametrize(
    ("raises", "runs"), [("ConnectionError", 2), ("ConnectionResetError", 2), ("KeyError", 1), ("", 1)]
)
def test_a_job_runs_again_after_the_errors_that_are_named(raises: str, runs: int, history: History) -> None:
    job = jobs.calls_back.enqueue("acme", history=history.path, raises=raises)
    run()
    assert len(history.started()) == runs
    assert fresh(job).state == (State.FAILED if raises else State.FINISHED)
    assert len(said(history)) == 1, "nobody is told of an attempt that another one follows"


def keeps_token(job: TenantJob, token: str) -> None:
    raise KeyError("there is no place for it")


@tenant_job("imports", tenant="tenant", on_success=keeps_token)
def fetches_token(tenant: str) -> str:
    return "471100815"


def test_what_came_of_a_job_is_named_in_the_callbacks_own_frame_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Tools for errors, as Sentry, show the variables of each frame, and hide a secret by the name of its variable."""
    fetches_token.enqueue("acme")
    run()
    (record,) = [record for record in caplog.records if "keeps_token" in record.getMessage()]
    assert record.exc_info is not None
    frames = [frame for frame, _ in traceback.walk_tb(record.exc_info[2])]
    shown = [frame.f_code.co_name for frame in frames if "471100815" in repr(frame.f_locals)]
    assert shown == ["keeps_token"]


def test_a_job_that_runs_where_it_is_enqueued_calls_back_too(history: History, settings: Any) -> None:
    settings.TENANT_SLOTS = {"IMMEDIATE": True}
    jobs.calls_back.enqueue("acme", history=history.path)
    assert said(history) == [("success", "finished", "fine")]


@pytest.mark.parametrize("worker_class", [DeafWorker, TenantSimpleWorker])
@pytest.mark.parametrize(
    ("ends", "told"),
    [
        (["fine"], ["fine"]),
        (["raises"], ["KeyError"]),
        (["again", "fine"], ["fine"]),
        (["again", "raises"], ["KeyError"]),
        (["raises", "fine"], ["fine"]),
        (["raises", "raises", "raises"], ["KeyError"]),
    ],
)
def test_of_a_plain_job_the_last_attempt_alone_is_told(
    worker_class: Any, ends: list[str], told: list[str], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others follow where RQ has retries left, or where the function asks it for one."""
    heard: list[str] = []
    task = vars(jobs.ends_each_time_otherwise.tenant_task)
    monkeypatch.setitem(task, "on_success", lambda job, result: heard.append(result))
    monkeypatch.setitem(task, "on_failure", lambda job, error: heard.append(type(error).__name__))
    failures_before = ends[:-1].count("raises")
    retry = Retry(max=failures_before) if failures_before else None
    django_rq.get_queue("imports").enqueue(jobs.ends_each_time_otherwise, "acme", history.path, ends, retry=retry)
    run(worker_class)
    assert len(history.started()) == len(ends)
    assert heard == told


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What `always_asks_again` is told of, in whatever process: its class of errors, and the state of its job."""
    task = vars(jobs.always_asks_again.tenant_task)
    monkeypatch.setitem(task, "on_success", lambda job, result: tenant_queue("success", queue=str(job.state)))
    monkeypatch.setitem(task, "on_failure", lambda job, error: tenant_queue(type(error).__name__, queue=str(job.state)))
    rows = TenantQueue.objects.exclude(queue="imports").order_by("pk")
    return lambda: [f"{row.queue}: {row.tenant}" for row in rows.all()]


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, DeafWorker, TenantSimpleWorker])
@pytest.mark.parametrize("plain", [False, True])
def test_a_job_that_asks_for_more_runs_than_its_retry_allows_has_failed(
    worker_class: Any, plain: bool, history: History, told: Any
) -> None:
    """Whatever is left of the retries that it has for errors."""
    queue = django_rq.get_queue("imports")
    if plain:
        queue.enqueue(jobs.always_asks_again, "acme", history.path, retry=Retry(max=5))
    else:
        jobs.always_asks_again.using(retry=Retry(max=5)).enqueue("acme", history.path)
    run(worker_class)
    last = TenantJob.objects.latest("pk")
    assert (last.state, last.error_class) == (State.FAILED, "tenant_slots.exceptions.RetriesExceeded")
    assert attempts.ended_runs(last)[-1]["error"] == "tenant_slots.exceptions.RetriesExceeded"
    assert len(history.started()) == 2
    assert told() == ["failed: RetriesExceeded"]
    assert queue.failed_job_registry.get_job_ids() == [last.last_rq_id], "as RQ has it"
    assert counters_match()


def test_so_has_one_that_runs_where_it_is_enqueued(history: History, told: Any, settings: Any) -> None:
    settings.TENANT_SLOTS = {"IMMEDIATE": True}
    job = jobs.always_asks_again.enqueue("acme", history.path)
    assert (fresh(job).state, told()) == (State.FAILED, ["failed: RetriesExceeded"])


def test_a_plain_job_without_a_tenant_calls_nobody(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no `TenantJob` to give them."""
    heard: list[TenantJob] = []
    monkeypatch.setitem(vars(jobs.calls_back.tenant_task), "on_success", lambda job, result: heard.append(job))
    for tenant in ("", "acme"):
        django_rq.get_queue("imports").enqueue(jobs.calls_back, tenant, history=history.path)
    run()
    assert [job.tenant_queue.tenant for job in heard] == ["acme"]


def test_one_is_called_in_the_context_of_its_job(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.TENANT_SLOTS = {
        "CAPTURE_CONTEXT": "tests.contexts.capture",
        "JOB_CONTEXT": "tests.contexts.job_context",
    }
    seen: list[str] = []
    task = jobs.calls_back.tenant_task
    monkeypatch.setitem(vars(task), "on_success", lambda job, result: seen.append(contexts.request_id.get()))
    token = contexts.request_id.set("r-17")
    jobs.calls_back.enqueue("acme", history="/dev/null")
    contexts.request_id.reset(token)
    run()
    assert seen == ["r-17"]


def test_a_job_that_was_canceled_or_put_back_calls_nobody(history: History) -> None:
    job = jobs.calls_back.enqueue("acme", history=history.path)
    job.cancel()
    run()
    assert TenantJob.objects.get().state == State.CANCELED
    assert said(history) == []


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker, DeafWorker])
@pytest.mark.parametrize("raises", ["", "KeyError"])
@pytest.mark.parametrize(
    ("meanwhile", "state"), [("it is to be canceled", State.CANCELED), ("another run has it", State.RUNNING)]
)
def test_an_outcome_that_the_job_does_not_get_is_told_to_nobody(
    worker_class: Any, raises: str, meanwhile: str, state: State, history: History
) -> None:
    """Its function has returned, or raised, before its process could be told to end."""
    job = jobs.calls_back.enqueue("acme", history=history.path, raises=raises, meanwhile=meanwhile)
    run(worker_class)
    assert fresh(job).state == state
    assert len(history.started()) == 1
    assert said(history) == []


def test_nor_where_the_job_runs_where_it_is_enqueued(history: History, settings: Any) -> None:
    settings.TENANT_SLOTS = {"IMMEDIATE": True}
    job = jobs.calls_back.enqueue("acme", history=history.path, meanwhile="it is to be canceled")
    assert (fresh(job).state, said(history)) == (State.CANCELED, [])


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])
def test_where_the_database_does_not_say_what_became_of_it_they_are_called(
    worker_class: Any, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*run: int) -> bool:
        raise OperationalError("connection refused")

    monkeypatch.setattr(slots, "is_wanted", away)
    jobs.calls_back.enqueue("acme", history=history.path)
    run(worker_class)
    assert said(history) == [("success", "finished", "fine")]


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantSimpleWorker])
def test_what_one_writes_is_not_lost_with_a_transaction_that_the_function_left_open(
    worker_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = vars(jobs.leaves_a_block_open.tenant_task)
    monkeypatch.setitem(task, "on_success", lambda job, result: tenant_queue("told"))
    jobs.leaves_a_block_open.enqueue("acme")
    run(worker_class)
    assert TenantQueue.objects.filter(tenant="told").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retry_for", "ConnectionError"),
        ("retry_for", ()),
        ("retry_for", (ConnectionError, 5)),
        ("on_success", "tests.jobs.note_success"),
        ("on_failure", 5),
    ],
)
def test_what_cannot_be_meant_is_refused_at_import(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        tenant_job("imports", tenant="history", retry=Retry(max=1), **{option: value})(jobs.note)


def test_errors_to_run_again_for_need_a_retry() -> None:
    with pytest.raises(InvalidOption, match="retry"):
        tenant_job("imports", tenant="history", retry_for=ConnectionError, expires=timedelta(1))(jobs.note)
