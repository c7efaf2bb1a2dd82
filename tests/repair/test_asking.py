"""Jobs whose time has come are promoted before anybody asks what they do while their tenant is busy."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django_rq
import pytest
from django.utils import timezone

from tenant_slots import Reschedule
from tenant_slots.conf import app_settings
from tenant_slots.enqueueing import on_busy
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.repair import findings, steps, sweeper
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.workers.aside import AsideWorker
from tests import jobs
from tests.factories import age, counters_match, fresh, in_rq, in_thread, tenant_queue, work

pytestmark = pytest.mark.django_db(transaction=True)

Asked = list[tuple[str, int]]


def due(tenant: str, number: int, task: Any = jobs.decides, seconds: float = 60) -> list[TenantJob]:
    """Jobs of a tenant whose time came so many seconds ago; it has none of them yet."""
    later = timezone.now() + timedelta(hours=1)
    stored: list[TenantJob] = task.using(run_after=later).enqueue_many([((tenant,), {})] * number)
    pks = [job.pk for job in stored]
    TenantJob.objects.filter(pk__in=pks).update(run_after=timezone.now() - timedelta(seconds=seconds))
    return stored


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """Has each callable take so many seconds of a clock, and gives the tenants and jobs that were asked, in order."""

    def with_answer(policy: Any = "wait", seconds: dict[str, float] | float = 0.0) -> Asked:
        asked: Asked = []
        passed = [0.0]
        stands_at = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: stands_at + passed[0])

        def decide(job: TenantJob, row: TenantQueue) -> Any:
            asked.append((row.tenant, job.pk))
            passed[0] += seconds[row.tenant] if isinstance(seconds, dict) else seconds
            return policy(job) if callable(policy) else policy

        monkeypatch.setattr(on_busy, "_on_busy", lambda job: decide if job.task == "tests.jobs.decides" else "wait")
        return asked

    return with_answer


def sweep() -> None:
    assert sweeper.run_now("test").failed == []


def test_the_first_callable_is_asked_when_everybody_has_been_promoted(
    answer: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "ROWS_PER_STEP", 10)
    for tenant in ("slow", "small"):
        tenant_queue(tenant)
    due("slow", 30)
    (other,) = due("small", 1, jobs.only_now, seconds=30)
    seen: list[str] = []

    def look(job: TenantJob) -> str:
        seen.append(fresh(other).state)
        return "wait"

    answer(look, seconds=3)
    sweep()
    assert seen
    assert set(seen) == {State.QUEUED}


def test_a_callable_that_takes_a_whole_sweep_holds_up_no_promotion(
    answer: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "ROWS_PER_STEP", 10)
    tenant_queue("slow", max_job=0)
    due("slow", 35)
    asked = answer("wait", seconds=100)
    for _ in range(4):
        sweep()
    assert len(asked) == 4
    assert TenantJob.objects.waiting().count() == 35


def test_many_tenants_with_many_due_jobs_each_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tenant alone has many of them: together they have more than a sweep promotes."""
    monkeypatch.setattr(steps, "ROWS_PER_STEP", 10)
    monkeypatch.setattr(steps, "SECONDS_TO_PROMOTE", -1)
    for tenant in (*"abcdefgh", "small"):
        tenant_queue(tenant, max_job=0)
    for tenant in "abcdefgh":
        due(tenant, 5, jobs.fail)
    due("small", 1, jobs.fail, seconds=30)
    sweep()
    promoted = Counter(TenantJob.objects.waiting().values_list("tenant_queue__tenant", flat=True))
    assert promoted == {"a": 2, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "small": 1}


def test_later_sweeps_ask_those_for_whom_there_was_no_time(answer: Callable[..., Asked]) -> None:
    tenant_queue("slow", max_job=0)
    own = due("slow", 7)
    asked = answer("discard", seconds=0.9)
    sweep()
    assert len(asked) == 3
    assert TenantJob.objects.waiting().count() == 4
    sweep()
    assert len(asked) == 6
    sweep()
    sweep()
    assert asked == [("slow", job.pk) for job in own]
    assert not TenantJob.objects.exclude(state=State.CANCELED).exists()


def test_nobody_is_asked_twice_whether_or_not_he_waits(answer: Callable[..., Asked]) -> None:
    tenant_queue("slow", max_job=0)
    own = due("slow", 7)
    asked = answer("wait")
    sweep()
    sweep()
    assert sorted(asked) == [("slow", job.pk) for job in own]
    assert TenantJob.objects.waiting().count() == 7


def test_those_for_whom_a_slot_is_free_by_now_are_not_asked(answer: Callable[..., Asked]) -> None:
    row = tenant_queue("slow", max_job=0)
    own = due("slow", 6)
    asked = answer("discard", seconds=0.9)
    sweep()
    row.set_limit(2, by="test")
    sweep()
    assert len(asked) == 4
    assert [fresh(job).state for job in own[3:]] == [State.QUEUED, State.QUEUED, State.CANCELED]
    assert counters_match()


def test_one_is_asked_in_each_turn_however_slow_everything_is(answer: Callable[..., Asked]) -> None:
    row = tenant_queue("slow", max_job=0)
    own = due("slow", 3)
    steps.promote(Report(), Contact())
    asked = answer("wait")
    answers = on_busy.turn_away(row.pk, own, ask_until=time.monotonic() - 1)
    assert asked == [("slow", own[0].pk)]
    assert answers.unasked == [job.pk for job in own[1:]]


def test_tenants_with_slow_callables_take_turns(answer: Callable[..., Asked]) -> None:
    for tenant in ("ann", "bob"):
        tenant_queue(tenant, max_job=0)
        due(tenant, 5)
    asked = answer("wait", seconds=0.45)
    sweep()
    assert Counter(tenant for tenant, _ in asked) in ({"ann": 2, "bob": 3}, {"ann": 3, "bob": 2})


def test_a_quick_tenant_gets_through_beside_a_slow_one(answer: Callable[..., Asked]) -> None:
    for tenant in ("quick", "slow"):
        tenant_queue(tenant, max_job=0)
        due(tenant, 5)
    asked = answer("wait", seconds={"quick": 0.01, "slow": 0.5})
    sweep()
    assert Counter(tenant for tenant, _ in asked) == {"quick": 5, "slow": 4}


def test_one_that_defers_again_and_again_is_asked_each_time(answer: Callable[..., Asked]) -> None:
    tenant_queue("slow", max_job=0)
    (job,) = due("slow", 1)
    asked = answer(Reschedule(60))
    for _ in range(3):
        TenantJob.objects.update(run_after=timezone.now() - timedelta(seconds=1))
        sweep()
        assert fresh(job).state == State.SCHEDULED
    assert asked == [("slow", job.pk)] * 3


def test_what_a_callable_asks_of_another_sweep_is_not_asked_there_too(answer: Callable[..., Asked]) -> None:
    """Several sweep at the same time where one takes long."""
    tenant_queue("slow", max_job=0)
    own = due("slow", 5)
    nested: list[int] = []

    def sweep_meanwhile(job: TenantJob) -> str:
        if not nested:
            nested.append(job.pk)
            in_thread(sweep)
        return "wait"

    asked = answer(sweep_meanwhile)
    sweep()
    assert nested
    assert sorted(asked) == [("slow", job.pk) for job in own]


def test_jobs_of_a_tenant_queue_that_cannot_be_locked_are_asked_later(
    answer: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_queue("slow", max_job=0)
    due("slow", 3)
    asked = answer("discard")

    def locked(*arguments: Any) -> Any:
        raise TenantQueueLocked(tenant_queue="slow on imports", seconds=0.2)

    with monkeypatch.context() as broken:
        broken.setattr(on_busy, "_leave_backlog", locked)
        sweep()
    assert TenantJob.objects.waiting().count() == 3
    sweep()
    assert len(asked) == 6
    assert not TenantJob.objects.exclude(state=State.CANCELED).exists()


def test_who_is_asked_is_noted_before_so_that_one_that_kills_the_sweep_does_so_once(
    answer: Callable[..., Asked],
) -> None:
    tenant_queue("slow", max_job=0)
    due("slow", 3)
    left: list[int] = []

    def look(job: TenantJob) -> str:
        left.append(in_thread(findings.to_ask().count))
        return "wait"

    answer(look)
    steps.promote(Report(), Contact())
    assert findings.to_ask().count() == 3
    steps.ask(Report(), Contact())
    assert left == [0, 0, 0]


def test_who_interrupts_a_sweep_takes_no_question_from_anybody(answer: Callable[..., Asked]) -> None:
    tenant_queue("slow", max_job=0)
    due("slow", 3)

    def interrupted(job: TenantJob) -> str:
        raise KeyboardInterrupt

    answer(interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep()
    assert findings.to_ask().count() == 3


def test_a_callable_that_never_ends_is_ended_with_the_sweep_and_the_next_sweep_asks_another_job(
    answer: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_queue("slow", max_job=0)
    own = due("slow", 3)

    def rings(job: TenantJob) -> str:
        raise SweepTimeout

    asked = answer(rings, seconds=8)
    for _ in own:
        with pytest.raises(SweepTimeout):
            sweep()
    assert asked == [("slow", job.pk) for job in own]
    assert TenantJob.objects.waiting().count() == 3


def test_the_process_of_a_sweep_is_killed_only_after_the_sweep_has_had_its_time() -> None:
    """Else a callable that never ends would kill it, and its worker would never have had contact for a lease."""
    aside = AsideWorker([django_rq.get_queue("imports")])._sweeping
    assert aside._seconds > sweeper.SHARE_OF_LEASE * app_settings.LEASE_TTL + 1


@pytest.mark.parametrize("number", [1, 3, 150])
def test_only_those_are_to_be_asked_whose_function_does_not_wait(number: int) -> None:
    tenant_queue("slow", max_job=0)
    due("slow", number)
    due("slow", number, jobs.fail)
    assert set(TenantJob.objects.filter(asks=True).values_list("task", flat=True)) == {"tests.jobs.decides"}
    assert TenantJob.objects.filter(asks=True).count() == number
    jobs.decides.enqueue("slow")
    assert TenantJob.objects.filter(asks=True).count() == number, "it was asked at once"


def test_one_that_was_canceled_before_its_time_and_is_retried_waits() -> None:
    tenant_queue("slow", max_job=0)
    (job,) = due("slow", 1, jobs.only_now)
    assert job.cancel()
    fresh(job).retry()
    sweep()
    assert fresh(job).state == State.WAITING


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_plain_rq_job_that_rq_delivers_is_not_asked_by_a_sweep_too(
    is_promoted: bool, answer: Callable[..., Asked]
) -> None:
    tenant_queue("slow", max_job=0)
    asked = answer(Reschedule(60))
    queue = django_rq.get_queue("imports")
    rq_job = queue.enqueue(jobs.decides, "slow")
    work()
    job = TenantJob.objects.get()
    assert (job.state, job.asks) == (State.SCHEDULED, True)
    if is_promoted:
        age(job, run_after=1)
        steps.promote(Report(), Contact())
    again = answer("wait")
    queue.scheduled_job_registry.requeue(rq_job.id)
    work()
    assert (fresh(job).state, job.asks) == (State.WAITING, False)
    sweep()
    assert (len(asked), len(again)) == (1, 1)


def test_due_jobs_of_several_rq_queues_are_offered_in_each() -> None:
    tenant_queue("ann", max_job=2)
    due("ann", 1, jobs.fail)
    (slow,) = due("ann", 1, jobs.fail)
    TenantJob.objects.filter(pk=slow.pk).update(rq_queue="imports_slow")
    steps.promote(Report(), Contact())
    assert (in_rq("imports"), in_rq("imports_slow")) == (1, 1)
