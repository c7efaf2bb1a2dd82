"""The id of a plain RQ job is used anew, for another call or another time, while the one before waits or runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django_rq
import pytest
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.utils import now

from tenant_slots import dispatch, rq_copies
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import beside, deliveries, plain_rq
from tests import jobs
from tests.factories import counters_match, in_rq, tenant_queue, work
from tests.history import History
from tests.running.meeting import make_due, meanwhile, meets, work_once

pytestmark = pytest.mark.django_db(transaction=True)


def taken_by_another_worker(queue: Queue) -> None:
    """Which finds that it runs."""
    rq_id = queue.pop_job_id()
    assert rq_id is not None
    delivered = Job.fetch(rq_id, queue.connection)
    job = TenantJob.objects.get(rq_job_id=rq_id, state=State.RUNNING)
    beside.comes_back(delivered, job, is_anew=rq_copies.is_told_since(job.uuid, delivered))


@pytest.mark.parametrize("forget", [lambda queue, rq_job: rq_job.delete(), lambda queue, _: queue.connection.flushdb()])
def test_what_is_deleted_while_it_runs_and_enqueued_under_its_id_runs_after_that(
    queue: Queue, history: History, forget: Callable[[Queue, Job], Any]
) -> None:
    """The record of RQ that knew of the run is gone."""

    def replace(rq_job: Job) -> None:
        forget(queue, Job.fetch(rq_job.id, queue.connection))
        queue.enqueue(meets, "acme", "second", history.path, job_id=rq_job.id)
        taken_by_another_worker(queue)

    meanwhile.append(replace)
    rq_job = queue.enqueue(meets, "acme", "first", history.path)
    work_once(queue)
    assert (queue.scheduled_job_registry.count, in_rq()) == (0, 1)
    work()
    assert history.started() == ["first", "second"]
    assert rq_job.get_status() == JobStatus.FINISHED
    assert counters_match()


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_enqueued_with_other_arguments_while_it_runs_runs_with_these(
    queue: Queue, history: History, is_taken: bool, fails: bool
) -> None:
    """RQ writes back the record of the run at its end, and pushes it again where it retries that."""

    def replace(rq_job: Job) -> None:
        queue.enqueue(meets, "acme", "second", history.path, job_id=rq_job.id)
        if is_taken:
            taken_by_another_worker(queue)

    meanwhile.append(replace)
    queue.enqueue(meets, "acme", "first", history.path, fails=fails, retry=Retry(max=1) if fails else None)
    work()
    assert history.started() == ["first", "second"]
    assert counters_match()


def test_control_a_run_that_keeps_nothing_of_it_has_its_own_arguments_run_again(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rq_copies, "told_since", lambda *_: rq_copies.Told.NOTHING)
    meanwhile.append(lambda rq_job: queue.enqueue(meets, "acme", "second", history.path, job_id=rq_job.id))
    queue.enqueue(meets, "acme", "first", history.path)
    work()
    assert history.started() == ["first", "first"]


@pytest.mark.parametrize("result_ttl", [0, 500])
def test_what_a_run_schedules_under_its_own_id_keeps_its_arguments_and_does_not_expire_before(
    queue: Queue, history: History, result_ttl: int
) -> None:
    def schedules_the_next(rq_job: Job) -> None:
        arguments = ("acme", "second", history.path)
        queue.enqueue_in(timedelta(hours=1), meets, *arguments, job_id=rq_job.id, result_ttl=result_ttl)

    meanwhile.append(schedules_the_next)
    rq_job = queue.enqueue(meets, "acme", "first", history.path, result_ttl=result_ttl)
    work()
    assert queue.connection.ttl(rq_job.key) == -1
    make_due(queue, rq_job)
    work()
    assert history.started() == ["first", "second"]


@pytest.mark.parametrize("result_ttl", [0, 500])
def test_what_a_run_enqueues_under_its_own_id_after_another_job_waits_for_that(
    queue: Queue, history: History, result_ttl: int
) -> None:
    other = queue.enqueue_in(timedelta(hours=1), jobs.record, "acme", "other", history.path)

    def enqueues_the_next(rq_job: Job) -> None:
        arguments = ("acme", "second", history.path)
        queue.enqueue(meets, *arguments, job_id=rq_job.id, depends_on=other, result_ttl=result_ttl)

    meanwhile.append(enqueues_the_next)
    rq_job = queue.enqueue(meets, "acme", "first", history.path, result_ttl=result_ttl)
    work()
    assert (history.started(), queue.connection.ttl(rq_job.key)) == (["first"], -1)
    make_due(queue, other)
    work()
    assert history.started() == ["first", "other", "second"]


def test_what_is_enqueued_anew_while_a_delivery_joins_the_backlog_is_left_as_it_is(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That delivery would write back its own arguments, and a time of its own."""
    row, deferred = tenant_queue("acme", max_job=0), deliveries.deferred

    def after_another_one(rq_job: Job, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        queue.enqueue_in(timedelta(hours=1), meets, "acme", "second", history.path, job_id=rq_job.id)
        return deferred(rq_job, *args, **kwargs)

    monkeypatch.setattr(deliveries, "deferred", after_another_one)
    rq_job = queue.enqueue(meets, "acme", "first", history.path)
    work()
    due = queue.scheduled_job_registry.get_scheduled_time(rq_job)
    assert (due - rq_job.created_at).total_seconds() == pytest.approx(3600, abs=60)
    row.set_limit(1)
    work()
    assert history.started() == ["second"]


@pytest.mark.parametrize("has_slot", [False, True])
def test_an_id_that_is_enqueued_for_another_tenant_takes_a_slot_of_that_one(
    queue: Queue, history: History, has_slot: bool
) -> None:
    before, after = tenant_queue("acme", max_job=0), tenant_queue("other", max_job=0)
    queue.enqueue(meets, "acme", "first", history.path, job_id="nightly")
    work()
    if has_slot:
        before.set_limit(1)
        assert queue.pop_job_id() == "nightly"
    queue.enqueue(meets, "other", "second", history.path, job_id="nightly")
    work()
    assert history.started() == [], "the other tenant has no slot"
    before.set_limit(1)
    work()
    assert history.started() == []
    after.set_limit(1)
    work()
    assert history.started("other") == ["second"]
    states = TenantJob.objects.order_by("pk").values_list("tenant_queue__tenant", "state")
    assert list(states) == [("acme", State.CANCELED), ("other", State.FINISHED)]
    assert counters_match()


def put_off(queue: Queue, history: History, name: str, **options: Any) -> Job:
    row = tenant_queue("acme", max_job=0)
    rq_job = queue.enqueue(meets, "acme", name, history.path, **options)
    work()
    row.set_limit(1)
    assert in_rq() == 1, "its turn has come"
    return rq_job


def read_by_scheduler(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What is put off, as RQ's scheduler reads it a moment before its turn comes."""
    read: list[Job] = []
    brought_forward = dispatch._brought_forward

    def after_a_look(queue: Queue, job: TenantJob) -> Any:
        read.append(Job.fetch(job.last_rq_id, queue.connection))
        return brought_forward(queue, job)

    monkeypatch.setattr(dispatch, "_brought_forward", after_a_look)
    return read


@pytest.mark.parametrize(
    ("moment", "result_ttl"),
    [
        ("before it begins", 0),
        ("before it begins", 500),
        ("while it runs", 0),
        ("while it runs", 500),
        ("while it runs, and is taken", 0),
        ("while it runs, and is taken", 500),
        ("afterwards", 500),  # with 0 there is no record that knew of the run
    ],
)
def test_what_rqs_scheduler_enqueues_a_moment_after_its_turn_has_come_runs_once(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, moment: str, result_ttl: int
) -> None:
    read = read_by_scheduler(queue, monkeypatch)
    rq_job = put_off(queue, history, "once", result_ttl=result_ttl)

    def late(*_: Any) -> None:
        queue._enqueue_job(read.pop())
        if moment.endswith("taken"):
            taken_by_another_worker(queue)

    if moment == "before it begins":
        late()
    meanwhile.extend([late] * moment.startswith("while"))
    work_once(queue)
    if moment == "afterwards":
        late()
    assert not read
    work()
    assert history.started() == ["once"]
    assert (queue.scheduled_job_registry.count, in_rq()) == (0, 0)
    lasts = queue.connection.ttl(rq_job.key)
    assert 0 < lasts <= 500 if result_ttl else lasts == -2, "RQ's record would stay for ever"
    assert counters_match()


def test_control_without_when_it_was_put_off_that_is_taken_for_a_new_one(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = read_by_scheduler(queue, monkeypatch)
    monkeypatch.setattr(rq_copies, "is_put_off", lambda *_: None)
    put_off(queue, history, "twice")
    meanwhile.append(lambda _: queue._enqueue_job(read.pop()))
    work()
    assert history.started() == ["twice"] * 2


def test_a_job_that_was_read_while_it_was_put_off_and_is_enqueued_long_after_that_runs(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = read_by_scheduler(queue, monkeypatch)
    put_off(queue, history, "again")
    work()
    monkeypatch.setattr(rq_copies, "LATE_SECONDS", 0)
    queue.enqueue_job(read.pop())
    work()
    assert history.started() == ["again"] * 2


@pytest.mark.parametrize("saves", [False, True])
def test_one_that_was_put_off_and_that_rqs_scheduler_brings_back_runs_again_where_it_is_enqueued_anew(
    queue: Queue, history: History, saves: bool
) -> None:
    """RQ's scheduler leaves in the record that it was put off."""
    tenant_queue("acme", max_job=0)
    rq_job = queue.enqueue(meets, "acme", "again", history.path)
    work()
    TenantQueue.objects.update(max_job=1)
    make_due(queue, rq_job)

    def anew(running: Job) -> None:
        if saves:
            running.save()
        queue.enqueue_job(Job.fetch(rq_job.id, queue.connection))

    meanwhile.append(anew)
    work()
    assert history.started() == ["again"] * 2
    assert counters_match()


@pytest.mark.parametrize("is_replaced", [True, pytest.param(False, id="control")])
def test_another_call_that_is_enqueued_in_the_moment_in_which_its_turn_comes_runs_with_its_own_arguments(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    row = tenant_queue("acme", max_job=0)
    rq_job = queue.enqueue(meets, "acme", "first", history.path)
    work()
    enqueue_job = Queue._enqueue_job

    def after_another_one(self: Queue, *args: Any, **kwargs: Any) -> Job:
        monkeypatch.undo()
        if is_replaced:
            queue.enqueue(meets, "acme", "second", history.path, job_id=rq_job.id)
        return enqueue_job(self, *args, **kwargs)

    monkeypatch.setattr(Queue, "_enqueue_job", after_another_one)
    row.set_limit(1)
    work()
    assert history.started() == (["second"] if is_replaced else ["first"])
    assert (queue.scheduled_job_registry.count, counters_match()) == (0, True)


@pytest.mark.parametrize("name", ["first", "second"])
@pytest.mark.parametrize("hours", [0, pytest.param(1, id="somebody has scheduled it for another time")])
def test_a_job_that_is_put_off_and_enqueued_again_runs_once_where_its_slot_is_free_when_it_comes(
    queue: Queue, history: History, name: str, hours: int
) -> None:
    """As after a rest, before a sweep has come: RQ's scheduler had it run once more."""
    tenant_queue("acme", max_job=0)
    rq_job = queue.enqueue(meets, "acme", "first", history.path)
    work()
    TenantQueue.objects.update(max_job=1)
    if hours:
        queue.schedule_job(Job.fetch(rq_job.id, queue.connection), now() + timedelta(hours=hours))
    queue.enqueue(meets, "acme", name, history.path, job_id=rq_job.id)
    work()
    assert (history.started(), queue.scheduled_job_registry.count) == ([name], int(bool(hours)))
    assert counters_match()


@pytest.mark.parametrize("result_ttl", [0, 500])
def test_one_that_is_put_off_enqueued_again_deleted_and_enqueued_anew_runs_once(
    queue: Queue, history: History, result_ttl: int
) -> None:
    """RQ deletes of a job whose status is not scheduled what is in its list, and leaves the entry."""
    tenant_queue("acme", max_job=0)
    rq_job = queue.enqueue(meets, "acme", "first", history.path)
    work()
    TenantQueue.objects.update(max_job=1)
    queue.enqueue(meets, "acme", "second", history.path, job_id=rq_job.id)
    Job.fetch(rq_job.id, queue.connection).delete()
    assert queue.scheduled_job_registry.count == 1
    queue.enqueue(meets, "acme", "third", history.path, job_id=rq_job.id, result_ttl=result_ttl)
    work()
    assert (history.started(), queue.scheduled_job_registry.count) == (["third"], 0)
    assert queue.connection.ttl(rq_job.key) == (result_ttl or -2)
    assert counters_match()


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("is_asked", [True, pytest.param(False, id="control")])
def test_a_delivery_is_not_put_off_where_another_one_has_begun_before_rq_is_told_so(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch, is_over: bool, is_asked: bool
) -> None:
    """As of an id that is enqueued several times within moments. RQ's scheduler would have it run once more."""
    row, unless_told = tenant_queue("acme", max_job=0), deliveries._unless_told_since

    def after_another_one(*args: Any, **known: Any) -> None:
        monkeypatch.undo()
        if not is_asked:
            monkeypatch.setattr(rq_copies, "is_anothers_since", lambda *_: False)
        row.set_limit(1)
        if not is_over:
            meanwhile.append(lambda _: unless_told(*args, **known))
        work_once(queue)
        if is_over:
            unless_told(*args, **known)

    monkeypatch.setattr(dispatch, "DEFER_PAUSES", ())
    monkeypatch.setattr(deliveries, "_unless_told_since", after_another_one)
    rq_job = queue.enqueue(meets, "acme", "once", history.path)
    queue.enqueue(meets, "acme", "once", history.path, job_id=rq_job.id)
    work()
    assert (history.started(), queue.scheduled_job_registry.count) == (["once"], int(not is_asked))
    assert not is_asked or rq_job.get_status() == JobStatus.FINISHED
    assert counters_match()


def test_another_delivery_that_begins_in_the_moment_in_which_its_turn_comes_runs_alone(
    queue: Queue, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the list then is a copy of it."""
    row, texts = tenant_queue("acme", max_job=0), rq_copies._texts
    rq_job = queue.enqueue(meets, "acme", "once", history.path)
    queue.enqueue(meets, "acme", "once", history.path, job_id=rq_job.id)
    work_once(queue)
    assert queue.scheduled_job_registry.count == 1

    def before_its_turn(one: Job, *fields: str) -> list[str]:
        found = texts(one, *fields)
        if rq_copies.PUT_OFF in fields:
            monkeypatch.undo()
            dispatch.push([TenantJob.objects.get()])
        return found

    with monkeypatch.context() as unpushed:
        unpushed.setattr(dispatch, "push", lambda jobs: dispatch.Pushed(0, []))
        row.set_limit(1)
    monkeypatch.setattr(rq_copies, "_texts", before_its_turn)
    work()
    assert (history.started(), queue.scheduled_job_registry.count) == (["once"], 0)
    assert rq_job.get_status() == JobStatus.FINISHED
    assert counters_match()


def move_by_hand(queue: Queue, other: Queue, rq_job: Job) -> None:
    queue.scheduled_job_registry.remove(rq_job)
    other.enqueue_job(Job.fetch(rq_job.id, queue.connection))


def enqueue_there(queue: Queue, other: Queue, rq_job: Job) -> None:
    other.enqueue(meets, *rq_job.args, job_id=rq_job.id)


@pytest.mark.parametrize("move", [move_by_hand, enqueue_there])
@pytest.mark.parametrize("is_on_same_redis", [True, pytest.param(False, id="control")])
def test_a_job_that_is_put_off_and_goes_through_another_queue_of_rq_waits_for_workers_of_that_one(
    queue: Queue,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    move: Callable[[Queue, Queue, Job], None],
    is_on_same_redis: bool,
) -> None:
    """And RQ's scheduler brings it back to neither once it has run."""
    if not is_on_same_redis:
        monkeypatch.setattr(plain_rq, "_is_of_same_redis", lambda *_: False)
        monkeypatch.setattr(rq_copies, "_is_still_put_off", lambda *_: False)
    other, row = django_rq.get_queue("imports_bulk"), tenant_queue("acme", max_job=0)
    rq_job = queue.enqueue(meets, "acme", "once", history.path)
    work()
    move(queue, other, rq_job)
    work("imports_bulk")
    assert (history.started(), in_rq("imports_bulk")) == ([], 0)
    row.set_limit(1)
    work("imports_bulk")
    assert (queue.scheduled_job_registry.count, other.scheduled_job_registry.count) == (0, int(not is_on_same_redis))
    if is_on_same_redis:
        assert history.started() == ["once"]
        assert counters_match()
