"""What RQ was told last of a plain job counts, whichever delivery of it is under way, and through whichever queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import django_rq
import pytest
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.utils import now

from tenant_slots import dispatch, rq_copies, slots, tenant_job
from tenant_slots.models import State, TenantJob
from tenant_slots.running import beside, deliveries, plain_rq
from tenant_slots.running.run import Run
from tenant_slots.tasks.context import IN_META
from tests import jobs
from tests.factories import (
    another_process,
    counters_match,
    end_run,
    in_rq,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.history import History
from tests.running.meeting import make_due, meanwhile, meets, work_once

pytestmark = pytest.mark.django_db(transaction=True)


@tenant_job("imports", tenant="tenant", timeout=77)
def has_a_timeout(tenant: str, name: str, history: str) -> None:
    jobs.note(history, "start", tenant, name)


@tenant_job("imports", tenant="tenant", key="name")
def has_a_key(tenant: str, name: str, history: str) -> None:
    jobs.note(history, "start", tenant, name)


def enqueue(queue: Queue, function: Callable[..., Any], name: str, history: History, **options: Any) -> Job:
    return queue.enqueue(function, "acme", name, history.path, job_id="nightly", **options)


def again(queue: Queue, _: History) -> None:
    queue.enqueue_job(Job.fetch("nightly", queue.connection))


def another_call(queue: Queue, history: History) -> None:
    enqueue(queue, has_a_timeout, "second", history)


def another_call_for_later(queue: Queue, history: History) -> None:
    queue.enqueue_in(timedelta(hours=1), has_a_timeout, "acme", "second", history.path, job_id="nightly")


def cancel(queue: Queue, _: History) -> None:
    Job.fetch("nightly", queue.connection).cancel()


Say = Callable[[Queue, History], None]


@pytest.mark.parametrize(
    ("say", "runs"),
    [
        (another_call, ["second"]),
        (another_call_for_later, []),
        (cancel, []),
        pytest.param(lambda *_: None, ["first"], id="control"),
    ],
)
def test_what_rq_is_told_while_a_delivery_writes_the_decorators_timeout_is_left_as_it_is(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, say: Say, runs: list[str]
) -> None:
    delivered_again = deliveries.again

    def after_that(rq_job: Job) -> Any:
        monkeypatch.undo()
        say(queue, history)
        return delivered_again(rq_job)

    monkeypatch.setattr(deliveries, "again", after_that)
    enqueue(queue, has_a_timeout, "first", history)
    work()
    assert (history.started(), in_rq()) == (runs, 0)
    assert queue.scheduled_job_registry.count == int(say is another_call_for_later)


@pytest.mark.parametrize("function", [meets, has_a_timeout])
@pytest.mark.parametrize(
    ("say", "runs"), [(another_call, ["second"]), (cancel, []), pytest.param(lambda *_: None, ["first"], id="control")]
)
def test_what_rq_is_told_in_the_moment_in_which_a_delivery_is_put_off_or_made_again_is_left_as_it_is(
    queue: Queue,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    say: Say,
    runs: list[str],
) -> None:
    """It has asked already, and RQ writes the whole record."""
    row, is_to_come_back = tenant_queue("acme", max_job=0), deliveries._is_to_come_back

    def and_then(*asked: Any) -> bool:
        monkeypatch.undo()
        found = is_to_come_back(*asked)
        say(queue, history)
        return found

    monkeypatch.setattr(deliveries, "_is_to_come_back", and_then)
    enqueue(queue, function, "first", history)
    work()
    row.set_limit(1)
    work()
    assert (history.started(), in_rq(), queue.scheduled_job_registry.count) == (runs, 0, 0)
    assert counters_match()


@pytest.mark.parametrize(
    ("say", "runs"), [(another_call, ["first", "second"]), pytest.param(again, ["first"], id="the same call")]
)
def test_another_call_that_is_enqueued_when_a_worker_has_just_taken_the_first_runs_too(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, say: Say, runs: list[str]
) -> None:
    """That worker has the arguments of the first: fork and import of the module may take it seconds."""
    run_plain = plain_rq._run_plain

    def after_that(*delivered: Any) -> Any:
        monkeypatch.undo()
        say(queue, history)
        return run_plain(*delivered)

    monkeypatch.setattr(plain_rq, "_run_plain", after_that)
    enqueue(queue, meets, "first", history)
    work()
    assert history.started() == runs
    assert counters_match()


def enqueues_itself(rq_job: Job) -> None:
    django_rq.get_queue("imports").enqueue_job(rq_job)


def schedules_itself(rq_job: Job) -> None:
    django_rq.get_queue("imports").schedule_job(rq_job, now() + timedelta(hours=1))


@pytest.mark.parametrize("how", [enqueues_itself, schedules_itself])
@pytest.mark.parametrize("result_ttl", [0, 500])
def test_a_run_may_enqueue_or_schedule_the_very_object_that_stands_for_it(
    queue: Queue, history: History, how: Callable[[Job], None], result_ttl: int
) -> None:
    """It would be gone, or expire, with the result of this run."""
    meanwhile.append(how)
    rq_job = enqueue(queue, meets, "poll", history, result_ttl=result_ttl)
    work_once(queue)
    assert queue.connection.ttl(rq_job.key) == -1
    if how is schedules_itself:
        make_due(queue, rq_job)
    work()
    assert history.started() == ["poll"] * 2
    assert queue.connection.ttl(rq_job.key) == (-2 if result_ttl == 0 else 500)


@pytest.mark.parametrize("has_slot", [False, True])
def test_a_job_that_waits_is_the_call_that_was_enqueued_last(queue: Queue, history: History, has_slot: bool) -> None:
    """Its context is the caller's, and the limit per key is that of its own key."""
    row = tenant_queue("acme", max_job=0)
    enqueue(queue, meets, "first", history, meta={IN_META: {"user": 1}})
    work()
    if has_slot:
        row.set_limit(1)
    enqueue(queue, has_a_key, "second", history, meta={IN_META: {"user": 2}})
    work()
    row.set_limit(1)
    work()
    assert history.started() == ["second"]
    job = TenantJob.objects.get()
    assert (job.task, job.context, job.state) == (has_a_key.tenant_task.path, {"user": 2}, State.FINISHED)
    assert job.key == ("" if has_slot else "second"), "it has taken its slot without one"


@pytest.mark.parametrize("function", [meets, has_a_timeout])
@pytest.mark.parametrize("max_job", [0, 1])
def test_a_job_in_the_lists_of_two_queues_is_put_off_and_taken_back_in_the_one_that_rqs_record_names(
    queue: Queue, history: History, function: Callable[..., Any], max_job: int
) -> None:
    """As where somebody has enqueued it in another one when it waited for a worker of the first for too long."""
    other, row = django_rq.get_queue("reports"), tenant_queue("acme", max_job=max_job)
    other.enqueue_job(enqueue(queue, function, "once", history))
    work("imports")
    row.set_limit(1)
    assert queue.scheduled_job_registry.count == other.scheduled_job_registry.count == 0, "its turn has come"
    work()
    assert history.started() == ["once"]
    executions = [one.connection.zcard(one.started_job_registry.key) for one in (queue, other)]
    assert executions == [0, 0], "RQ would take the job for abandoned"
    assert counters_match()


def keeps_its_meta(rq_job: Job) -> None:
    rq_job.meta["progress"] = 5
    rq_job.save_meta()  # type: ignore[no-untyped-call]


def fails(_: Job) -> None:
    raise ValueError("RQ enqueues it again")


@pytest.mark.parametrize("is_somebodys", [True, pytest.param(False, id="control")])
def test_what_somebody_has_scheduled_stays_where_a_slow_delivery_of_the_call_before_comes_through_another_queue(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_somebodys: bool
) -> None:
    """It finds the row in the queue that the later call goes through. What is put off there comes this way now."""
    row, lane = tenant_queue("acme", max_job=0), django_rq.get_queue("imports_bulk")
    enqueue(lane, meets, "first", history)
    joined = plain_rq._joined

    def after_another_call(*args: Any) -> TenantJob:
        monkeypatch.setattr(plain_rq, "_joined", joined)
        if is_somebodys:
            another_call_for_later(queue, history)
            waiting_job(row, rq_job_id="nightly")
        else:
            enqueue(queue, meets, "second", history)
            work_once(queue)
        assert queue.scheduled_job_registry.count == 1
        return joined(*args)

    monkeypatch.setattr(plain_rq, "_joined", after_another_call)
    work_once(lane)
    assert queue.scheduled_job_registry.count == is_somebodys


@pytest.mark.parametrize("is_scheduled", [True, pytest.param(False, id="control")])
def test_a_job_that_is_deleted_while_it_runs_does_not_stay_for_a_time_for_which_it_was_scheduled(
    queue: Queue, history: History, is_scheduled: bool
) -> None:
    """RQ takes it only out of the registry of the queue where it was enqueued last: it would run once more then."""

    def is_deleted(rq_job: Job) -> None:
        if is_scheduled:
            another_call_for_later(queue, history)
        enqueue(django_rq.get_queue("reports"), meets, "third", history).delete()
        assert queue.scheduled_job_registry.count == is_scheduled

    meanwhile.append(is_deleted)
    rq_job = enqueue(queue, meets, "first", history)
    work()
    assert 0 < queue.connection.ttl(rq_job.key) <= 500
    assert history.started() == ["first"]


@pytest.mark.parametrize("is_deleted", [True, pytest.param(False, id="control")])
def test_a_slow_copy_of_a_job_that_is_deleted_while_it_runs_does_not_run(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    """RQ has a record of it again when the run has ended, without a word of the run. The copy has read of it before."""
    rq_job = enqueue(queue, meets, "first", history)
    job = running_job(tenant_queue("acme", max_job=5), another_process(), rq_job_id=rq_job.id)
    rq_copies.belong_to(job.uuid, Job.fetch("nightly", queue.connection))

    def and_then_it_ends(_: UUID) -> None:
        monkeypatch.undo()
        end_run(job, state=State.FINISHED)
        if is_deleted:
            queue.connection.hdel(rq_job.key, rq_copies.RUN)

    monkeypatch.setattr(deliveries, "_came_of", and_then_it_ends)
    work_once(queue)
    assert history.started() == []
    assert counters_match()


@pytest.mark.parametrize("ends", [fails, lambda _: None])
@pytest.mark.parametrize("copies", [3, pytest.param(0, id="control")])
def test_what_rq_still_has_in_its_list_of_a_job_that_is_deleted_while_it_runs_is_no_further_call(
    queue: Queue, history: History, ends: Callable[[Job], None], copies: int
) -> None:
    """RQ takes one of several out of it, and writes its record of the job once more at the end of the run."""

    def is_deleted(rq_job: Job) -> None:
        for _ in range(copies):
            queue.push_job_id(rq_job.id)
        Job.fetch(rq_job.id, queue.connection).delete()
        assert queue.count == max(copies - 1, 0)
        ends(rq_job)

    meanwhile.append(is_deleted)
    rq_job = enqueue(queue, meets, "first", history)
    work()
    assert history.started() == ["first"]
    assert queue.connection.ttl(rq_job.key) > 0
    assert counters_match()


def cancels_another_call(rq_job: Job) -> None:
    queue = django_rq.get_queue(rq_job.origin)
    queue.enqueue(meets, *rq_job.args, job_id=rq_job.id).cancel()


@pytest.mark.parametrize("ends", [fails, lambda _: None])
@pytest.mark.parametrize(
    ("does", "status"),
    [
        (lambda rq_job: enqueues_itself(rq_job), JobStatus.QUEUED),
        (lambda rq_job: schedules_itself(rq_job), JobStatus.SCHEDULED),
        (cancels_another_call, JobStatus.CANCELED),
        pytest.param(lambda _: None, None, id="control"),
    ],
)
def test_the_end_of_a_run_is_not_told_of_what_was_enqueued_or_canceled_meanwhile(
    queue: Queue,
    history: History,
    does: Callable[[Job], None],
    ends: Callable[[Job], None],
    status: JobStatus | None,
) -> None:
    """Whoever gives it a slot, and does not find it yet, would take it for one that is not to run any more."""

    def does_it_and_ends(rq_job: Job) -> None:
        does(rq_job)
        ends(rq_job)

    meanwhile.append(does_it_and_ends)
    rq_job = enqueue(queue, meets, "poll", history)
    work_once(queue)
    own = JobStatus.FAILED if ends is fails else JobStatus.FINISHED
    assert rq_job.get_status() == (status or own)


@pytest.mark.parametrize("does", [keeps_its_meta, Job.save, fails, pytest.param(lambda _: None, id="control")])
def test_a_run_leaves_the_meta_of_another_call_under_its_id_as_it_is(
    queue: Queue, history: History, does: Callable[[Job], None]
) -> None:
    """The context is in it: that call would run as the user of this one."""

    def is_replaced(rq_job: Job) -> None:
        enqueue(queue, meets, "second", history, meta={IN_META: {"user": 2}})
        does(rq_job)

    meanwhile.append(is_replaced)
    enqueue(queue, meets, "first", history, meta={IN_META: {"user": 1}}, retry=Retry(max=1))
    work()
    assert history.started() == ["first", "second"]
    assert [job.context for job in TenantJob.objects.order_by("pk")] == [{"user": 1}, {"user": 2}]


@pytest.mark.parametrize("how", [enqueues_itself, schedules_itself, lambda rq_job: None])
def test_a_run_that_is_enqueued_again_keeps_its_own_meta(
    queue: Queue, history: History, how: Callable[[Job], None]
) -> None:
    """As where a function that goes on later says in it how far it is."""

    def goes_on_later(rq_job: Job) -> None:
        how(rq_job)
        keeps_its_meta(rq_job)

    meanwhile.append(goes_on_later)
    rq_job = enqueue(queue, meets, "poll", history)
    work()
    assert rq_job.get_meta(refresh=True) == {"progress": 5}


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize(
    ("is_other", "is_gone"),
    [(True, False), pytest.param(False, False, id="copy"), pytest.param(False, True, id="gone")],
)
def test_a_call_whose_delivery_finds_that_one_of_the_call_before_has_just_begun_runs_after_that(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_over: bool, is_other: bool, is_gone: bool
) -> None:
    """Both have found the slot that their row has, and each has said in RQ's record that the row is its own."""
    belong_to, started = rq_copies.belong_to, plain_rq._started
    enqueue(queue, meets, "first", history)
    before = Job.fetch("nightly", queue.connection)
    slowest = [enqueue(queue, meets, name, history) for name in ["between"] * is_other]
    if is_other:
        enqueue(queue, meets, "second", history)

    def after_the_other(uuid: UUID, rq_job: Job) -> None:
        for delivery in (before, rq_job, *slowest):
            belong_to(uuid, delivery)

    def is_slower(run: Run, job: TenantJob) -> bool:
        monkeypatch.undo()
        assert slots.start(job, another_process())
        if is_over:
            ends()
        return started(run, job)

    def ends() -> None:
        for delivery in slowest:
            rq_copies.has_not_begun(delivery)
        job = TenantJob.objects.get()
        end_run(job, state=State.FINISHED)
        beside.has_ended(before, job)
        if is_gone:  # as with a result_ttl of 0
            before.delete()

    monkeypatch.setattr(rq_copies, "belong_to", after_the_other)
    monkeypatch.setattr(plain_rq, "_started", is_slower)
    work_once(queue)
    if not is_over:
        ends()
    work()
    assert history.started() == ["second"] * is_other
    assert (queue.scheduled_job_registry.count, counters_match()) == (0, True)


@pytest.mark.parametrize("result_ttl", [0, 500])
def test_a_copy_of_a_call_whose_delivery_is_just_finding_out_that_it_cannot_begin_does_not_delete_that(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, result_ttl: int
) -> None:
    """RQ's record says for that moment that the run of the call before, which has ended, is of this one, too."""
    belong_to, started = rq_copies.belong_to, plain_rq._started
    enqueue(queue, meets, "first", history, result_ttl=result_ttl)
    before = Job.fetch("nightly", queue.connection)
    second = enqueue(queue, meets, "second", history, result_ttl=result_ttl)
    assert queue.pop_job_id()

    def is_said_by_both(uuid: UUID, rq_job: Job) -> None:
        belong_to(uuid, before)
        belong_to(uuid, rq_job)

    def is_slower(run: Run, job: TenantJob) -> bool:
        monkeypatch.undo()
        assert slots.start(job, another_process())
        end_run(TenantJob.objects.get(), state=State.FINISHED)
        beside.has_ended(before, job)
        queue.push_job_id("nightly")
        work_once(queue)
        assert history.started() == []
        return started(run, job)

    monkeypatch.setattr(rq_copies, "belong_to", is_said_by_both)
    monkeypatch.setattr(plain_rq, "_started", is_slower)
    work()
    assert history.started() == ["second"]
    assert queue.connection.exists(second.key) == int(bool(result_ttl))
    assert counters_match()


def test_a_call_that_is_enqueued_again_is_not_lost_where_its_delivery_was_taken_for_one_that_could_not_begin(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above; and RQ's record says for that moment that the run is also of what was enqueued again."""
    belong_to, started = rq_copies.belong_to, plain_rq._started
    enqueue(queue, meets, "first", history)
    before = Job.fetch("nightly", queue.connection)
    enqueue(queue, meets, "second", history)
    assert queue.pop_job_id()

    def is_said_by_both(uuid: UUID, rq_job: Job) -> None:
        belong_to(uuid, before)
        again(queue, history)
        belong_to(uuid, rq_job)

    def is_slower(run: Run, job: TenantJob) -> bool:
        monkeypatch.undo()
        assert slots.start(job, another_process())
        end_run(TenantJob.objects.get(), state=State.FINISHED)
        beside.has_ended(before, job)
        work_once(queue)
        assert (history.started(), in_rq("imports")) == ([], 0)
        return started(run, job)

    monkeypatch.setattr(rq_copies, "belong_to", is_said_by_both)
    monkeypatch.setattr(plain_rq, "_started", is_slower)
    work()
    assert history.started() == ["second"]
    assert counters_match()


@pytest.mark.parametrize("is_of_the_last", [True, False])
def test_a_delivery_that_says_that_its_row_is_its_own_when_another_one_has_run_with_that_loses_and_doubles_nothing(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_of_the_last: bool
) -> None:
    """Both have found the slot that the row has. The faster one has begun and ended before the other says so."""
    belong_to = rq_copies.belong_to

    def too_late(uuid: UUID, rq_job: Job) -> None:
        monkeypatch.undo()
        if is_of_the_last:
            other = before
            belong_to(uuid, other)
            assert slots.start(TenantJob.objects.get(), another_process())
            end_run(TenantJob.objects.get(), state=State.FINISHED)
            beside.has_ended(other, TenantJob.objects.get())
        else:
            enqueue(queue, meets, "second", history)
            work_once(queue)
        belong_to(uuid, rq_job)

    before = enqueue(queue, meets, "first", history)
    if is_of_the_last:
        before = Job.fetch("nightly", queue.connection)
        enqueue(queue, meets, "second", history)
        queue.pop_job_id()
    monkeypatch.setattr(rq_copies, "belong_to", too_late)
    work_once(queue)
    queue.push_job_id("nightly")
    work()
    assert history.started() == ["second"]
    assert (queue.scheduled_job_registry.count, in_rq(), counters_match()) == (0, 0, True)


def test_a_delivery_that_is_too_late_to_begin_takes_back_nothing_of_another_one_that_has_a_row_of_its_own(
    queue: Queue, history: History
) -> None:
    """It would say that nobody has begun, and have the call run once more."""
    slow = enqueue(queue, meets, "once", history)
    row, another_row = uuid4(), uuid4()
    other = Job.fetch("nightly", queue.connection)
    assert rq_copies.row_of(slow) is None
    rq_copies.belong_to(row, slow)
    rq_copies.belong_to(another_row, other)
    rq_copies.has_not_begun(slow)
    assert rq_copies.is_anothers_since(slow, rq_copies.times_of(slow))
    assert rq_copies.row_of(other) == another_row


@pytest.mark.parametrize("begins", [False, True])
def test_a_slow_delivery_of_a_call_that_was_replaced_leaves_the_other_one_put_off(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """It has found the slot that their row had before its tenant got a lower limit."""
    row = tenant_queue("acme", max_job=0)
    enqueue(queue, meets, "first", history)
    slow = Job.fetch("nightly", queue.connection)
    enqueue(queue, meets, "second", history)
    work()
    job = TenantJob.objects.get()
    rq_copies.belong_to(job.uuid, slow)
    if begins:
        monkeypatch.setattr(dispatch, "DEFER_PAUSES", ())
        row.set_limit(1)
        assert slots.start(TenantJob.objects.get(), another_process())
        end_run(TenantJob.objects.get(), state=State.FINISHED)
        beside.has_ended(slow, job)
        make_due(queue, slow)
    else:
        rq_copies.has_not_begun(slow)
        row.set_limit(1)
    work()
    assert history.started() == ["second"]
    assert (queue.scheduled_job_registry.count, in_rq(), counters_match()) == (0, 0, True)


def test_rqs_record_of_a_job_that_begins_again_and_again_does_not_grow_for_ever(queue: Queue) -> None:
    """As one that raises `TenantBusy` does."""
    tenant_queue("acme", max_job=0)
    rq_job = queue.enqueue(meets, "acme", "poll", "")
    work()
    job, length = TenantJob.objects.get(), 0
    for _ in range(3):
        length = queue.connection.hstrlen(rq_job.key, rq_copies.RUN)
        for _ in range(rq_copies.MOST_OTHERS):
            rq_copies.belong_to(job.uuid, rq_job)
            beside.has_ended(rq_job, job)
    assert queue.connection.hstrlen(rq_job.key, rq_copies.RUN) == length > 0


@pytest.mark.parametrize("is_replaced", [True, pytest.param(False, id="control")])
def test_a_copy_runs_nothing_where_another_one_has_run_since_it_asked_and_another_call_was_enqueued(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """All that RQ's record says of the time at which it was enqueued is what the run has noted."""
    waiting_or_admitted = plain_rq._waiting_or_admitted

    def after_both(*asked: Any) -> Any:
        monkeypatch.undo()
        work_once(queue)
        if is_replaced:
            enqueue(queue, meets, "second", history)
        return waiting_or_admitted(*asked)

    monkeypatch.setattr(plain_rq, "_waiting_or_admitted", after_both)
    enqueue(queue, meets, "first", history)
    queue.push_job_id("nightly")
    work()
    assert history.started() == ["first", *["second"] * is_replaced]
    ended = [State.FINISHED, State.FINISHED if is_replaced else State.CANCELED]
    assert list(TenantJob.objects.order_by("pk").values_list("state", flat=True)) == ended
    assert counters_match()


@pytest.mark.parametrize("function", [meets, has_a_timeout])
@pytest.mark.parametrize("result_ttl", [0, 500])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_copy_that_is_put_off_or_made_again_is_not_written_into_rq_where_another_one_has_run_since_it_asked(
    queue: Queue,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    function: Callable[..., Any],
    result_ttl: int,
    is_deleted: bool,
) -> None:
    """RQ has deleted its record by then, or somebody has, or it says the time at which the other one was made again."""
    row, unless_told = tenant_queue("acme", max_job=int(function is has_a_timeout)), deliveries._unless_told_since

    def after_the_other(*args: Any, **known: Any) -> None:
        monkeypatch.setattr(deliveries, "_unless_told_since", unless_told)
        row.set_limit(1)
        if is_deleted:
            Job.fetch("nightly", queue.connection).delete()
        else:
            queue.push_job_id("nightly")
            work()
        unless_told(*args, **known)

    monkeypatch.setattr(dispatch, "DEFER_PAUSES", ())
    monkeypatch.setattr(deliveries, "_unless_told_since", after_the_other)
    rq_job = enqueue(queue, function, "once", history, result_ttl=result_ttl)
    work_once(queue)
    assert (in_rq(), queue.scheduled_job_registry.count) == (0, 0)
    assert history.started() == ["once"] * (not is_deleted)
    assert queue.connection.exists(rq_job.key) == int(bool(result_ttl) and not is_deleted)
    assert counters_match()


def test_one_that_would_be_made_again_when_another_one_that_was_runs_already_is_a_copy_of_that(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen in RQ's record that this one has begun, which was made again at another time than its own."""
    earlier = deliveries.earlier

    def after_the_other(rq_job: Job) -> Any:
        monkeypatch.undo()
        queue.push_job_id("nightly")
        work()
        return earlier(rq_job)

    monkeypatch.setattr(deliveries, "earlier", after_the_other)
    enqueue(queue, has_a_timeout, "once", history)
    work()
    assert history.started() == ["once"]
    assert counters_match()
