"""Receivers of a project are called in work-horses, and nothing that they do there harms the worker."""

from __future__ import annotations

from collections import Counter

import django_rq
import pytest

from tenant_slots.models import ENDED, State, TenantJob
from tests.factories import counters_match, fresh, tenant_queue
from tests.history import Event, History
from tests.jobs import record
from tests.processes import Workers, wait_until
from tests.workers import jobs

HEARING = ["tests.workers.classes.HearingWorker", "tests.workers.classes.HearingPreforkWorker"]
OURS = ["tenant_slots.workers.TenantWorker", "tenant_slots.workers.TenantPreforkWorker"]


def finished(*rows: TenantJob) -> bool:
    return all(fresh(row).state in ENDED for row in rows)


def events_of(history: History, name: str) -> dict[str, Event]:
    return {event.kind: event for event in history.events() if event.name == name}


@pytest.mark.parametrize("worker_class", HEARING)
def test_start_and_end_are_heard_where_the_job_runs(workers: Workers, history: History, worker_class: str) -> None:
    (worker,) = workers.start(1, worker_class=worker_class)
    for name, how in (("good", ""), ("bad", "fails"), ("odd", "exits itself")):
        jobs.run.enqueue("acme", name, history.path, how)
    wait_until(lambda: len(history.events()) == 9)
    for name in ("good", "bad", "odd"):
        heard = events_of(history, name)
        assert list(heard) == ["job_started", "run", "job_ended"]
        assert {event.pid for event in heard.values()} == {heard["run"].pid}
    assert worker.pid not in {event.pid for event in history.events()}


def test_control_a_worker_without_work_horses_calls_them_itself(workers: Workers, history: History) -> None:
    (worker,) = workers.start(1, worker_class="tests.workers.classes.HearingSimpleWorker")
    jobs.run.enqueue("acme", "good", history.path)
    wait_until(lambda: len(history.events()) == 3)
    assert {event.pid for event in history.events()} == {worker.pid}


@pytest.mark.parametrize("worker_class", HEARING)
def test_a_job_whose_horse_died_is_heard_of_outside_of_the_worker(
    workers: Workers, history: History, worker_class: str
) -> None:
    (worker,) = workers.start(1, worker_class=worker_class)
    job = jobs.run.enqueue("acme", "dies", history.path, "dies")
    wait_until(lambda: finished(job), 60)
    assert (job.state, job.crashes) == (State.FAILED, 4)
    wait_until(lambda: Counter(event.kind for event in history.events())["job_ended"])
    kinds = Counter(event.kind for event in history.events())
    assert (kinds["run"], kinds["job_put_back"], kinds["job_ended"]) == (4, 3, 1)
    assert worker.pid not in {event.pid for event in history.events()}


@pytest.mark.parametrize("worker_class", OURS)
def test_receivers_in_a_module_that_only_jobs_import_are_called_too(
    workers: Workers, history: History, worker_class: str
) -> None:
    (worker,) = workers.start(1, worker_class=worker_class)
    jobs.import_receivers.enqueue("acme", "imports", history.path)
    wait_until(lambda: len(history.events()) == 2)
    ran, heard = history.events()
    assert (ran.kind, heard.kind) == ("run", "late-job_ended")
    assert ran.pid == heard.pid != worker.pid


@pytest.mark.parametrize("worker_class", HEARING)
def test_a_receiver_of_the_end_that_hangs_ends_at_most_its_horse(
    workers: Workers, history: History, worker_class: str
) -> None:
    (worker,) = workers.start(1, worker_class=worker_class)
    first = jobs.run.enqueue("acme", "first", history.path, "job_ended hangs")
    after = jobs.run.enqueue("acme", "after", history.path)
    wait_until(lambda: finished(first, after))
    assert {(row.state, row.attempt, row.crashes) for row in (first, after)} == {(State.FINISHED, 1, 0)}
    assert events_of(history, "first")["run"].pid != events_of(history, "after")["run"].pid
    assert worker.poll() is None
    assert counters_match()


@pytest.mark.parametrize("heard", ["job_started", "job_ended"])
@pytest.mark.parametrize("worker_class", HEARING)
def test_a_receiver_that_exits_changes_nothing(
    workers: Workers, history: History, worker_class: str, heard: str
) -> None:
    (worker,) = workers.start(1, worker_class=worker_class)
    first = jobs.run.enqueue("acme", "first", history.path, f"{heard} exits")
    after = jobs.run.enqueue("acme", "after", history.path)
    wait_until(lambda: finished(first, after), 60)
    assert {(row.state, row.attempt, row.crashes) for row in (first, after)} == {(State.FINISHED, 1, 0)}
    assert {"run", heard} <= events_of(history, "first").keys()
    assert worker.poll() is None
    assert counters_match()


def test_what_a_receiver_leaves_the_next_job_does_not_see(workers: Workers, history: History) -> None:
    """A thread, as clients of error trackers start one: nobody can end it, so another work-horse goes on."""
    workers.start(1, worker_class=HEARING[1])
    first = jobs.run.enqueue("acme", "first", history.path, "job_ended starts a thread")
    after = jobs.run.enqueue("acme", "after", history.path)
    wait_until(lambda: finished(first, after))
    assert events_of(history, "first")["run"].pid == events_of(history, "first")["job_ended"].pid
    assert events_of(history, "first")["run"].pid != events_of(history, "after")["run"].pid


@pytest.mark.parametrize("worker_class", HEARING)
def test_what_a_job_has_left_locked_does_not_hold_up_its_end(
    workers: Workers, history: History, worker_class: str
) -> None:
    """Else the end would be kept, and heard of in another process than the work-horse."""
    workers.start(1, worker_class=worker_class)
    job = jobs.run.enqueue("acme", "locks", history.path, "leaves its tenant queue locked")
    wait_until(lambda: finished(job) and "job_ended" in events_of(history, "locks"), 60)
    heard = events_of(history, "locks")
    assert {event.pid for event in heard.values()} == {heard["run"].pid}
    assert job.state == State.FINISHED


def test_where_no_horse_can_be_forked_nobody_is_called_in_the_worker_and_the_job_runs_later(
    workers: Workers, history: History
) -> None:
    (worker,) = workers.start(1, worker_class="tests.workers.classes.CrampedWorker")
    job = jobs.run.enqueue("acme", "later", history.path)
    wait_until(lambda: len(history.events()) == 4)
    assert [event.kind for event in history.events()] == ["job_put_back", "job_started", "run", "job_ended"]
    assert worker.pid not in {event.pid for event in history.events()}
    assert (fresh(job).state, job.crashes, job.failures) == (State.FINISHED, 0, 0)


def test_where_no_horse_can_be_forked_a_plain_job_leaves_no_execution_behind(
    workers: Workers, history: History
) -> None:
    """RQ would take it for a run that was lost, and fail the job that has finished."""
    workers.start(1, worker_class="tests.workers.classes.CrampedWorker")
    queue = django_rq.get_queue("imports")
    rq_job = queue.enqueue("operator.add", 1, 2)
    wait_until(lambda: rq_job.return_value(refresh=True) == 3)
    assert queue.started_job_registry.get_job_and_execution_ids(cleanup=False) == []
    assert rq_job.get_executions() == []


@pytest.mark.parametrize("kind", ["Prefork", "Fork", "Simple"])
def test_a_slot_is_taken_by_a_worker_that_waits_while_receivers_keep_the_one_that_has_freed_it(
    kind: str, workers: Workers, history: History
) -> None:
    tenant_queue(max_job=1)
    workers.start(2, worker_class=f"tests.workers.classes.SlowlyTold{kind}")
    record.enqueue_many([(("acme", name, history.path, 0.3), {}) for name in ("first", "second")])
    wait_until(lambda: len(history.started()) == 2)
    moments = {(event.kind, event.name): event.nanoseconds / 1e9 for event in history.events()}
    assert moments["start", "second"] - moments["end", "first"] < 1.5
