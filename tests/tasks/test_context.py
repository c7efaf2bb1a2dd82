"""The context of a job: captured where it is enqueued, kept by its row, and entered around whatever runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django_rq
import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation
from rq import Retry
from rq.job import JobStatus

from tenant_slots import capture_context, signals
from tenant_slots.enqueueing import bulk, on_busy
from tenant_slots.exceptions import InvalidContext, InvalidSetting, UnreadableColumn
from tenant_slots.models import State, TenantJob
from tenant_slots.repair import unreadable
from tests import contexts
from tests.factories import age, counters_match, dead_process, fresh, running_job, tenant_queue, work
from tests.repair.sweeps import sweep_now
from tests.reports_app.models import Report

pytestmark = pytest.mark.django_db(transaction=True)

BOTH = {"CAPTURE_CONTEXT": "tests.contexts.capture", "JOB_CONTEXT": "tests.contexts.job_context"}


@pytest.fixture(autouse=True)
def _forget() -> None:
    contexts.entered.clear()
    contexts.calls.clear()


@contextmanager
def request(name: str) -> Iterator[None]:
    token = contexts.request_id.set(name)
    try:
        yield
    finally:
        contexts.request_id.reset(token)


def one_job() -> TenantJob:
    found: TenantJob = TenantJob.objects.get()
    return found


def call_enqueue() -> TenantJob:
    return contexts.say.enqueue("acme")


def call_delay() -> TenantJob:
    return contexts.say.delay("acme")


def call_using() -> TenantJob:
    return contexts.say.using(priority=3).enqueue("acme")


def call_enqueue_many() -> TenantJob:
    return contexts.say.enqueue_many([(("acme",), {})])[0]


def call_aenqueue() -> TenantJob:
    return async_to_sync(contexts.say.aenqueue)("acme")


def call_aenqueue_many() -> TenantJob:
    return async_to_sync(contexts.say.aenqueue_many)([(("acme",), {})])[0]


@pytest.mark.parametrize(
    "way", [call_enqueue, call_delay, call_using, call_enqueue_many, call_aenqueue, call_aenqueue_many]
)
@override_settings(TENANT_SLOTS=BOTH)
def test_a_job_runs_in_the_context_of_whoever_enqueued_it(way: Any) -> None:
    with request("r-17"):
        job = way()
    assert job.context == {"request_id": "r-17"}
    with request("the worker's own"):
        work()
        assert contexts.request_id.get() == "the worker's own"
    assert (fresh(job).state, job.result, job.context) == (State.FINISHED, "r-17", {"request_id": "r-17"})


def test_without_the_settings_nothing_is_captured_nor_stored() -> None:
    """The control of the others: what they see does come from the settings."""
    with request("r-17"):
        job = call_enqueue()
    work()
    assert (fresh(job).result, job.context) == ("none", {})
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM tenant_slots_tenantjob WHERE context IS NULL")
        assert cursor.fetchone()[0] == 1, "an empty context takes room in the row"


@override_settings(TENANT_SLOTS=BOTH)
def test_an_empty_context_is_empty_in_the_object_too() -> None:
    assert TenantJob().context == {}
    row = tenant_queue()
    TenantJob.objects.create(tenant_queue=row, task="tests.jobs.add")
    assert one_job().context == {}


@override_settings(
    TENANT_SLOTS={**BOTH, "CAPTURE_CONTEXT": ["tests.contexts.capture", "tests.contexts.capture_number"]}
)
@pytest.mark.parametrize("calls", [1, bulk.COPY_FROM])
def test_several_callables_together_come_back_equal(calls: int) -> None:
    """By INSERT and by COPY: numbers keep their type and their sign."""
    contexts.say.enqueue_many([(("acme",), {})] * calls)
    for job in TenantJob.objects.all():
        assert job.context == {"request_id": "none", **contexts.capture_number()}
        assert str(job.context["number"]) == "-0.0"
        assert isinstance(job.context["large"], float)


@override_settings(TENANT_SLOTS=BOTH)
def test_many_calls_are_captured_once() -> None:
    contexts.say.enqueue_many([(("acme",), {})] * 300)
    assert contexts.calls == ["capture"]


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["capture_list"], "it is a list; give a dict"),
        (["capture_object"], "it holds a object"),
        (["capture_digits"], "takes 31"),
        (["capture_much"], 'bytes; TENANT_SLOTS["MAX_ARGS_BYTES"] allows 65536'),
        (["capture", "capture_twice"], "another one gives 'request_id' too"),
    ],
)
def test_a_context_that_cannot_be_kept_is_refused_where_it_is_captured(paths: list[str], problem: str) -> None:
    configured = {"CAPTURE_CONTEXT": [contexts.PATH + path for path in paths]}
    with override_settings(TENANT_SLOTS=configured), pytest.raises(InvalidContext) as raised:
        contexts.say.enqueue("acme")
    assert problem in str(raised.value)
    assert contexts.PATH + paths[-1] in str(raised.value)
    assert not TenantJob.objects.exists()


NO_CALLABLES = ("tests.contexts.nowhere", ".x.y", ".x", "nowhere", "os.sep")


@pytest.mark.parametrize("path", NO_CALLABLES)
def test_a_capture_that_cannot_be_called_is_named_to_the_caller(path: str) -> None:
    with override_settings(TENANT_SLOTS={"CAPTURE_CONTEXT": path}), pytest.raises(InvalidSetting) as raised:
        contexts.say.enqueue("acme")
    assert f"TENANT_SLOTS['CAPTURE_CONTEXT'] is '{path}'" in str(raised.value)


@pytest.mark.parametrize("path", NO_CALLABLES)
def test_a_job_whose_context_cannot_be_called_fails_with_its_name(path: str) -> None:
    job = contexts.say.enqueue("acme")
    with override_settings(TENANT_SLOTS={"JOB_CONTEXT": path}):
        work()
    assert (fresh(job).state, contexts.entered) == (State.FAILED, [])
    assert f"InvalidSetting: TENANT_SLOTS['JOB_CONTEXT'] is '{path}'" in fresh(job).error


@override_settings(TENANT_SLOTS={"CAPTURE_CONTEXT": "tests.contexts.capture_wrongly"})
def test_what_a_capture_raises_reaches_the_caller_and_nothing_is_stored() -> None:
    with pytest.raises(LookupError, match="nobody is signed in"):
        contexts.say.enqueue("acme")
    assert not TenantJob.objects.exists()


@override_settings(TENANT_SLOTS={**BOTH, "JOB_CONTEXT": ["tests.contexts.job_context", "tests.contexts.inner"]})
def test_several_are_entered_in_their_order_and_left_in_the_other() -> None:
    with request("r-1"):
        contexts.say.enqueue("acme")
    work()
    assert contexts.entered == ["enter", "inner in r-1", "run", "inner left", "exit"]


@override_settings(TENANT_SLOTS={"JOB_CONTEXT": ["tests.contexts.job_context", "tests.contexts.inner"]})
def test_the_object_of_a_method_is_fetched_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report.objects.create(tenant="acme")
    report.execute.enqueue("from its context")
    fetched = Report._base_manager.using

    def using(alias: str) -> Any:
        contexts.entered.append("fetched")
        return fetched(alias)

    monkeypatch.setattr(Report._base_manager, "using", using)
    work()
    assert contexts.entered[:3] == ["enter", "inner in nothing captured", "fetched"]
    assert contexts.entered[-2:] == ["inner left", "exit"]
    assert fresh(report).done == "from its context"


REFUSALS = ["refusing", "no_manager", "generator", "missing"]


@pytest.mark.parametrize("path", REFUSALS)
@pytest.mark.parametrize("way", ["enqueue", "plain", "plain without a tenant", "method"])
def test_a_context_that_raises_fails_the_job_which_never_runs_without_it(path: str, way: str) -> None:
    report = Report.objects.create(tenant="acme")
    with override_settings(TENANT_SLOTS={"JOB_CONTEXT": ["tests.contexts.job_context", contexts.PATH + path]}):
        rq_job = None
        if way == "enqueue":
            contexts.say.enqueue("acme")
        elif way == "method":
            report.execute.enqueue()
        else:
            rq_job = django_rq.get_queue("imports").enqueue(contexts.say, "acme" if way == "plain" else "")
        work()
    assert "run" not in contexts.entered
    assert fresh(report).done == ""
    assert contexts.entered in ([], ["enter", "exit"])
    assert [job.state for job in TenantJob.objects.all()] == ([] if way.endswith("tenant") else [State.FAILED])
    assert rq_job is None or rq_job.get_status() == JobStatus.FAILED
    assert counters_match()


@override_settings(TENANT_SLOTS={"JOB_CONTEXT": ["tests.contexts.swallowing", "tests.contexts.refusing"]})
def test_one_that_swallows_errors_does_not_open_the_way_for_a_refused_job() -> None:
    contexts.say.enqueue("acme")
    work()
    assert contexts.entered == ["swallowed"]
    assert one_job().state == State.FAILED
    assert "no such customer" in one_job().error


@override_settings(TENANT_SLOTS={"JOB_CONTEXT": "tests.contexts.swallowing"})
def test_one_that_swallows_errors_does_not_make_a_failed_job_a_finished_one() -> None:
    contexts.raising.enqueue("acme")
    work()
    assert contexts.entered == ["run", "swallowed"]
    assert (one_job().state, one_job().failures) == (State.FAILED, 1)


@pytest.mark.parametrize("kind", ["raising", "refused"])
def test_one_that_swallows_errors_does_not_hide_them_from_those_around_it(kind: str) -> None:
    """One around it with a transaction would commit."""
    paths = ["hearing", "swallowing", *(["refusing"] if kind == "refused" else [])]
    with override_settings(TENANT_SLOTS={"JOB_CONTEXT": [contexts.PATH + path for path in paths]}):
        contexts.raising.enqueue("acme")
        work()
    heard = {"raising": ["run", "swallowed", "heard ValueError"], "refused": ["swallowed", "heard PermissionError"]}
    assert contexts.entered == heard[kind]
    assert one_job().state == State.FAILED


@override_settings(TENANT_SLOTS={"JOB_CONTEXT": "tests.contexts.hearing_per_thread"})
@pytest.mark.parametrize("way", ["enqueue", "plain"])
def test_a_coroutines_error_is_heard_in_the_thread_of_its_orm_calls_too(way: str) -> None:
    """A transaction that was begun there would commit otherwise."""
    if way == "enqueue":
        contexts.raising_later.enqueue("acme")
    else:
        django_rq.get_queue("imports").enqueue(contexts.raising_later, "acme")
    work()
    assert contexts.entered == ["run", "heard ValueError", "heard ValueError"]
    assert one_job().state == State.FAILED
    assert "the feed is empty" in one_job().error


@override_settings(TENANT_SLOTS={"JOB_CONTEXT": "tests.contexts.failing_at_its_end"})
def test_one_that_fails_at_its_end_fails_the_job() -> None:
    contexts.say.enqueue("acme")
    work()
    assert one_job().state == State.FAILED
    assert "the trace could not be sent" in one_job().error


@override_settings(TENANT_SLOTS=BOTH)
def test_a_coroutine_runs_in_the_context() -> None:
    with request("r-2"):
        job = contexts.say_from_threads.enqueue("acme")
    work()
    assert fresh(job).result[0] == "r-2"


@pytest.mark.parametrize(("manager", "elsewhere"), [("PerThread", "r-3"), ("OnlyHere", None)])
@pytest.mark.parametrize("way", ["enqueue", "plain"])
def test_a_coroutine_finds_what_holds_for_a_thread_in_the_thread_of_its_orm_calls(
    manager: str, elsewhere: str | None, way: str
) -> None:
    """One without the mark is the control: the other thread has not got it."""
    with override_settings(TENANT_SLOTS={**BOTH, "JOB_CONTEXT": contexts.PATH + manager}), request("r-3"):
        if way == "enqueue":
            contexts.say_from_threads.enqueue("acme")
        else:
            meta = {"tenant_slots_context": capture_context()}
            django_rq.get_queue("imports").enqueue(contexts.say_from_threads, "acme", meta=meta)
        work()
        left = asyncio.run(contexts.say_from_threads("acme"))
    assert left[1:] == [None, None], "what holds for a thread was left behind in it"
    assert one_job().result == ["r-3", "r-3", elsewhere]


@pytest.mark.parametrize("tenant", ["acme", ""])
@override_settings(TENANT_SLOTS=BOTH)
def test_a_plain_rq_job_brings_its_context_in_its_meta(tenant: str) -> None:
    with request("r-4"):
        meta = {"tenant_slots_context": capture_context(), "mine": 1}
    rq_job = django_rq.get_queue("imports").enqueue(contexts.say, tenant, meta=meta)
    work()
    assert rq_job.return_value() == "r-4"
    assert [job.context for job in TenantJob.objects.all()] == ([{"request_id": "r-4"}] if tenant else [])


@override_settings(TENANT_SLOTS=BOTH)
def test_a_plain_rq_job_without_one_has_an_empty_one() -> None:
    rq_job = django_rq.get_queue("imports").enqueue(contexts.say, "acme")
    work()
    assert rq_job.return_value() == "nothing captured"


@pytest.mark.parametrize("context", ["text", {1: 2}, {"who": object}])
@pytest.mark.parametrize("tenant", ["acme", ""])
def test_a_plain_rq_job_with_a_context_that_is_none_fails(tenant: str, context: Any) -> None:
    meta = {"tenant_slots_context": context}
    rq_job = django_rq.get_queue("imports").enqueue(contexts.say, tenant, meta=meta)
    work()
    assert rq_job.get_status() == JobStatus.FAILED
    assert contexts.entered == []


@override_settings(TENANT_SLOTS=BOTH)
def test_a_plain_rq_job_that_was_put_off_keeps_its_context() -> None:
    row = tenant_queue(max_job=0)
    with request("r-5"):
        meta = {"tenant_slots_context": capture_context()}
    rq_job = django_rq.get_queue("imports").enqueue(contexts.say, "acme", meta=meta)
    work()
    assert one_job().context == {"request_id": "r-5"}
    row.set_limit(1)
    work()
    assert rq_job.return_value(refresh=True) == "r-5"


@override_settings(TENANT_SLOTS=BOTH)
def test_a_call_in_a_job_of_another_function_and_a_direct_call_enter_nothing() -> None:
    assert contexts.say("acme") == "none"
    assert contexts.entered == ["run"]


@override_settings(TENANT_SLOTS=BOTH)
def test_a_retried_job_has_the_context_of_its_first_try() -> None:
    with request("r-6"):
        contexts.raising.enqueue("acme")
    work()
    one_job().retry()
    work()
    assert one_job().attempt == 2
    assert one_job().context == {"request_id": "r-6"}
    assert contexts.entered == ["enter", "run", "exit"] * 2
    assert contexts.calls == ["capture"]


@override_settings(TENANT_SLOTS=BOTH)
def test_a_job_whose_process_died_has_the_context_of_its_first_run() -> None:
    job = running_job(tenant_queue(), dead_process(), context={"request_id": "r-7"})
    TenantJob.objects.filter(pk=job.pk).update(task="tests.contexts.say", args=["acme"])
    age(job, beat_at=3600)
    sweep_now()
    work()
    assert (fresh(job).attempt, job.result) == (2, "r-7")


@override_settings(TENANT_SLOTS=BOTH)
def test_on_busy_is_asked_in_the_context_of_the_job_wherever_it_is_asked() -> None:
    row = tenant_queue(max_job=0)
    with request("r-8"):
        contexts.ask.enqueue("acme")
    waiting = TenantJob.objects.create(
        tenant_queue=row, task="tests.contexts.ask", args=["acme"], context={"request_id": "r-9"}
    )
    with request("the sweep's own"):
        on_busy.turn_away(row.pk, [waiting])
    asked = [text for text in contexts.entered if text.startswith("asked")]
    assert asked == ["asked for r-8", "asked for r-9"]
    assert set(TenantJob.objects.values_list("state", flat=True)) == {State.CANCELED}


def test_on_busy_is_not_asked_where_the_context_refuses_and_the_job_waits() -> None:
    tenant_queue(max_job=0)
    with override_settings(TENANT_SLOTS={"JOB_CONTEXT": "tests.contexts.refusing"}):
        contexts.ask.enqueue("acme")
    assert contexts.entered == []
    assert one_job().state == State.WAITING


@override_settings(TENANT_SLOTS=BOTH)
def test_receivers_are_told_of_the_context_and_are_outside_of_it() -> None:
    told = []

    def note(job: TenantJob, **_: Any) -> None:
        told.append((job.context, contexts.request_id.get()))

    signals.job_started.connect(note)
    signals.job_ended.connect(note)
    try:
        with request("r-10"):
            contexts.say.enqueue("acme")
        work()
    finally:
        signals.job_started.disconnect(note)
        signals.job_ended.disconnect(note)
    assert told == [({"request_id": "r-10"}, "none")] * 2


@override_settings(TENANT_SLOTS=BOTH)
def test_a_context_that_somebody_has_spoilt_fails_the_job_and_the_doctor_names_it() -> None:
    tenant_queue(max_job=0)
    job = contexts.say.enqueue("acme")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE tenant_slots_tenantjob SET context = %s", ["[1]"])
    assert [columns for _, columns in unreadable.jobs()] == [["context"]]
    job.tenant_queue.refresh_from_db()
    job.tenant_queue.set_limit(1)
    work()
    assert contexts.entered == []
    assert fresh(job).state == State.FAILED
    assert UnreadableColumn.__name__ in job.error


def test_capturing_asks_the_database_nothing_more() -> None:
    with CaptureQueriesContext(connection) as without:
        contexts.say.enqueue("acme")
    with override_settings(TENANT_SLOTS=BOTH), CaptureQueriesContext(connection) as with_one:
        contexts.say.enqueue("acme")
    assert len(with_one) <= len(without)


@override_settings(
    TENANT_SLOTS={
        "CAPTURE_CONTEXT": "tenant_slots.contrib.localization.capture",
        "JOB_CONTEXT": "tenant_slots.contrib.localization.job_context",
    }
)
@pytest.mark.parametrize("function", ["say_where", "say_where_later"])
def test_the_ready_made_one_brings_language_and_time_zone(function: str) -> None:
    with translation.override("de"), timezone.override("America/New_York"):
        job = getattr(contexts, function).enqueue("acme")
    work()
    assert fresh(job).result == ["de", "America/New_York"]
    assert job.context == {"language": "de", "time_zone": "America/New_York"}
    assert translation.get_language() != "de"


@override_settings(TENANT_SLOTS={"JOB_CONTEXT": "tenant_slots.contrib.localization.job_context"})
def test_the_ready_made_one_leaves_what_was_not_captured() -> None:
    job = contexts.say_where.enqueue("acme")
    with translation.override("fr"):
        work()
    assert fresh(job).result[0] == "fr"


@pytest.mark.parametrize(
    "configured",
    [
        {"CAPTURE_CONTEXT": 1},
        {"CAPTURE_CONTEXT": {"tests.contexts.capture"}},
        {"CAPTURE_CONTEXT": [contexts.capture]},
        {"CAPTURE_CONTEXT": "tests.contexts.nowhere"},
        {"CAPTURE_CONTEXT": "tests.contexts.PATH"},
        {"CAPTURE_CONTEXT": "tests.contexts.asynchronous"},
        {"JOB_CONTEXT": ["tests.contexts.job_context", "tests.nowhere"]},
        {"JOB_CONTEXT": "tests.contexts.generator"},
        {"JOB_CONTEXT": "tests.contexts.asynchronous"},
        {"JOB_CONTEXT": "tests.contexts.manager_for_async_code"},
        {"JOB_CONTEXT": "tests.contexts.NoManager"},
    ],
)
def test_a_wrong_setting_is_an_error_of_the_check(configured: Any) -> None:
    with override_settings(TENANT_SLOTS=configured):
        assert [message.id for message in run_checks(tags=["tenant_slots"])] == ["tenant_slots.E003"]


@pytest.mark.parametrize("path", ["no_manager", "generator", "manager_for_async_code", "NoManager"])
def test_what_gives_no_context_manager_is_named_in_the_error_of_the_job(path: str) -> None:
    with override_settings(TENANT_SLOTS={"JOB_CONTEXT": ["tests.contexts.job_context", contexts.PATH + path]}):
        job = contexts.say.enqueue("acme")
        work()
    assert f"InvalidSetting: TENANT_SLOTS['JOB_CONTEXT'] is 'tests.contexts.{path}': it gave" in fresh(job).error
    assert contexts.entered == ["enter", "exit"]


@pytest.mark.parametrize(
    "configured",
    [
        BOTH,
        {"CAPTURE_CONTEXT": "", "JOB_CONTEXT": ()},
        {"CAPTURE_CONTEXT": ["tests.contexts.capture"], "JOB_CONTEXT": ("tests.contexts.PerThread",)},
    ],
)
def test_right_settings_have_no_messages(configured: Any) -> None:
    with override_settings(TENANT_SLOTS=configured):
        assert run_checks(tags=["tenant_slots"]) == []


@override_settings(TENANT_SLOTS=BOTH)
def test_a_retry_after_an_error_of_the_context_counts_as_one_after_an_error_of_the_job() -> None:
    with override_settings(TENANT_SLOTS={**BOTH, "JOB_CONTEXT": "tests.contexts.refusing"}):
        job = contexts.say_again.enqueue("acme")
        work()
    assert isinstance(contexts.say_again.tenant_task.rq_options["retry"], Retry)
    assert (fresh(job).state, job.failures) == (State.SCHEDULED, 1)
