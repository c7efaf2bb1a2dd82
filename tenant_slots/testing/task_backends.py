"""What a backend for Django's Tasks must do, as tests that any backend can run.

``class TestOurs(TaskBackendTests, TransactionTestCase)`` with `run_tasks`, under a ``TASKS`` whose backend "default"
has the queue "default", and perhaps others. What a backend says by ``supports_…`` that it cannot do is tested to be
refused. Django's signals have to be sent in this process: where the backend keeps no results they tell what became of a
call.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any
from unittest import TestCase

from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from tenant_slots.django_tasks.api import DEFAULT_TASK_QUEUE_NAME, TaskResultStatus, task, task_backends
from tenant_slots.django_tasks.packages import imported

if TYPE_CHECKING:
    Base = TestCase
else:
    Base = object

SAMPLES = "tenant_slots.testing.sample_tasks"

SHORT = timedelta(seconds=1)
"""By which times may differ: some backends keep whole seconds, or ask the clock twice."""

SECONDS_TO_RUN = 30
"""For a call whose time comes in a second: what looks for such calls may do so now and then."""

SECONDS_BETWEEN_RUNS = 0.2


class TaskBackendTests(Base):
    """To be mixed into a `TransactionTestCase`."""

    runs_at_once = False
    """Whether a call has run when it has been enqueued."""

    is_transactional = True
    """Whether a call is gone when the transaction in which it was enqueued is rolled back."""

    tasks: Any

    def run_tasks(self) -> None:
        """Have what was enqueued run, to its end, in this process."""
        raise NotImplementedError

    def prepared(self, task: Any) -> Any:
        """A Task before it is enqueued: for what the backend needs besides, such as a tenant."""
        return task

    def setUp(self) -> None:
        super().setUp()
        self.backend = task_backends["default"]
        self.tasks = self._tasks()
        self._told: dict[str, Any] = {}
        for signal in (*imported("signals", "task_started"), *imported("signals", "task_finished")):
            signal.connect(self._hear)
            self.addCleanup(signal.disconnect, self._hear)

    def _tasks(self) -> Any:
        """Made anew, by what this backend can and of its own class: the process may have tested others before.

        By an import, as of one that fails nothing stays; of a reload all that came before the failure would.
        """
        sys.modules.pop(SAMPLES, None)
        return import_module(SAMPLES)

    def assertRefused(self) -> Any:
        """Of the block a Task is refused, by the error of the package that the backend is made of."""
        return self.assertRaises((*imported("exceptions", "InvalidTask"), *imported("exceptions", "InvalidTaskError")))

    def ended(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that has run."""
        result = self.prepared(task).enqueue(*args, **kwargs)
        self.run_tasks()
        return self.after_run(result)

    def after_run(self, result: Any) -> Any:
        """What has become of a call that has run. Fails where it cannot be known."""
        is_known = self.backend.supports_get_result or self.runs_at_once or result.id in self._told
        self.assertTrue(is_known, "task_finished told nothing of this call, and the backend keeps no results")
        return self.fresh(result)

    def fresh(self, result: Any) -> Any:
        """What has become of a call so far."""
        if self.backend.supports_get_result:
            return self.backend.get_result(result.id)
        return self._told.get(result.id, result)

    def _hear(self, *, task_result: Any, **_: Any) -> None:
        self._told[task_result.id] = task_result

    def test_what_was_enqueued_is_ready(self) -> None:
        result = self.prepared(self.tasks.echo).enqueue(1, two="2")
        other = self.prepared(self.tasks.echo).enqueue(1, two="2")
        self.assertIsInstance(result.id, str)
        self.assertNotEqual(result.id, other.id)
        self.assertLessEqual(len(result.id), 64)
        self.assertEqual((result.args, result.kwargs, result.backend), ([1], {"two": "2"}, "default"))
        self.assertIsNotNone(result.enqueued_at)
        if not self.runs_at_once:
            self.assertEqual((result.status, result.is_finished), (TaskResultStatus.READY, False))
            self.assertEqual((result.attempts, result.worker_ids, result.errors), (0, [], []))
            self.assertEqual((result.started_at, result.last_attempted_at, result.finished_at), (None, None, None))
            with self.assertRaises(ValueError):
                _ = result.return_value

    def test_what_has_run_has_its_return_value_times_and_worker(self) -> None:
        result = self.ended(self.tasks.echo, 1, two="2")
        self.assertEqual((result.status, result.is_finished), (TaskResultStatus.SUCCESSFUL, True))
        self.assertEqual(result.return_value, {"args": [1], "kwargs": {"two": "2"}})
        self.assertEqual((result.attempts, len(result.worker_ids), result.errors), (1, 1, []))
        self.assertLessEqual(result.enqueued_at, result.started_at)
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertAlmostEqual(result.started_at, result.last_attempted_at, delta=SHORT)

    def test_a_call_runs_once(self) -> None:
        self.ended(self.tasks.note, 1)
        self.run_tasks()
        self.assertEqual(self.tasks.noted, [1])

    def test_a_call_runs_after_one_that_fails(self) -> None:
        self.prepared(self.tasks.fail).enqueue("no such feed")
        self.ended(self.tasks.note, 1)
        self.assertEqual(self.tasks.noted, [1])

    def test_a_call_keeps_to_its_queue(self) -> None:
        """Where the backend has another one, whose calls `run_tasks` runs too."""
        for queue in self._other_queues():
            result = self.ended(self.tasks.echo.using(queue_name=queue), 1)
            self.assertEqual((result.task.queue_name, result.status), (queue, TaskResultStatus.SUCCESSFUL))

    def _other_queues(self) -> list[str]:
        """One, where the backend has it."""
        return sorted(self.backend.queues - {DEFAULT_TASK_QUEUE_NAME})[:1]

    def test_coroutines(self) -> None:
        if not self.backend.supports_async_task:
            with self.assertRefused():
                task(self.tasks.echo_async)
            return
        self.assertEqual(self.ended(self.tasks.echo_async, 1).return_value, {"args": [1], "kwargs": {}})

    def test_a_call_from_asynchronous_code(self) -> None:
        result = async_to_sync(self.prepared(self.tasks.echo).aenqueue)(1, two="2")
        self.run_tasks()
        self.assertEqual(self.after_run(result).return_value, {"args": [1], "kwargs": {"two": "2"}})

    def test_an_error_is_kept_with_its_class_and_its_traceback(self) -> None:
        for failing, args, kind, text in (
            (self.tasks.fail, ("no such feed",), ValueError, "ValueError: no such feed"),
            (self.tasks.leave, (), SystemExit, "SystemExit: enough"),
        ):
            result = self.ended(failing, *args)
            self.assertEqual((result.status, result.is_finished), (TaskResultStatus.FAILED, True))
            self.assertEqual([error.exception_class for error in result.errors], [kind])
            traceback = result.errors[0].traceback
            self.assertTrue(traceback.endswith(f"{text}\n"), traceback)
            self.assertIsNotNone(result.finished_at)
            with self.assertRaises(ValueError):
                _ = result.return_value

    def test_a_return_value_that_is_not_json_is_a_failure(self) -> None:
        result = self.ended(self.tasks.give_a_set)
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertIs(result.errors[-1].exception_class, TypeError)

    def test_arguments_are_made_json_or_refused(self) -> None:
        result = self.ended(self.tasks.echo, (1, b"two"), three={"four": (5,)})
        self.assertEqual((result.args, result.kwargs), ([[1, "two"]], {"three": {"four": [5]}}))
        self.assertEqual(result.return_value, {"args": [[1, "two"]], "kwargs": {"three": {"four": [5]}}})
        with self.assertRaises(TypeError):
            self.prepared(self.tasks.echo).enqueue(timezone.now())

    def test_a_task_is_given_its_context(self) -> None:
        tells = [self.tasks.tell_context]
        if self.backend.supports_async_task:
            tells.append(self.tasks.tell_context_async)
        for one in tells:
            result = self.ended(one, more="yes")
            known = {"id": result.id, "attempt": 1, "status": "RUNNING", "more": "yes"}
            self.assertEqual(result.return_value, known)
            self.assertEqual((result.args, result.kwargs), ([], {"more": "yes"}))

    def test_results_are_found_by_their_ids(self) -> None:
        if not self.backend.supports_get_result:
            with self.assertRaises(NotImplementedError):
                self.backend.get_result("123")
            return
        result = self.prepared(self.tasks.echo).enqueue(1)
        self.assertEqual(self.tasks.echo.get_result(result.id).id, result.id)
        self.assertEqual(async_to_sync(self.tasks.echo.aget_result)(result.id).id, result.id)
        with self.assertRaises(imported("exceptions", "TaskResultMismatch")):
            self.tasks.fail.get_result(result.id)
        with self.assertRaises(imported("exceptions", "TaskResultDoesNotExist")):
            self.tasks.echo.get_result("123")
        with self.assertRaises(imported("exceptions", "TaskResultDoesNotExist")):
            async_to_sync(self.backend.aget_result)("123")

    def test_a_result_is_refreshed(self) -> None:
        if not self.backend.supports_get_result:
            return
        result = self.prepared(self.tasks.echo).enqueue(1)
        self.run_tasks()
        result.refresh()
        self.assertEqual(result.return_value, {"args": [1], "kwargs": {}})
        async_to_sync(result.arefresh)()
        self.assertEqual(result.return_value, {"args": [1], "kwargs": {}})

    def test_a_call_waits_until_its_time(self) -> None:
        later = timezone.now() + timedelta(hours=1)
        if not self.backend.supports_defer:
            with self.assertRefused():
                self.tasks.echo.using(run_after=later)
            return
        options = self._all_options()
        result = self.prepared(self.tasks.echo.using(run_after=later, **options)).enqueue(1, two="2")
        self.run_tasks()
        result = self.fresh(result)
        self.assertEqual((result.status, result.attempts), (TaskResultStatus.READY, 0))
        self.assertAlmostEqual(result.task.run_after, later, delta=SHORT)
        self.assertEqual((result.args, result.kwargs), ([1], {"two": "2"}))
        self.assertHasOptions(result, options)

    def _all_options(self) -> dict[str, Any]:
        """What a call can be given besides its time."""
        options: dict[str, Any] = {}
        for queue in self._other_queues():
            options["queue_name"] = queue
        if self.backend.supports_priority:
            options["priority"] = 7
        return options

    def assertHasOptions(self, result: Any, options: dict[str, Any]) -> None:
        self.assertEqual({name: getattr(result.task, name) for name in options}, options)

    def test_a_call_runs_when_its_time_has_come(self) -> None:
        if not self.backend.supports_defer:
            return
        soon, latest = timezone.now() + SHORT, time.monotonic() + SECONDS_TO_RUN
        options = self._all_options()
        result = self.prepared(self.tasks.note.using(run_after=soon, **options)).enqueue(1)
        while not self.tasks.noted and time.monotonic() < latest:
            time.sleep(SECONDS_BETWEEN_RUNS)
            self.run_tasks()
        self.assertEqual(self.tasks.noted, [1])
        result = self.after_run(result)
        self.assertGreaterEqual(result.started_at, soon - SHORT)
        self.assertHasOptions(result, options)

    def test_a_higher_priority_goes_first(self) -> None:
        if not self.backend.supports_priority:
            with self.assertRefused():
                self.tasks.echo.using(priority=1)
            return
        if self.runs_at_once:
            return
        with transaction.atomic():
            low, high, middle = (
                self.prepared(self.tasks.echo.using(priority=priority)).enqueue(priority) for priority in (-100, 100, 0)
            )
        self.run_tasks()
        starts = [self.after_run(result).started_at for result in (high, middle, low)]
        self.assertEqual(starts, sorted(starts))

    def test_what_cannot_be_a_task_is_refused(self) -> None:
        for wrong in ({"priority": 101}, {"priority": 0.5}, {"queue_name": "a queue that nobody has"}):
            if "queue_name" in wrong and not self.backend.queues:
                continue
            with self.assertRefused():
                self.tasks.echo.using(**wrong)

    def test_signals_tell_of_a_call(self) -> None:
        told: dict[str, list[tuple[str, str]]] = defaultdict(list)

        def hear(name: str) -> Any:
            return lambda sender, task_result, **_: told[task_result.id].append((name, str(task_result.status)))

        heard = [
            (signal, hear(name))
            for name in ("enqueued", "started", "finished")
            for signal in imported("signals", f"task_{name}")
        ]
        for signal, receiver in heard:
            signal.connect(receiver)
        try:
            results = [(self.ended(self.tasks.echo, 1), "SUCCESSFUL"), (self.ended(self.tasks.fail, "no"), "FAILED")]
        finally:
            for signal, receiver in heard:
                signal.disconnect(receiver)
        for result, status in results:
            own = told[result.id]  # others may be of calls that were left where no rollback reaches them
            self.assertEqual([name for name, _ in own], ["enqueued", "started", "finished"])
            self.assertEqual([told_as for _, told_as in own][1:], ["RUNNING", status])

    def test_a_call_from_a_transaction_runs(self) -> None:
        with transaction.atomic():
            result = self.prepared(self.tasks.note).enqueue(1)
            with transaction.atomic():
                inner = self.prepared(self.tasks.note).enqueue(2)
        self.run_tasks()
        self.assertEqual(sorted(self.tasks.noted), [1, 2])
        for one in (result, inner):
            self.assertEqual(self.after_run(one).status, TaskResultStatus.SUCCESSFUL)

    def test_a_rollback_to_a_savepoint_leaves_the_calls_before_it(self) -> None:
        if not self.is_transactional or self.runs_at_once:
            return
        with transaction.atomic():
            self.prepared(self.tasks.note).enqueue(1)
            with transaction.atomic():
                self.prepared(self.tasks.note).enqueue(2)
                transaction.set_rollback(True)
        self.run_tasks()
        self.assertEqual(self.tasks.noted, [1])

    def test_a_rollback_leaves_no_call(self) -> None:
        gone = imported("exceptions", "TaskResultDoesNotExist")
        can_look = self.backend.supports_get_result or not self.runs_at_once
        if not (self.is_transactional and can_look):
            return
        calls = [self.tasks.echo]
        if self.backend.supports_defer:
            calls.append(self.tasks.echo.using(run_after=timezone.now() + timedelta(hours=1)))
        for one in calls:
            with transaction.atomic():
                result = self.prepared(one).enqueue(1)
                with suppress(*gone):  # some backends store a call with the commit, and not before
                    self.assertEqual(self.fresh(result).status, TaskResultStatus.READY)
                transaction.set_rollback(True)
            self.run_tasks()
            self.assertNotIn(result.id, self._told)
            if self.backend.supports_get_result:
                with self.assertRaises(gone):
                    self.backend.get_result(result.id)
