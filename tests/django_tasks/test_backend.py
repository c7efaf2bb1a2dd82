"""Plain ``@task`` functions become jobs like any other, and Django's API tells of them from the database."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from datetime import timezone as zone
from typing import Any
from uuid import UUID, uuid4

import django_rq
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from rq import Retry

from tenant_slots import slots, tenant_scope
from tenant_slots.admin.arguments import shown_args
from tenant_slots.django_tasks.results import result_with
from tenant_slots.exceptions import ArgumentNotJSON, InvalidTenant, TaskWithoutTenant, UnknownJob
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.tasks import attempts
from tenant_slots.testing import run_jobs
from tests import jobs as ours
from tests.django_tasks import tasks
from tests.django_tasks.api import (
    PASSES_OPTIONS_ON,
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.factories import dead_process, work
from tests.refusals import any_change_of, refused

pytestmark = pytest.mark.django_db

BACKEND = "tenant_slots.tasks_backend.TenantSlotsBackend"


TOO_LATE = timezone.make_aware(datetime.max, zone(timedelta(hours=-12)))


def configured(**options: Any) -> Any:
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}})


def job_of(result: Any) -> TenantJob:
    found: TenantJob = TenantJob.objects.select_related("tenant_queue").get(uuid=result.id)
    return found


def tenant_of(result: Any) -> str:
    tenant: str = job_of(result).tenant_queue.tenant
    return tenant


def whoever(*args: Any, **kwargs: Any) -> Any:
    return kwargs.get("shop")


def test_a_call_is_a_job_of_the_tenant_that_its_argument_names() -> None:
    result = tasks.add.enqueue("acme", 1, b=2)
    job = job_of(result)
    assert (job.tenant_queue.tenant, job.tenant_queue.queue) == ("acme", "imports")
    assert (job.task, job.args, job.kwargs) == ("tests.django_tasks.tasks.add", ["acme", 1], {"b": 2})
    assert (result.status, result.attempts, result.worker_ids, result.errors) == (TaskResultStatus.READY, 0, [], [])
    assert (result.args, result.kwargs, result.backend) == (["acme", 1], {"b": 2}, "default")
    assert result.enqueued_at == job.enqueued_at
    assert result.started_at is result.finished_at is result.last_attempted_at is None
    assert result.task == tasks.add


def test_a_call_takes_a_slot_and_its_result_is_read_back() -> None:
    results = [tasks.add.enqueue("acme", number) for number in range(3)]
    run_jobs()
    assert TenantQueue.objects.get(tenant="acme").current_job == 0
    for number, result in enumerate(results):
        result.refresh()
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, number + 1)
        assert (result.attempts, result.worker_ids) == (1, ["tenant_slots.testing"])
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.started_at == result.last_attempted_at


def test_an_argument_may_have_any_name() -> None:
    result = tasks.named.enqueue(tenant_id="acme", path="feed.csv", function="sum")
    run_jobs()
    result.refresh()
    assert result.return_value == ["feed.csv", "sum", {}]


def test_a_result_survives_the_loss_of_redis() -> None:
    result = tasks.add.enqueue("acme", 41)
    run_jobs()
    django_rq.get_connection("default").flushall()
    assert tasks.add.get_result(result.id).return_value == 42
    assert async_to_sync(tasks.add.aget_result)(result.id).return_value == 42
    assert task_backends["default"].get_result(result.id).return_value == 42


def test_a_secret_argument_is_masked_by_its_place() -> None:
    shown = shown_args(job_of(tasks.sign_in.enqueue("acme", "hunter2")))
    assert "hunter2" not in shown
    assert "acme" in shown


def test_the_id_is_known_in_the_transaction_and_a_rollback_leaves_no_call() -> None:
    with transaction.atomic():
        result = tasks.add.enqueue("acme", 1)
        assert tasks.add.get_result(result.id).status == TaskResultStatus.READY
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.add.get_result(result.id)


def test_async_functions_and_async_callers() -> None:
    result = async_to_sync(tasks.add_slowly.aenqueue)("acme", 4)
    run_jobs()
    async_to_sync(result.arefresh)()
    assert result.return_value == 5


def test_a_task_that_takes_its_context_knows_its_result() -> None:
    result = tasks.who_am_i.enqueue("acme")
    run_jobs()
    result.refresh()
    assert result.return_value == [result.id, "RUNNING", 1, ["tenant_slots.testing"], ["acme"]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("run", [run_jobs, work])
def test_a_decorator_between_both_of_ours_has_its_part_in_one_slot(run: Callable[[], Any]) -> None:
    result = tasks.add_and_double.enqueue("acme", 20)
    run()
    result.refresh()
    assert (result.return_value, result.attempts) == (42, 1)
    assert TenantJob.objects.count() == 1


def test_a_failure_says_what_was_raised() -> None:
    result = tasks.fail.enqueue("acme", "no such feed")
    run_jobs()
    result.refresh()
    (error,) = result.errors
    assert result.status == TaskResultStatus.FAILED
    assert error.exception_class is ValueError
    assert error.traceback.endswith("ValueError: no such feed\n")
    assert result.finished_at is not None
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value


def test_every_attempt_leaves_its_error_and_its_worker() -> None:
    result = tasks.flaky.enqueue("acme", "ann", 3)
    job = job_of(result)
    assert (job.tenant_queue.tenant, job.key, job.options["timeout"]) == ("acme", "ann", 77)
    run_jobs()
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL, result.errors
    assert (result.return_value, result.attempts) == (3, 3)
    assert [error.traceback.splitlines()[-1] for error in result.errors] == [
        "ConnectionError: attempt 1",
        "ConnectionError: attempt 2",
    ]
    assert {error.exception_class for error in result.errors} == {ConnectionError}
    assert result.worker_ids == ["tenant_slots.testing"] * 3
    assert result.started_at < result.last_attempted_at < result.finished_at


def test_using_takes_away_what_the_decorator_inside_has() -> None:
    once = tasks.flaky.using(timeout=None).using(retry=None).using(priority=1)
    assert not job_of(once.enqueue("acme", "ann", 9)).options.keys() & {"retry", "timeout"}
    assert job_of(tasks.flaky.using(timeout=5).enqueue("acme", "ann", 1)).options["retry"]["max"] == 2


def test_a_time_that_the_decorator_inside_decides_is_refused() -> None:
    job = job_of(tasks.sum_up.enqueue("acme"))
    assert job.run_after > timezone.now()
    with pytest.raises(InvalidTask, match="debounce says when the job runs"):
        tasks.sum_up.using(run_after=timezone.now() + timedelta(hours=1))


def test_a_retried_task_fails_with_all_its_errors() -> None:
    result = tasks.flaky.enqueue("acme", "ann", 9)
    run_jobs()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 3, 3)
    job_of(result).retry()
    run_jobs()
    result.refresh()
    assert (result.attempts, len(result.errors)) == (6, 6)


def test_a_canceled_call_has_failed_without_an_attempt() -> None:
    result = tasks.add.enqueue("acme", 1)
    job_of(result).cancel()
    result.refresh()
    (error,) = result.errors
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 0)
    assert error.exception_class.__name__ == "TaskCanceled"


@pytest.mark.django_db(transaction=True)
def test_each_run_counts_whatever_came_of_it() -> None:
    """As ``context.attempt`` does: a function that asks for its first two runs comes to the third."""
    result = tasks.comes_again.enqueue("acme", ["busy", "again", "raises", "again"])
    _run_until_it_ends(result)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, [1, 2, 3, 4, 5])
    assert (result.attempts, len(result.worker_ids)) == (job_of(result).attempt, 5)
    assert [error.exception_class for error in result.errors] == [ConnectionError]
    assert result.started_at < result.last_attempted_at


@pytest.mark.django_db(transaction=True)
def test_runs_count_whose_worker_and_error_the_job_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or ``context.attempt``, by which a function gives up, would never grow again."""
    monkeypatch.setattr(attempts, "MOST_RUNS", 2)
    result = tasks.comes_again.enqueue("acme", ["again", "again", "raises", "again"])
    _run_until_it_ends(result)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, [1, 2, 3, 4, 5])
    assert (result.attempts, result.worker_ids[:3]) == (5, ["", "", "tenant_slots.testing"])


@pytest.mark.django_db(transaction=True)
def test_a_call_that_asked_for_too_many_runs_has_failed_with_the_reason() -> None:
    result = tasks.comes_again.enqueue("acme", ["again"] * 9)
    _run_until_it_ends(result)
    (error,) = result.errors
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 6)
    assert error.traceback == job_of(result).error


def test_a_run_that_was_canceled_stays_an_attempt_with_its_error_after_a_retry() -> None:
    result = tasks.add.enqueue("acme", 1)
    (job,) = slots.admit(job_of(result).tenant_queue_id, "imports").jobs
    assert slots.start(job, dead_process("worker-7"))
    assert lost_runs.end_lost_run(job_of(result), "stopped", state=State.CANCELED)
    canceled = ["tenant_slots.exceptions.TaskCanceled"]
    assert _attempts_of(result) == (TaskResultStatus.FAILED, ["worker-7"], canceled)
    job_of(result).retry()
    assert _attempts_of(result) == (TaskResultStatus.READY, ["worker-7"], canceled)
    run_jobs()
    assert _attempts_of(result) == (TaskResultStatus.SUCCESSFUL, ["worker-7", "tenant_slots.testing"], canceled)


@pytest.mark.django_db(transaction=True)
def test_a_run_that_ended_before_its_cancel_could_stop_it_was_an_attempt() -> None:
    result = tasks.ends_though_canceled.enqueue("acme")
    run_jobs()
    canceled = ["tenant_slots.exceptions.TaskCanceled"]
    assert _attempts_of(result) == (TaskResultStatus.FAILED, ["tenant_slots.testing"], canceled)
    assert result.started_at == result.last_attempted_at is not None
    job_of(result).retry()
    assert _attempts_of(result) == (TaskResultStatus.READY, ["tenant_slots.testing"], canceled)
    assert result.started_at == result.last_attempted_at is not None


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELED])
def test_a_call_whose_slot_is_taken_before_it_has_begun_has_made_no_attempt(state: State) -> None:
    result = tasks.add.enqueue("acme", 1)
    slots.admit(job_of(result).tenant_queue_id, "imports")
    assert lost_runs.end_lost_run(job_of(result), "stuck", state=state)
    status, workers, errors = _attempts_of(result)
    assert (status, workers, len(errors)) == (TaskResultStatus.FAILED, [], 1)
    assert result.errors[0].traceback == "attempt 1: stuck"
    assert result.started_at is result.last_attempted_at is None


@pytest.mark.django_db(transaction=True)
def test_a_call_that_the_database_does_not_let_begin_again_has_made_the_attempts_before() -> None:
    result = tasks.fail.enqueue("acme")
    run_jobs()
    job_of(result).retry()
    with refused(f"{any_change_of(job_of(result))} AND NEW.state = 'running'"):
        work()
    status, workers, errors = _attempts_of(result)
    assert (status, len(workers)) == (TaskResultStatus.FAILED, 1)
    assert [error.rpartition(".")[2] for error in errors] == ["ValueError", "TenantSlotsError"]
    assert result.started_at == result.last_attempted_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_does_not_know_the_function_has_made_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    result = tasks.add.enqueue("acme", 1)
    with monkeypatch.context() as without_it:
        without_it.delattr(tasks, "add")
        work()
    assert _attempts_of(result) == (TaskResultStatus.READY, [], [])
    assert result.started_at is result.last_attempted_at is None


def _attempts_of(result: Any) -> tuple[Any, list[str], list[str]]:
    result.refresh()
    return result.status, result.worker_ids, [error.exception_class_path for error in result.errors]


def _run_until_it_ends(result: Any) -> None:
    """A tenant that is busy rests."""
    while not result.is_finished:
        TenantQueue.objects.update(rests_until=None)
        run_jobs(scheduled=True)
        result.refresh()


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("set", TypeError),
        ("endless", TypeError),
        ("large", "ResultNotStorable"),
        ("nan", "ResultNotStorable"),
    ],
)
def test_a_result_that_cannot_be_kept_is_a_failure(what: str, error: Any) -> None:
    result = tasks.give.enqueue("acme", what)
    run_jobs()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert error in (result.errors[0].exception_class, result.errors[0].exception_class.__name__)


@pytest.mark.parametrize(
    ("what", "kept"),
    [
        ("tuple", [1, [2]]),
        ("bytes", "abc"),
        ("keys", [{"1": {"a": {"2.5": 3}}, "false": 4, "null": 5}]),
    ],
)
def test_a_result_is_made_plain_as_django_and_json_do(what: str, kept: Any) -> None:
    result = tasks.give.enqueue("acme", what)
    run_jobs()
    result.refresh()
    assert result.return_value == kept


def test_priority_time_and_queue_are_the_jobs_own() -> None:
    later = timezone.now() + timedelta(hours=1)
    result = tasks.add.using(priority=-100, run_after=later, queue_name="reports").enqueue("acme", 1)
    job = job_of(result)
    assert (job.priority, job.state, job.run_after, job.tenant_queue.queue) == (-100, State.SCHEDULED, later, "reports")
    again = tasks.add.get_result(result.id)
    assert (again.task.priority, again.task.run_after, again.task.queue_name) == (-100, later, "reports")
    assert again == result


def test_the_queue_of_a_call_is_its_own_where_the_decorator_inside_has_the_same() -> None:
    backend = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"TENANT": "tenant_id"}}
    with override_settings(TASKS={"default": backend}):
        for task, queue in ((tasks.open_up, "default"), (tasks.open_up.using(queue_name="imports"), "imports")):
            result = task.enqueue("acme")
            again = tasks.open_up.get_result(result.id)
            assert (again.task.queue_name, job_of(again).tenant_queue.queue) == (queue, "imports")
            assert again == result


def test_a_higher_priority_goes_first() -> None:
    for priority in (0, 100, -100, 50):
        tasks.add.using(priority=priority).enqueue("acme", priority)
    assert [job.priority for job in run_jobs()] == [100, 50, 0, -100]


def test_the_tenant_of_a_call_is_the_first_that_is_named() -> None:
    with configured(TENANT="shop"), tenant_scope("scope"):
        assert tenant_of(tasks.ping.using(tenant="using").enqueue(shop="option")) == "using"
        assert tenant_of(tasks.flaky.enqueue("decorator", "ann", 1)) == "decorator"
        assert tenant_of(tasks.ping.enqueue()) == "scope"
    with configured(TENANT=whoever), tenant_scope("scope"):
        assert tenant_of(tasks.ping.enqueue(shop="option")) == "option"
        assert tenant_of(tasks.ping.enqueue()) == "scope"
    with configured(TENANT=f"{__name__}.whoever"):
        assert tenant_of(tasks.ping.enqueue(shop="option")) == "option"


def test_an_argument_that_a_function_takes_among_any_keywords_names_the_tenant_too() -> None:
    with configured(TENANT="shop"), tenant_scope("scope"):
        assert tenant_of(tasks.ping.enqueue(shop="option")) == "option"
        assert tenant_of(tasks.ping.enqueue(other="option")) == "scope"


def test_no_keyword_of_a_call_takes_the_place_of_the_argument_that_names_the_tenant() -> None:
    """Where that is given by its place alone, the function may take a keyword of its name: of whoever sent it."""
    result = tasks.receive.enqueue("acme", tenant_id="victim")
    assert tenant_of(result) == "acme"
    run_jobs()
    result.refresh()
    assert result.return_value == {"tenant_id": "victim"}


def test_no_keyword_of_a_call_is_the_context_of_its_function() -> None:
    """Each run would fail: the function would get two of that name."""
    with pytest.raises(TypeError, match="multiple values for argument 'context'"):
        tasks.receive_in_context.enqueue("acme", context="mine")
    assert not TenantJob.objects.exists()
    result = tasks.receive_in_context.enqueue("acme", contexts="mine")
    run_jobs()
    result.refresh()
    assert result.return_value == {"contexts": "mine"}


def test_what_collects_arguments_is_no_argument_that_names_the_tenant() -> None:
    for option in ("senders", "shop"):
        with configured(TENANT=option), tenant_scope("scope"):
            assert tenant_of(tasks.receive_from.enqueue("one", "two", path="a.csv")) == "scope"
            assert tenant_of(tasks.receive_from.enqueue(**{option: "option"})) == "option"


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("priority", "1", "give a whole number from -100 to 100"),
        ("priority", float("nan"), "give a whole number from -100 to 100"),
        ("priority", 1.5, "priority must be a whole number between -100 and 100"),
        ("run_after", timedelta(hours=1), "give a datetime, such as timezone.now() + timedelta(hours=1)"),
        ("run_after", "2030-01-01", "give a datetime"),
        ("run_after", TOO_LATE, "it is not within the years 1 to 9999 in every time zone"),
        ("queue_name", ["imports"], "it must be of type str"),
        ("key", 5, "it must be of type str"),
        ("timeout", "long", "it must be of type int"),
    ],
)
def test_a_value_that_cannot_be_meant_is_no_task(option: str, value: Any, problem: str) -> None:
    with pytest.raises(InvalidTask, match=re.escape(problem)) as refused:
        tasks.add.using(**{option: value})
    if "must be a whole" not in problem:  # Django's own words
        assert repr(value) in str(refused.value)


@pytest.mark.parametrize("tenant", [[], 1.5, True])
def test_what_is_no_tenant_is_refused_where_it_is_written(tenant: Any) -> None:
    with pytest.raises(InvalidTenant, match=re.escape(repr(tenant))):
        tasks.add.using(tenant=tenant)


@pytest.mark.parametrize("option", ["priority", "queue_name"])
@pytest.mark.parametrize("value", [None, {"wrong": 1}])
def test_the_decorator_refuses_them_too(option: str, value: Any) -> None:
    with pytest.raises(InvalidTask, match=option):
        task(**{"queue_name": "imports", option: value})(tasks.add.func)


@pytest.mark.skipif(not PASSES_OPTIONS_ON, reason="@task of Django 6.0 takes no further keyword arguments")
def test_the_decorator_names_a_tenant_and_a_key() -> None:
    own: Any = task(queue_name="imports", tenant="a", key="b", retry=Retry(max=1))  # type: ignore[call-overload]
    result = own(tasks.add.func).using(run_after=timezone.now()).enqueue("acme", "seven", 8)
    job = job_of(result)
    assert (job.tenant_queue.tenant, job.key, job.options["retry"]["max"]) == ("seven", "8", 1)
    once = own(tasks.add.func).using(retry=None, timeout=7).using(run_after=timezone.now()).enqueue("acme", "seven", 8)
    assert (job_of(once).options["timeout"], "retry" in job_of(once).options) == (7, False)
    for wrong in ({"tenant": "nobody"}, {"key": "nobody"}, {"timeout": "long"}):
        with pytest.raises(InvalidTask):
            task(queue_name="imports", **wrong)(tasks.add.func)  # type: ignore[call-overload]


@pytest.mark.parametrize(("option", "inside"), [("tenant", tasks.by_context), ("key", tasks.with_context_as_key)])
def test_the_context_of_a_task_is_no_tenant_and_no_key(option: str, inside: Any) -> None:
    """Nor where the decorator inside names it: no call gives it."""
    with pytest.raises(InvalidTask, match=rf"no argument 'context' to take the {option} from \(it has: shop\)"):
        task(queue_name="imports", takes_context=True)(inside)
    assert task(queue_name="imports")(inside).func is inside, "control: without it the argument is one like any other"
    if PASSES_OPTIONS_ON:
        with pytest.raises(InvalidTask, match=rf"no argument 'context' to take the {option} from"):
            task(queue_name="imports", takes_context=True, **{option: "context"})(tasks.who_am_i.func)  # type: ignore[call-overload]


def test_a_call_of_nobody_is_refused_and_the_error_names_the_ways_out() -> None:
    for call in (lambda: tasks.ping.enqueue(), lambda: tasks.add.enqueue(None, 1), lambda: tasks.add.enqueue("", 1)):
        with pytest.raises(TaskWithoutTenant, match=r"using\(tenant=\.\.\.\).*tenant_scope"):
            call()
    assert not TenantJob.objects.exists()
    assert tenant_of(tasks.ping.using(tenant="").enqueue()) == ""


def test_a_scope_ends_and_refuses_what_is_no_tenant() -> None:
    with tenant_scope("acme"), tenant_scope(7):
        assert tenant_of(tasks.ping.enqueue()) == "7"
    with pytest.raises(InvalidTenant), tenant_scope(""):
        pass
    with pytest.raises(TaskWithoutTenant):
        tasks.ping.enqueue()


def test_a_scope_holds_for_an_asynchronous_call() -> None:
    async def call() -> Any:
        with tenant_scope("acme"):
            return await tasks.ping.aenqueue()

    assert tenant_of(async_to_sync(call)()) == "acme"


def test_what_using_was_given_is_known_of_the_result() -> None:
    result = tasks.ping.using(tenant="acme", key="ann").enqueue()
    again = tasks.ping.get_result(result.id)
    assert (again.task.explicit_tenant, again.task.explicit_key, job_of(result).key) == ("acme", "ann", "ann")
    assert again == result


def test_how_long_and_how_often_a_call_runs_is_known_of_the_result() -> None:
    for called in (tasks.add.using(timeout=777, retry=Retry(2, [1, 5])), tasks.add):
        result = called.enqueue("acme", 1)
        again = tasks.add.get_result(result.id)
        assert again.task.timeout == called.timeout
        assert (again.task.retry is None) is (called.retry is None)
        second = job_of(again.task.enqueue(*again.args))
        assert second.options == job_of(result).options
    assert not second.options.keys() & {"timeout", "retry"}, "the control: it had none"


def test_what_the_decorator_inside_says_of_that_is_known_too_unless_using_takes_it_away() -> None:
    result = tasks.flaky.enqueue("acme", "ann", 9)
    assert tasks.flaky.get_result(result.id) == result
    assert result.task.retry.max == 2
    without = tasks.flaky.using(retry=None).enqueue("acme", "ann", 10)
    assert tasks.flaky.get_result(without.id).task.retry is None


@pytest.mark.parametrize("task_is_first", [True, False])
def test_a_call_that_has_an_identical_job_already_is_read_back_whichever_way_that_came(task_is_first: bool) -> None:
    if task_is_first:
        result, job = tasks.tidy_up.enqueue("acme"), tasks.tidy_up.func.enqueue("acme")
    else:
        job, result = tasks.tidy_up.func.enqueue("acme"), tasks.tidy_up.enqueue("acme")
    assert (result.id, result.backend) == (str(job.uuid), "default")
    run_jobs()
    assert tasks.tidy_up.get_result(result.id).return_value == "acme is tidy"
    result.refresh()
    assert (result.status, result.backend) == (TaskResultStatus.SUCCESSFUL, "default")


def test_arguments_are_made_plain_and_what_cannot_be_is_refused() -> None:
    result = tasks.ping.using(tenant="acme").enqueue((1, b"x"), many={"a": (2,)})
    assert (result.args, result.kwargs) == ([[1, "x"]], {"many": {"a": [2]}})
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.ping.using(tenant="acme").enqueue(timezone.now())
    with pytest.raises(ArgumentNotJSON):
        tasks.ping.using(tenant="acme").enqueue(float("nan"))
    with pytest.raises(ArgumentNotJSON, match="JSON keys are texts"):
        tasks.ping.using(tenant="acme").enqueue({1: 2})
    with pytest.raises(TypeError, match="missing"):
        tasks.add.using(tenant="acme").enqueue()
    for endless in (holds_itself(), {"in a dict": holds_itself()}):
        with pytest.raises(TypeError, match="nested too deeply, or holds itself"):
            tasks.ping.using(tenant="acme").enqueue(endless)


def holds_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def raised_by_staff() -> Any:
    result = tasks.add.enqueue("acme", 1)
    job_of(result).set_priority(500)
    return result


def left_to_the_decorator_inside() -> Any:
    result = tasks.open_up.enqueue("acme")
    assert job_of(result).tenant_queue.queue == "imports"
    return result


@pytest.mark.parametrize(("called", "queue"), [(raised_by_staff, "imports"), (left_to_the_decorator_inside, "default")])
def test_the_task_of_a_result_can_be_called_again(called: Callable[[], Any], queue: str) -> None:
    """Also where its job has a priority or a queue that Django would refuse for a Task."""
    backend = {"BACKEND": BACKEND, "QUEUES": [queue], "OPTIONS": {"TENANT": "tenant_id"}}
    with override_settings(TASKS={"default": backend}):
        result = tasks.add.get_backend().get_result(called().id)
        again = result.task.using(tenant="other").enqueue(*result.args)
        assert job_of(again).tenant_queue.queue == job_of(result).tenant_queue.queue
        assert pickle.loads(pickle.dumps(result)) == result


def test_a_task_and_its_results_are_the_same_when_they_were_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a lambda can be pickled nowhere, and RQ's objects are equal to no copy."""
    named = replace(tasks.flaky, tenant=lambda shop, user, works_at: shop)
    monkeypatch.setattr(tasks, "flaky", named)
    result = named.using(priority=3).enqueue("acme", "user-7", works_at=1)
    for pickled in (named, result, tasks.flaky.get_result(result.id)):
        assert pickle.loads(pickle.dumps(pickled)) == pickled


def test_rqs_cron_may_be_given_the_way_to_enqueue_a_task() -> None:
    """It pickles that as a method of the Task."""
    enqueue = pickle.loads(pickle.dumps(tasks.add.using(tenant="acme").enqueue))
    assert tenant_of(enqueue("other", 1)) == "acme"


def test_a_task_that_is_gone_cannot_be_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(tasks.add)
    monkeypatch.delattr(tasks, "add")
    with pytest.raises(UnknownJob):
        pickle.loads(pickled)


def test_results_of_others_are_not_found() -> None:
    from tests import jobs

    plain = jobs.fail.enqueue("acme")
    for unknown in ("123", str(uuid4()), str(plain.uuid)):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(unknown)
    with pytest.raises(TaskResultMismatch):
        tasks.fail.get_result(tasks.add.enqueue("acme", 1).id)


def test_the_result_of_a_job_in_no_state_has_failed_and_says_why() -> None:
    """As when somebody has written one into its row."""
    result = tasks.add.enqueue("acme", 1)
    assert tasks.add.get_result(result.id).status == TaskResultStatus.READY
    TenantJob.objects.filter(uuid=result.id).update(state="nowhere")
    spoilt = tasks.add.get_result(result.id)
    assert (spoilt.status, spoilt.is_finished) == (TaskResultStatus.FAILED, True)
    assert "'nowhere'" in spoilt.errors[-1].traceback
    result.refresh()
    assert result.status == TaskResultStatus.FAILED


def test_the_result_of_a_task_that_is_gone_names_it() -> None:
    result = tasks.add.enqueue("acme", 1)
    TenantJob.objects.filter(uuid=result.id).update(task="tests.django_tasks.tasks.gone")
    with pytest.raises(UnknownJob, match=r"tests\.django_tasks\.tasks\.gone' is neither a function .* nor a Task"):
        task_backends["default"].get_result(result.id)


def test_a_task_that_no_worker_would_find_is_refused_when_it_is_enqueued() -> None:
    with pytest.raises(InvalidTask, match=r"tests\.django_tasks\.tasks\._add is no Task in its module"):
        tasks.add_under_another_name.enqueue("acme", 1)
    assert not TenantJob.objects.exists()


def test_a_task_of_the_program_that_runs_here_is_refused_when_it_is_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.add.func, "__module__", "__main__")
    with pytest.raises(InvalidTask, match=r"__main__\.add cannot be enqueued: it is in the program that runs here"):
        tasks.add.enqueue("acme", 1)
    assert not TenantJob.objects.exists()


def test_a_row_names_nothing_but_a_task() -> None:
    """A forged one does not have another function called."""
    result = tasks.add.enqueue("acme", 1)
    for path in ("os.system", "tests.django_tasks.tasks.note", "tests.jobs.fail", "tests.django_tasks.tasks.add.func"):
        TenantJob.objects.filter(uuid=result.id).update(task=path, state=State.WAITING)
        TenantQueue.objects.update(current_job=0)
        run_jobs()
        job = job_of(result)
        assert job.state == State.SCHEDULED, path
        assert "waits for a worker that knows its function" in job.error


@pytest.mark.django_db(transaction=True)
def test_djangos_signals_are_sent_with_what_the_database_has() -> None:
    told: list[tuple[Any, ...]] = []

    def hear(signal: Any, name: str) -> Any:
        def receiver(sender: Any, task_result: Any, **_: Any) -> None:
            told.append((name, sender.__name__, task_result.id, str(task_result.status), task_result.attempts))

        signal.connect(receiver)
        return receiver

    heard = [
        (signal, hear(signal, name))
        for signal, name in ((task_enqueued, "enqueued"), (task_started, "started"), (task_finished, "finished"))
    ]
    try:
        with override_settings(TENANT_SLOTS={"IMMEDIATE": True}), transaction.atomic():
            result = tasks.add.enqueue("acme", 1)
            assert told == []
    finally:
        for signal, receiver in heard:
            signal.disconnect(receiver)
    ours = "TenantSlotsBackend", UUID(result.id)
    assert [(name, sender, UUID(known), *rest) for name, sender, known, *rest in told] == [
        ("enqueued", *ours, "READY", 0),
        ("started", *ours, "RUNNING", 1),
        ("finished", *ours, "SUCCESSFUL", 1),
    ]


def test_nothing_is_said_of_calls_that_find_no_slot_when_they_run_in_a_test(caplog: pytest.LogCaptureFixture) -> None:
    """Their Tasks know no ``on_busy``, unless a ``@tenant_job`` inside has one."""
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=1)
    results = [tasks.add.enqueue("acme", number) for number in range(2)]
    run_jobs()
    for result in results:
        result.refresh()
    assert [result.status for result in results] == [TaskResultStatus.SUCCESSFUL] * 2
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_control_a_call_does_as_the_tenant_job_inside_says_when_it_finds_no_slot() -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=1)
    waits, discarded = [tasks.not_twice.enqueue("acme") for _ in range(2)]
    run_jobs()
    assert [job_of(result).state for result in (waits, discarded)] == [State.FINISHED, State.CANCELED]


@pytest.mark.django_db(transaction=True)
def test_immediate_mode_runs_a_call_at_once() -> None:
    with override_settings(TENANT_SLOTS={"IMMEDIATE": True}):
        assert tasks.add.enqueue("acme", 1).return_value == 2


def test_a_task_over_a_task_of_another_backend_is_found_by_workers() -> None:
    """Where ``@task`` was used with Django's own backend, `using` may still choose ours."""
    immediate = {"BACKEND": "tests.django_tasks.backends.Immediate"}
    settings = {"default": immediate, "slots": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"TENANT": "tenant_id"}}}
    with override_settings(TASKS=settings):
        result = task()(tasks.add.func).using(backend="slots").enqueue("acme", 1)
        assert result.backend == "slots"
        run_jobs()
        result.refresh()
        assert result.return_value == 2


@pytest.mark.parametrize("options", [None, ["TENANT"], {"TENANT": "nowhere.tenant"}])
def test_what_options_another_backend_has_is_nothing_to_ours(options: Any) -> None:
    immediate = {"BACKEND": "tests.django_tasks.backends.Immediate", "OPTIONS": options}
    with override_settings(TASKS={"default": immediate, "slots": OURS}):
        result = task()(tasks.add.func).using(backend="slots").enqueue("acme", 1)
        run_jobs()
        assert slots_result(result).return_value == 2


@pytest.mark.parametrize("options", [["TENANT"], "tenant_id", 7])
def test_options_that_are_none_name_no_tenant(options: Any) -> None:
    """As the check says of them, E017."""
    with override_settings(TASKS={"default": {**OURS, "OPTIONS": options}}):
        with pytest.raises(TaskWithoutTenant):
            tasks.add.enqueue("acme", 1)
        with tenant_scope("acme"):
            assert tenant_of(tasks.add.enqueue("acme", 1)) == "acme"


OURS = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"TENANT": "tenant_id"}}
IMMEDIATE = {"BACKEND": "tests.django_tasks.backends.Immediate"}
NOWHERE = {"BACKEND": "nowhere.Backend"}
UNUSABLE = {"BACKEND": f"{__name__}.unusable"}


def unusable(alias: str, params: Any) -> None:
    raise ImproperlyConfigured(f"what {alias} needs is not installed on this host")


def slots_result(result: Any) -> Any:
    return task_backends["slots"].get_result(result.id)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("today", "answers"),
    [
        ({"default": OURS}, "default"),
        ({"default": OURS, "slots": IMMEDIATE}, "default"),
        ({"default": OURS, "slots": NOWHERE}, "default"),
        ({"default": IMMEDIATE, "jobs": OURS}, "jobs"),
        ({"default": IMMEDIATE, "a": NOWHERE, "jobs": OURS}, "jobs"),
        ({"default": IMMEDIATE, "a": {}, "b": UNUSABLE, "jobs": OURS}, "jobs"),
        ({"default": OURS, "slots": OURS}, "slots"),
    ],
)
def test_a_call_is_told_of_and_read_back_when_its_backend_has_another_name_by_now(today: Any, answers: str) -> None:
    told: list[tuple[str, Any, str]] = []

    def hear(name: str) -> Any:
        return lambda sender, task_result, **_: told.append((name, sender.__name__, task_result.id))

    heard = [(task_started, hear("started")), (task_finished, hear("finished"))]
    with override_settings(TASKS={"default": OURS, "slots": OURS}):
        result = tasks.add.using(backend="slots").enqueue("acme", 1)
    for signal, receiver in heard:
        signal.connect(receiver)
    try:
        with override_settings(TASKS=today):
            work()
            found = task_backends[answers].get_result(result.id)
            found.refresh()
    finally:
        for signal, receiver in heard:
            signal.disconnect(receiver)
    assert (found.return_value, found.backend, found.task.backend) == (2, answers, answers)
    ours = "TenantSlotsBackend", result.id
    assert told == [("started", *ours), ("finished", *ours)]


def test_a_result_keeps_the_name_of_its_backend_where_none_is_ours_any_more() -> None:
    with override_settings(TASKS={"default": OURS, "slots": OURS}):
        result = tasks.add.using(backend="slots").enqueue("acme", 1)
    with override_settings(TASKS={"default": IMMEDIATE}):
        assert result_with(result.id).backend == "slots"


@pytest.mark.django_db(transaction=True)
def test_immediate_mode_runs_a_coroutine_for_an_asynchronous_caller() -> None:
    with override_settings(TENANT_SLOTS={"IMMEDIATE": True}):
        result = async_to_sync(tasks.add_slowly.aenqueue)("acme", 1)
    assert (result.errors, result.status) == ([], TaskResultStatus.SUCCESSFUL)


@pytest.mark.django_db(transaction=True)
def test_a_call_costs_no_more_queries_than_a_job_of_ours_and_reading_it_back_costs_one(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    """However many there were before, once one has the only slot and another has asked for it in vain."""
    for _ in range(2):
        tasks.add.enqueue("acme", 0)
        ours.add.enqueue(1, 2, tenant="acme")
    with CaptureQueriesContext(connection) as of_ours:
        ours.add.enqueue(1, 2, tenant="acme")
    for number in range(3):
        with django_assert_num_queries(len(of_ours)):
            result = tasks.add.enqueue("acme", number)
        with django_assert_num_queries(1):
            tasks.add.get_result(result.id)
