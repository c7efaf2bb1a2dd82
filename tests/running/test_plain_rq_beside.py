"""What RQ delivers of a job while that runs, or is told to enqueue then, and what a function enqueues of itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import django_rq
import pytest
from rq import Callback, Queue, Retry
from rq.job import Job, JobStatus

from tenant_slots import dispatch, rq_copies
from tenant_slots.models import State, TenantJob
from tenant_slots.running import beside, deliveries, plain_rq
from tests import jobs
from tests.factories import counters_match, in_rq, tenant_queue, work
from tests.history import History
from tests.running.meeting import make_due, meanwhile, meets, work_once

pytestmark = pytest.mark.django_db(transaction=True)


def scheduled(queue: Queue) -> dict[str, int]:
    return {rq_id.decode(): int(due) for rq_id, due in queue.connection.zscan_iter(queue.scheduled_job_registry.key)}


def other_delivery(rq_job: Job, is_anew: bool) -> None:
    """Another worker has taken it, and found that it runs."""
    delivered = Job.fetch(rq_job.id, rq_job.connection)
    beside.comes_back(delivered, TenantJob.objects.get(rq_job_id=rq_job.id, state=State.RUNNING), is_anew=is_anew)


def copy(rq_job: Job) -> None:
    other_delivery(rq_job, is_anew=False)


def anew(rq_job: Job) -> None:
    """RQ has enqueued it, and a worker has taken it."""
    queue = django_rq.get_queue("imports")
    queue.enqueue_job(Job.fetch(rq_job.id, rq_job.connection))
    assert queue.pop_job_id() == rq_job.id
    assert rq_copies.is_told_since(TenantJob.objects.get(rq_job_id=rq_job.id, state=State.RUNNING).uuid, rq_job)
    other_delivery(rq_job, is_anew=True)


def is_forgotten(rq_job: Job) -> None:
    """It waited in that one, and somebody has deleted it since."""
    anew(rq_job)
    Job.fetch(rq_job.id, rq_job.connection).delete()


def schedules_itself(rq_job: Job) -> None:
    queue = django_rq.get_queue("imports")
    queue.enqueue_in(timedelta(hours=1), rq_job.func_name, *rq_job.args, job_id=rq_job.id)


def both(*actions: Callable[[Job], None]) -> Callable[[Job], None]:
    return lambda rq_job: [action(rq_job) for action in actions] and None


@pytest.mark.parametrize("times", [1, 2])
def test_a_copy_that_came_while_it_ran_does_not_come_back(queue: Queue, history: History, times: int) -> None:
    meanwhile.append(both(*[copy] * times))
    rq_job = queue.enqueue(meets, "acme", "once", history.path)
    work()
    assert (history.started(), scheduled(queue), in_rq()) == (["once"], {}, 0)
    assert queue.connection.hget(rq_job.key, beside.AGAIN) is None


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    ("comes", "runs"), [(copy, 1), (anew, 2), pytest.param(both(copy, anew), 2, id="copy and anew")]
)
def test_what_comes_back_while_the_run_still_goes_on_waits_on_as_what_it_is(
    queue: Queue, history: History, comes: Callable[[Job], None], runs: int, times: int
) -> None:
    """RQ's scheduler brings it back after `RESCHEDULE_DELAY`, as if it had been enqueued then; a run may take hours."""

    def lasts(rq_job: Job) -> None:
        comes(rq_job)
        for _ in range(times):
            make_due(queue, rq_job)
            work_once(queue)
            assert list(scheduled(queue)) == [rq_job.id]

    meanwhile.append(lasts)
    queue.enqueue(meets, "acme", "long", history.path)
    work()
    assert history.started() == ["long"] * runs
    assert (scheduled(queue), in_rq()) == ({}, 0)


def test_a_copy_that_is_back_is_no_new_call_to_a_slow_delivery_of_the_call_before(
    queue: Queue, history: History
) -> None:
    """That has found the same row, and is too late to begin."""

    def before_comes_too(rq_job: Job) -> None:
        copy(rq_job)
        make_due(queue, rq_job)
        plain_rq._beside_run(before, TenantJob.objects.get())

    enqueue = partial(queue.enqueue, meets, job_id="nightly")
    before = enqueue("acme", "first", history.path)
    assert queue.pop_job_id()
    enqueue("acme", "second", history.path)
    meanwhile.append(before_comes_too)
    work()
    assert history.started() == ["second"]
    assert (scheduled(queue), in_rq()) == ({}, 0)


def test_a_copy_that_comes_back_hides_no_call_that_was_enqueued_meanwhile(queue: Queue, history: History) -> None:
    """Both are in the list, and either may be taken first."""

    def lasts(rq_job: Job) -> None:
        copy(rq_job)
        make_due(queue, rq_job)
        queue.enqueue_job(Job.fetch(rq_job.id, rq_job.connection))
        work_once(queue)
        work_once(queue)

    meanwhile.append(lasts)
    queue.enqueue(meets, "acme", "long", history.path)
    work()
    assert history.started() == ["long"] * 2


@pytest.mark.parametrize(("waits", "kept"), [(copy, 1), pytest.param(lambda _: None, 0, id="control")])
def test_another_call_whose_time_comes_while_a_copy_waits_runs_after_that(
    queue: Queue, history: History, waits: Callable[[Job], None], kept: int
) -> None:
    """It was scheduled over the entry of the copy, and no worker is free when RQ's scheduler puts it into the list."""

    def then_another_is_due(rq_job: Job) -> None:
        waits(rq_job)
        assert len(scheduled(queue)) == kept
        queue.enqueue_in(timedelta(hours=1), meets, "acme", "second", history.path, job_id=rq_job.id)
        make_due(queue, rq_job)

    meanwhile.append(then_another_is_due)
    queue.enqueue(meets, "acme", "first", history.path)
    work()
    assert history.started() == ["first", "second"]


@pytest.mark.parametrize("order", [[anew], [anew, anew], [copy, anew], [anew, copy]])
def test_what_was_enqueued_anew_while_it_ran_runs_after_that(
    queue: Queue, history: History, order: list[Callable[[Job], None]]
) -> None:
    meanwhile.append(both(*order))
    rq_job = queue.enqueue(meets, "acme", "nightly", history.path)
    work_once(queue)
    assert (scheduled(queue), in_rq()) == ({}, 1)
    work()
    assert history.started() == ["nightly"] * 2
    assert rq_job.get_status() == JobStatus.FINISHED
    assert counters_match()


def test_it_goes_to_the_queue_of_rq_that_it_was_enqueued_in(queue: Queue, history: History) -> None:
    other = django_rq.get_queue("reports")

    def anew_elsewhere(rq_job: Job) -> None:
        other.enqueue_job(Job.fetch(rq_job.id, rq_job.connection))
        assert other.pop_job_id() == rq_job.id
        other_delivery(rq_job, is_anew=True)

    meanwhile.append(anew_elsewhere)
    queue.enqueue(meets, "acme", "nightly", history.path)
    work_once(queue)
    assert (scheduled(queue), scheduled(other), in_rq(), in_rq("reports")) == ({}, {}, 0, 1)


@pytest.mark.parametrize("before", [copy, is_forgotten])
@pytest.mark.parametrize("is_told", [True, False])
def test_it_comes_back_once_where_another_delivery_waits_in_another_queue(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, before: Callable[[Job], None], is_told: bool
) -> None:
    """RQ's scheduler has an entry for each queue of RQ. One of a job that was deleted is told where its run ends."""
    other = django_rq.get_queue("reports")

    def anew_elsewhere(rq_job: Job) -> None:
        before(rq_job)
        other.enqueue(meets, *rq_job.args, job_id=rq_job.id)
        assert other.pop_job_id() == rq_job.id
        assert list(scheduled(queue)) == [rq_job.id]
        other_delivery(rq_job, is_anew=True)

    if not is_told:
        monkeypatch.setattr(beside, "has_ended", lambda *_: None)
    meanwhile.append(anew_elsewhere)
    rq_job = queue.enqueue(meets, "acme", "nightly", history.path)
    work_once(queue)
    assert list(scheduled(queue)) == [rq_job.id] * (before is is_forgotten and not is_told)
    assert (list(scheduled(other)), in_rq("reports")) == (([], 1) if is_told else ([rq_job.id], 0))
    work()
    assert history.started() == ["nightly"] * (1 + is_told)
    assert counters_match()


def test_what_was_enqueued_anew_comes_back_though_nobody_tells_the_end_of_the_run(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Redis was away, or the process was killed."""
    monkeypatch.setattr(beside, "has_ended", lambda *_: None)
    meanwhile.append(anew)
    rq_job = queue.enqueue(meets, "acme", "nightly", history.path)
    work_once(queue)
    assert (list(scheduled(queue)), in_rq()) == ([rq_job.id], 0)
    make_due(queue, rq_job)
    work()
    assert history.started() == ["nightly"] * 2


@pytest.mark.parametrize("is_anew", [False, True])
def test_a_delivery_that_has_found_it_running_may_say_so_when_it_has_ended(
    queue: Queue, history: History, is_anew: bool
) -> None:
    """It would wait for nobody, and be in the way of what is enqueued next."""
    rq_job = queue.enqueue(meets, "acme", "nightly", history.path)
    work()
    if is_anew:
        queue.enqueue_job(Job.fetch(rq_job.id, queue.connection))
        assert queue.pop_job_id() == rq_job.id
    beside.comes_back(Job.fetch(rq_job.id, queue.connection), TenantJob.objects.get(), is_anew=is_anew)
    assert (scheduled(queue), in_rq()) == ({}, int(is_anew))
    assert queue.connection.hget(rq_job.key, beside.AGAIN) is None
    is_anew or queue.enqueue_job(Job.fetch(rq_job.id, queue.connection))
    work()
    assert history.started() == ["nightly"] * 2


def test_a_copy_that_is_still_to_come_back_does_not_keep_what_is_enqueued_anew_from_running(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile.append(copy)
    rq_job = queue.enqueue(meets, "acme", "nightly", history.path)
    with monkeypatch.context() as patched:
        patched.setattr(beside, "has_ended", lambda *_: None)
        work()
    assert list(scheduled(queue)) == [rq_job.id], "the control: nobody has told the end of the run"
    queue.enqueue_job(Job.fetch(rq_job.id, queue.connection))
    work()
    assert history.started() == ["nightly"] * 2
    make_due(queue, rq_job)
    work()
    assert history.started() == ["nightly"] * 2, "the copy is one of the first run"
    assert queue.connection.hget(rq_job.key, beside.AGAIN) is None


@pytest.mark.parametrize("how", [copy, anew])
@pytest.mark.parametrize("result_ttl", [0, 500])
@pytest.mark.parametrize("is_taken", [False, True])
def test_what_was_to_come_back_does_not_where_somebody_deletes_the_job_and_enqueues_its_id_anew(
    queue: Queue, history: History, how: Callable[[Job], None], result_ttl: int, is_taken: bool
) -> None:
    """RQ deletes the record that says so, and leaves the entry."""

    def is_replaced(rq_job: Job) -> None:
        how(rq_job)
        Job.fetch(rq_job.id, queue.connection).delete()
        queue.enqueue(meets, "acme", "second", history.path, job_id=rq_job.id, result_ttl=result_ttl)
        if is_taken:
            assert queue.pop_job_id() == rq_job.id
            other_delivery(rq_job, is_anew=True)

    meanwhile.append(is_replaced)
    queue.enqueue(meets, "acme", "first", history.path)
    work_once(queue)
    assert (scheduled(queue), in_rq()) == ({}, 1)
    work()
    assert history.started() == ["first", "second"]
    assert counters_match()


@pytest.mark.parametrize("has_asked", [False, True])
@pytest.mark.parametrize("result_ttl", [0, 500])
@pytest.mark.parametrize(
    ("is_other", "runs"), [(True, ["first", "second", "third"]), pytest.param(False, ["first", "second"], id="copy")]
)
def test_a_delivery_that_says_it_comes_back_when_the_next_run_has_begun_comes_at_once(
    queue: Queue, history: History, has_asked: bool, result_ttl: int, is_other: bool, runs: list[str]
) -> None:
    """It has found the run before that. A minute later RQ's scheduler would take a copy for what it has enqueued anew;
    the last call would be taken for a copy of the one that runs.
    """

    def enqueue(name: str) -> None:
        queue.enqueue(meets, "acme", name, history.path, job_id="nightly", result_ttl=result_ttl)

    def finds_it_running(first: Job) -> None:
        job = TenantJob.objects.get(state=State.RUNNING)
        enqueue("second")
        meanwhile.append(lambda second: says_so(second, job))

    def says_so(second: Job, job: TenantJob) -> None:
        if is_other:
            enqueue("third")
            assert queue.pop_job_id() == "nightly"
        delivered = Job.fetch("nightly", queue.connection)
        if has_asked:  # while the first one ran, for which it was enqueued anew
            deliveries.later(delivered, job, is_anew=True)
            beside.had_ended(delivered, job)
        else:
            plain_rq._beside_run(delivered, job)
        assert (scheduled(queue), in_rq()) == ({}, 1)

    meanwhile.append(finds_it_running)
    enqueue("first")
    work()
    assert (history.started(), scheduled(queue), in_rq()) == (runs, {}, 0)
    assert counters_match()


@pytest.mark.parametrize(
    "order", [[schedules_itself], [schedules_itself, copy], [copy, schedules_itself], [anew, schedules_itself]]
)
def test_a_function_that_schedules_its_own_next_run_by_its_id_goes_on(
    queue: Queue, history: History, order: list[Callable[[Job], None]]
) -> None:
    meanwhile.append(both(*order))
    rq_job = queue.enqueue(meets, "acme", "poll", history.path)
    work_once(queue)
    (due,) = scheduled(queue).values()
    assert due - rq_job.created_at.timestamp() == pytest.approx(3600, abs=60)
    work()
    assert history.started() == ["poll"] * (1 + (anew in order))
    make_due(queue, rq_job)
    work()
    assert history.started() == ["poll"] * (2 + (anew in order))


@pytest.mark.parametrize(("how", "is_over"), [(copy, False), (schedules_itself, False), (schedules_itself, True)])
@pytest.mark.parametrize("bring_forward", [lambda job: dispatch.push([job]), dispatch.push_again])
@pytest.mark.parametrize("is_known", [True, pytest.param(False, id="control")])
def test_what_is_scheduled_of_a_job_that_has_begun_is_not_brought_forward_for_its_turn(
    queue: Queue,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    bring_forward: Callable[[TenantJob], Any],
    how: Callable[[Job], None],
    is_over: bool,
    is_known: bool,
) -> None:
    """Who has given it a slot looks for it among RQ's scheduled jobs for a third of a second, while RQ's scheduler has
    taken it from there, and a worker begins with it. A sweep may have found that no list has it a moment before.
    """
    if not is_known:
        monkeypatch.setattr(dispatch, "_may_have_begun", lambda job: False)

    def look_for_it(rq_job: Job) -> None:
        job = TenantJob.objects.get()
        bring_forward(job)
        if job.state == State.RUNNING and queue.pop_job_id():
            other_delivery(rq_job, is_anew=rq_copies.is_told_since(job.uuid, rq_job))

    meanwhile.append(how if is_over else both(how, look_for_it))
    rq_job = queue.enqueue(meets, "acme", "once", history.path)
    work_once(queue)
    if is_over:
        look_for_it(rq_job)
    work()
    assert history.started() == ["once"] * (1 if is_known else 2)
    assert len(scheduled(queue)) == int(is_known and how is schedules_itself)
    assert counters_match()


def test_so_does_one_of_which_a_copy_came_whose_end_nobody_tells(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "has_ended", lambda *_: None)
    meanwhile.append(both(schedules_itself, copy))
    rq_job = queue.enqueue(meets, "acme", "poll", history.path)
    work()
    make_due(queue, rq_job)
    work()
    assert history.started() == ["poll"] * 2


def test_what_is_enqueued_anew_runs_though_somebody_takes_back_what_it_has_scheduled(
    queue: Queue, history: History
) -> None:
    meanwhile.append(both(schedules_itself, anew, queue.scheduled_job_registry.remove))
    queue.enqueue(meets, "acme", "poll", history.path)
    work()
    assert (history.started(), scheduled(queue)) == (["poll"] * 2, {})


def test_what_it_schedules_does_not_hold_up_what_is_enqueued_anew(queue: Queue, history: History) -> None:
    meanwhile.append(both(schedules_itself, anew))
    queue.enqueue(meets, "acme", "poll", history.path)
    work()
    assert history.started() == ["poll"] * 2
    assert len(scheduled(queue)) == 1


@pytest.mark.parametrize("interval", [0, 3600])
def test_a_run_that_rq_takes_for_dead_and_retries_is_not_run_again_after_its_end(
    queue: Queue, history: History, interval: int
) -> None:
    def seems_dead(rq_job: Job) -> None:
        registry = queue.started_job_registry
        for execution in queue.connection.zrange(registry.key, 0, -1):
            queue.connection.zadd(registry.key, {execution: 1})
        registry.cleanup()
        if not interval:
            assert queue.pop_job_id() == rq_job.id
            assert not rq_copies.is_told_since(TenantJob.objects.get().uuid, rq_job)
            copy(rq_job)
        assert list(scheduled(queue)) == [rq_job.id], "the control: it would come back"

    meanwhile.append(seems_dead)
    queue.enqueue(meets, "acme", "once", history.path, retry=Retry(max=3, interval=interval))
    work()
    assert (history.started(), scheduled(queue), in_rq()) == (["once"], {}, 0)


def enqueue_again(rq_job: Job, connection: Any, result: Any) -> None:
    if meanwhile:
        meanwhile.pop()(rq_job)


@pytest.mark.parametrize("result_ttl", [0, 3])
@pytest.mark.parametrize("is_enqueued", [True, pytest.param(False, id="control")])
def test_what_is_enqueued_anew_before_rq_has_noted_the_end_does_not_expire_while_it_waits(
    queue: Queue, history: History, result_ttl: int, is_enqueued: bool
) -> None:
    def again(rq_job: Job) -> None:
        queue.enqueue(jobs.record, *rq_job.args, job_id=rq_job.id, result_ttl=result_ttl)

    row = tenant_queue("acme", max_job=1)
    on_success = Callback(enqueue_again)
    meanwhile.extend([again] * is_enqueued)
    options = {"result_ttl": result_ttl, "on_success": on_success}
    rq_job = queue.enqueue(jobs.record, "acme", "nightly", history.path, **options)
    work_once(queue)
    lasts = queue.connection.ttl(rq_job.key)
    assert lasts == -1 if is_enqueued else lasts <= result_ttl and lasts != -1
    if is_enqueued:
        row.set_limit(0)
        work()
        row.set_limit(1)
        work()
        assert history.started() == ["nightly"] * 2


def test_a_retry_of_rq_expires_when_it_should(queue: Queue) -> None:
    rq_job = queue.enqueue(jobs.fail, "acme", ttl=100, retry=Retry(max=1))
    work_once(queue)
    assert in_rq() == 1
    assert 0 < queue.connection.ttl(rq_job.key) <= 100
