"""The suite for backends that we ship, on ours, on Django's Immediate one, and on two that do not do as they say."""

from __future__ import annotations

import unittest
from typing import Any

import django_rq
import pytest
from django.test import TransactionTestCase, override_settings

from tenant_slots.django_tasks.api import TaskResultStatus
from tenant_slots.django_tasks.task import with_values
from tenant_slots.tasks_backend import TenantSlotsBackend
from tenant_slots.testing.task_backends import TaskBackendTests
from tenant_slots.workers import TenantSimpleWorker

OURS = {"default": {"BACKEND": "tenant_slots.tasks_backend.TenantSlotsBackend"}}


def broken(name: str) -> dict[str, Any]:
    return {"default": {"BACKEND": f"{__name__}.{name}"}}


class OnAWorker(TaskBackendTests):
    def run_tasks(self) -> None:
        queue = django_rq.get_queue("default")
        TenantSimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")

    def prepared(self, task: Any) -> Any:
        return task.using(tenant="acme")


@pytest.mark.usefixtures("no_workers")
@override_settings(TASKS=OURS)
class TestOurs(OnAWorker, TransactionTestCase):
    pass


@override_settings(TASKS={"default": {"BACKEND": "tests.django_tasks.backends.Immediate"}})
class TestImmediate(TaskBackendTests, TransactionTestCase):
    runs_at_once = True

    def run_tasks(self) -> None:
        """Nothing is left to run."""


class WithoutResults(TenantSlotsBackend):
    """As one over a broker that keeps none."""

    supports_get_result = False

    def get_result(self, result_id: str) -> Any:
        raise NotImplementedError


@pytest.mark.usefixtures("no_workers")
@override_settings(TASKS=broken("WithoutResults"))
class TestWithoutResults(OnAWorker, TransactionTestCase):
    pass


class OutOfOrder(WithoutResults):
    """Which says that it has priorities."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        return super().enqueue(with_values(task, {"priority": 0}), args, kwargs)


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
    ],
)
@pytest.mark.django_db(transaction=True)
def test_control_a_backend_that_does_not_do_as_it_says_is_found_out(backend: str, test: str, no_workers: None) -> None:
    with override_settings(TASKS=broken(backend)):
        outcome = outcome_of(Controlled(test))
    assert len(outcome.failures) == 1, outcome.errors


class AtOnce(Controlled):
    runs_at_once = True

    def prepared(self, task: Any) -> Any:
        return task

    def run_tasks(self) -> None:
        """Nothing is left to run."""


class RunsNothing(Controlled):
    def run_tasks(self) -> None:
        """As of workers that are elsewhere, whose signals nobody hears here."""


@pytest.mark.django_db(transaction=True)
def test_several_backends_are_tested_in_one_process_in_any_order(no_workers: None) -> None:
    """Each has Tasks of its own class."""
    for backend in ("tests.django_tasks.backends.Immediate", OURS["default"]["BACKEND"]) * 2:
        with override_settings(TASKS={"default": {"BACKEND": backend}}):
            is_ours = backend == OURS["default"]["BACKEND"]
            outcome = outcome_of(Controlled("test_coroutines") if is_ours else AtOnce("test_coroutines"))
        assert outcome.wasSuccessful(), outcome.errors


@pytest.mark.django_db(transaction=True)
def test_calls_without_results_that_run_where_nobody_hears_of_them_are_found_out(no_workers: None) -> None:
    with override_settings(TASKS=broken("WithoutResults")):
        (failure,) = outcome_of(RunsNothing("test_coroutines")).failures
    assert "task_finished" in failure[1]


def outcome_of(test: Controlled) -> unittest.TestResult:
    outcome = unittest.TestResult()
    test.run(outcome)
    return outcome
