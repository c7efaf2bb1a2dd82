"""The suite for backends that we ship, on ours, on Django's Immediate one, and on some that do not do as they say."""

from __future__ import annotations

import itertools
import sys
import unittest
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import django_rq
import pytest
from django.db import transaction
from django.test import TransactionTestCase, override_settings
from django.utils import timezone

from tenant_slots.django_tasks.api import InvalidTask, TaskResultStatus, task_enqueued
from tenant_slots.django_tasks.task import with_values
from tenant_slots.models import TenantJob
from tenant_slots.tasks_backend import TenantSlotsBackend
from tenant_slots.testing import task_backends
from tenant_slots.testing.task_backends import SAMPLES, TaskBackendTests
from tenant_slots.workers import TenantSimpleWorker
from tests.factories import in_thread

OURS = {"default": {"BACKEND": "tenant_slots.tasks_backend.TenantSlotsBackend", "QUEUES": ["default", "imports"]}}

IMMEDIATE = "tests.django_tasks.backends.Immediate"
SYNC = "tests.django_tasks.backends.Sync"


def broken(name: str) -> dict[str, Any]:
    return {"default": {**OURS["default"], "BACKEND": f"{__name__}.{name}"}}


class OnAWorker(TaskBackendTests):
    def run_tasks(self) -> None:
        queues = [django_rq.get_queue(name) for name in ("default", "imports")]
        TenantSimpleWorker(queues, connection=queues[0].connection).work(burst=True, logging_level="ERROR")

    def prepared(self, task: Any) -> Any:
        return task.using(tenant="acme")


@pytest.mark.usefixtures("no_workers")
@override_settings(TASKS=OURS)
class TestOurs(OnAWorker, TransactionTestCase):
    pass


@override_settings(TASKS={"default": {"BACKEND": IMMEDIATE}})
class TestImmediate(TaskBackendTests, TransactionTestCase):
    runs_at_once = True

    def run_tasks(self) -> None:
        """Nothing is left to run."""


@override_settings(TASKS={"default": {"BACKEND": SYNC}})
class TestSync(TestImmediate):
    """Of a class of its own."""


@dataclass
class Named:
    """All that is known of a call until then."""

    id: str


class WithoutResults(TenantSlotsBackend):
    """As one over a broker that keeps none."""

    supports_get_result = False

    def get_result(self, result_id: str) -> Any:
        raise NotImplementedError


@pytest.mark.usefixtures("no_workers")
@override_settings(TASKS=broken("WithoutResults"))
class TestWithoutResults(OnAWorker, TransactionTestCase):
    pass


class WithoutAnything(WithoutResults):
    """As Django's base class has it: no coroutines, no other time, no priorities."""

    supports_async_task = supports_defer = supports_priority = False


@pytest.mark.usefixtures("no_workers")
@override_settings(TASKS=broken("WithoutAnything"))
class TestWithoutAnything(OnAWorker, TransactionTestCase):
    pass


class TakesCoroutines(TenantSlotsBackend):
    """Which says that it does not."""

    supports_async_task = False

    def validate_task(self, task: Any) -> None:
        """Whatever it is."""


class TellsTwice(TenantSlotsBackend):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        task_enqueued.send(type(self), task_result=result)
        return result


class WithoutContext(TenantSlotsBackend):
    """Refuses one of the suite's Tasks, and not the first."""

    def validate_task(self, task: Any) -> None:
        if task.takes_context:
            raise InvalidTask
        super().validate_task(task)


class OutOfOrder(WithoutResults):
    """Which says that it has priorities."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return super().enqueue(with_values(task, {"priority": 0}), args, kwargs)


class RunsTwice(TenantSlotsBackend):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        super().enqueue(task, args, kwargs)
        return super().enqueue(task, args, kwargs)


class OneQueue(TenantSlotsBackend):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return super().enqueue(with_values(task, {"queue_name": "default"}), args, kwargs)


class WithTheCommit(TenantSlotsBackend):
    """As one over a broker, which hears of a call when its transaction has been committed."""

    stored: ClassVar[dict[str, str]] = {}

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        if not transaction.get_connection().in_atomic_block:
            return super().enqueue(task, args, kwargs)
        named = Named(id=str(uuid4()))
        transaction.on_commit(
            lambda: self.stored.update({named.id: super(WithTheCommit, self).enqueue(task, args, kwargs).id})
        )
        return named

    def get_result(self, result_id: str) -> Any:
        return super().get_result(self.stored.get(result_id, result_id))


class LosesThoseOfTransactions(WithTheCommit):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        if transaction.get_connection().in_atomic_block:
            return Named(id=str(uuid4()))
        return super().enqueue(task, args, kwargs)


class LosesLaterCalls(TenantSlotsBackend):
    """Once it has been given one that fails, or one of another time."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        later = timezone.now() + timedelta(days=1)
        is_lost = task.run_after is not None or TenantJob.objects.filter(task__endswith=".fail").exists()
        return super().enqueue(with_values(task, {"run_after": later}) if is_lost else task, args, kwargs)


class DefersWithoutOptions(TenantSlotsBackend):
    """What a call of another time is given besides."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        plain = {"queue_name": "default", "priority": 0} if task.run_after is not None else {}
        return super().enqueue(with_values(task, plain), args, kwargs)


class LosesOptionsOnceDue(TenantSlotsBackend):
    def get_result(self, result_id: str) -> Any:
        result = super().get_result(result_id)
        if result.is_finished:
            object.__setattr__(result, "task", with_values(result.task, {"priority": 0}))
        return result


class LosesThoseOfSavepoints(TenantSlotsBackend):
    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        if transaction.get_connection().savepoint_ids:
            return Named(id=str(uuid4()))
        return super().enqueue(task, args, kwargs)


class KeepsThoseOfSavepoints(TenantSlotsBackend):
    """It goes by the transaction alone."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        connection = transaction.get_connection()
        if not connection.in_atomic_block:
            return super().enqueue(task, args, kwargs)
        enqueue = partial(super().enqueue, task, args, kwargs)
        connection.run_on_commit.append((set(), enqueue, False))
        return Named(id=str(uuid4()))


class DefersAtOnce(TenantSlotsBackend):
    """Whatever becomes of the transaction."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        enqueue = partial(super().enqueue, task, args, kwargs)
        return enqueue() if task.run_after is None else in_thread(enqueue)


class WithoutKeywords(TenantSlotsBackend):
    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return await super().aenqueue(task, args, {})


class Forgetful(TenantSlotsBackend):
    def get_result(self, result_id: str) -> Any:
        result = super().get_result(result_id)
        object.__setattr__(result, "errors", [])
        return result


class Optimistic(TenantSlotsBackend):
    def get_result(self, result_id: str) -> Any:
        result = super().get_result(result_id)
        object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
        return result


class Controlled(OnAWorker, TransactionTestCase):
    __test__ = False


@pytest.mark.parametrize(
    ("backend", "test"),
    [
        ("Forgetful", "test_an_error_is_kept_with_its_class_and_its_traceback"),
        ("Optimistic", "test_a_call_waits_until_its_time"),
        ("OutOfOrder", "test_a_higher_priority_goes_first"),
        ("TakesCoroutines", "test_coroutines"),
        ("LosesThoseOfTransactions", "test_a_call_from_a_transaction_runs"),
        ("LosesThoseOfSavepoints", "test_a_call_from_a_transaction_runs"),
        ("KeepsThoseOfSavepoints", "test_a_rollback_to_a_savepoint_leaves_the_calls_before_it"),
        ("LosesLaterCalls", "test_a_call_runs_after_one_that_fails"),
        ("LosesLaterCalls", "test_a_call_runs_when_its_time_has_come"),
        ("DefersWithoutOptions", "test_a_call_waits_until_its_time"),
        ("LosesOptionsOnceDue", "test_a_call_runs_when_its_time_has_come"),
        ("DefersAtOnce", "test_a_rollback_leaves_no_call"),
        ("WithoutKeywords", "test_a_call_from_asynchronous_code"),
        ("OneQueue", "test_a_call_keeps_to_its_queue"),
        ("RunsTwice", "test_a_call_runs_once"),
        ("TellsTwice", "test_signals_tell_of_a_call"),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_control_a_backend_that_does_not_do_as_it_says_is_found_out(
    backend: str, test: str, no_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_backends, "SECONDS_TO_RUN", 2)
    with override_settings(TASKS=broken(backend)):
        outcome = outcome_of(Controlled(test))
    assert len(outcome.failures) == 1, outcome.errors


@pytest.mark.parametrize("test", ["test_a_rollback_leaves_no_call", "test_a_call_from_a_transaction_runs"])
@pytest.mark.django_db(transaction=True)
def test_a_backend_may_store_a_call_when_its_transaction_has_been_committed(test: str, no_workers: None) -> None:
    with override_settings(TASKS=broken("WithTheCommit")):
        outcome = outcome_of(Controlled(test))
    assert outcome.wasSuccessful(), outcome.errors


class AtOnce(Controlled):
    runs_at_once = True

    def prepared(self, task: Any) -> Any:
        return task

    def run_tasks(self) -> None:
        """Nothing is left to run."""


class RunsNothing(Controlled):
    def run_tasks(self) -> None:
        """As of workers that are elsewhere, whose signals nobody hears here."""


WAYS = {
    OURS["default"]["BACKEND"]: Controlled,
    f"{__name__}.WithoutAnything": Controlled,
    IMMEDIATE: AtOnce,
    SYNC: AtOnce,
}
"""How the calls of each backend are run."""


@pytest.mark.parametrize("order", list(itertools.permutations(WAYS, 2)))
@pytest.mark.django_db(transaction=True)
def test_several_backends_are_tested_in_one_process_in_any_order(order: tuple[str, ...], no_workers: None) -> None:
    """Each has Tasks of its own class, and of what it can run."""
    for backend in order:
        with override_settings(TASKS={"default": {"BACKEND": backend}}):
            outcome = outcome_of(WAYS[backend]("test_coroutines"))
        assert outcome.wasSuccessful(), (backend, outcome.errors, outcome.failures)


@pytest.mark.django_db(transaction=True)
def test_a_backend_that_refuses_a_task_of_the_suite_leaves_no_half_of_them_to_its_next_test_or_to_others(
    no_workers: None,
) -> None:
    for backend, succeeds in (("WithoutContext", False), ("WithoutContext", False), ("WithoutResults", True)):
        with override_settings(TASKS=broken(backend)):
            outcome = outcome_of(Controlled("test_a_task_is_given_its_context"))
        assert outcome.wasSuccessful() == (SAMPLES in sys.modules) == succeeds, outcome.errors
        assert all("InvalidTask" in error for _, error in outcome.errors)


class BesideOthers(Controlled):
    def run_tasks(self) -> None:
        self.prepared(self.tasks.echo).enqueue("what another test has left")
        super().run_tasks()


@pytest.mark.django_db(transaction=True)
def test_the_signals_of_calls_that_others_have_left_are_not_counted(no_workers: None) -> None:
    with override_settings(TASKS=OURS):
        outcome = outcome_of(BesideOthers("test_signals_tell_of_a_call"))
    assert outcome.wasSuccessful(), outcome.failures


@pytest.mark.django_db(transaction=True)
def test_calls_without_results_that_run_where_nobody_hears_of_them_are_found_out(no_workers: None) -> None:
    with override_settings(TASKS=broken("WithoutResults")):
        (failure,) = outcome_of(RunsNothing("test_coroutines")).failures
    assert "task_finished" in failure[1]


def outcome_of(test: Controlled) -> unittest.TestResult:
    outcome = unittest.TestResult()
    test.run(outcome)
    return outcome
