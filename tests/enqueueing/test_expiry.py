"""``expires=``: a job that has not begun in time is canceled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import django_rq
import pytest
from django.db import IntegrityError, connection, transaction
from django.test import TestCase
from django.utils import timezone

from tenant_slots import dispatch, news, slots, tenant_job, transitions
from tenant_slots.enqueueing import expiry
from tenant_slots.exceptions import InvalidOption
from tenant_slots.models import EXPIRED, State, TenantJob
from tenant_slots.running.recording import NOT_BEGUN
from tenant_slots.testing import run_jobs
from tenant_slots.workers import TenantSimpleWorker
from tenant_slots.workers.kept import Ending, settle
from tests import jobs
from tests.factories import (
    admit,
    age,
    another_process,
    counters_match,
    end_run,
    fresh,
    in_rq,
    owner,
    running_job,
    tenant_queue,
    work,
)
from tests.history import History
from tests.plans import explained
from tests.processes import Workers
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)


@tenant_job("imports", tenant="tenant", expires=HOUR)
def expiring(tenant: str) -> str:
    return "ran"


@tenant_job("imports", tenant="tenant", expires=HOUR, unique_for=2 * HOUR)
def expiring_once(tenant: str) -> str:
    return "ran"


@pytest.fixture
def full() -> None:
    """Acme's only slot is taken."""
    running_job(tenant_queue(), owner())


def work_ours() -> None:
    queue = django_rq.get_queue("imports")
    TenantSimpleWorker([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")


def in_between(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, action: Callable[[], object]) -> None:
    """Once, before this function is called: its caller has made up his mind already."""
    function = getattr(module, name)

    def after_action(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(module, name, function)
        action()
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, after_action)


def states(*some: TenantJob) -> list[str]:
    return [fresh(job).state for job in some]


def test_a_job_that_waits_for_too_long_is_canceled_by_a_sweep_with_the_reason(full: None) -> None:
    expired, patient = expiring.enqueue("acme"), jobs.echo.enqueue("acme", 1)
    in_time = expiring.enqueue("acme")
    dependent = jobs.echo.using(after=[expired]).enqueue("acme", 1)
    assert timedelta(minutes=59) < expired.expires_at - timezone.now() <= HOUR
    age(expired, expires_at=1)
    assert sweep_now().canceled == 1
    assert states(expired, patient, in_time, dependent) == ["canceled", "waiting", "waiting", "canceled"]
    assert (expired.error, expired.attempt) == (EXPIRED, 0)
    assert expired.ended_at
    assert counters_match()


def test_a_job_that_is_scheduled_expires_too() -> None:
    awaited = running_job(tenant_queue(), owner())
    later = expiring.using(run_after=timezone.now() + HOUR / 2).enqueue("acme")
    after = expiring.using(after=[awaited]).enqueue("acme")
    TenantJob.objects.filter(pk__in=[later.pk, after.pk]).update(expires_at=timezone.now())
    sweep_now()
    assert states(later, after) == ["canceled", "canceled"]
    end_run(awaited, state=State.FINISHED)
    assert states(after) == ["canceled"]


@pytest.mark.parametrize("way", [work, work_ours])
def test_a_job_that_has_begun_does_not_expire(way: Any) -> None:
    running, again = fresh(expiring.enqueue("acme")), fresh(expiring.enqueue("beta"))
    assert slots.start(running, another_process())
    assert slots.start(again, another_process())
    assert transitions.release(again, state=State.WAITING, failures=1)
    TenantJob.objects.update(expires_at=timezone.now() - HOUR)
    assert not sweep_now().canceled
    assert states(running) == ["running"]
    way()
    assert states(again) == ["finished"]


def test_a_worker_that_comes_to_it_before_a_sweep_does_not_run_it(history: History) -> None:
    job = jobs.record.using(expires=HOUR).enqueue("acme", "late", history.path)
    age(job, expires_at=1)
    work()
    assert (states(job), job.error, job.attempt) == (["canceled"], EXPIRED, 1)
    assert history.started() == []
    assert counters_match()


@pytest.mark.parametrize("way", [work, work_ours])
def test_one_that_had_a_slot_and_was_put_back_has_not_begun(way: Any) -> None:
    tenant_queue()
    job = fresh(expiring.enqueue("acme"))
    assert transitions.put_back(job)
    age(job, expires_at=1)
    way()
    assert (states(job), job.error) == (["canceled"], EXPIRED)
    assert counters_match()


def taken_by_a_worker_that_does_not_know_it(job: TenantJob) -> None:
    TenantJob.objects.filter(pk=job.pk).update(task="tests.jobs.of_the_next_release")
    work()
    TenantJob.objects.filter(pk=job.pk).update(task=job.task)
    age(job, run_after=1)
    assert sweep_now().promoted == 1


def taken_by_a_worker_that_cannot_fork(job: TenantJob) -> None:
    taken = fresh(job)
    assert slots.start(taken, owner())
    end_run(taken, **NOT_BEGUN)


def taken_by_a_worker_whose_commit_had_no_answer(job: TenantJob) -> None:
    """As it is kept: by the primary key and the token of the run, the rest is read from the row."""
    by = owner()
    assert slots.start(fresh(job), by)
    assert list(settle([Ending((job.pk, by.token), NOT_BEGUN)]))


@pytest.mark.parametrize("way", [sweep_now, work, work_ours])
@pytest.mark.parametrize(
    "take",
    [
        taken_by_a_worker_that_does_not_know_it,
        taken_by_a_worker_that_cannot_fork,
        taken_by_a_worker_whose_commit_had_no_answer,
    ],
)
def test_nor_has_one_that_a_worker_took_without_calling_its_function(take: Any, way: Any) -> None:
    tenant_queue()
    job = expiring.enqueue("acme")
    take(job)
    assert states(job) != ["running"], "the control: it was put back"
    age(job, expires_at=1)
    way()
    assert (states(job), job.error) == (["canceled"], EXPIRED)
    assert counters_match()


def test_one_that_has_run_before_it_was_taken_so_has_begun() -> None:
    job = fresh(expiring.enqueue("acme"))
    assert slots.start(job, owner())
    end_run(job, state=State.WAITING, failures=1)
    admit(job.tenant_queue)
    taken_by_a_worker_that_cannot_fork(job)
    TenantJob.objects.filter(pk=job.pk).update(expires_at=timezone.now() - HOUR)
    assert not sweep_now().canceled


@pytest.mark.parametrize("kind", ["Worker", "PreforkWorker", "SimpleWorker"])
def test_nor_do_workers_of_ours(workers: Workers, history: History, kind: str) -> None:
    row = tenant_queue(paused=True)
    late, in_time = (jobs.record.using(expires=HOUR).enqueue("acme", name, history.path) for name in ("late", "soon"))
    age(late, expires_at=1)
    row.resume()
    workers.run("--burst", worker_class=f"tenant_slots.workers.Tenant{kind}")
    assert states(late, in_time) == ["canceled", "finished"]
    assert late.error == EXPIRED
    assert history.started() == ["soon"]


def test_one_that_was_admitted_for_a_worker_which_does_not_come_is_canceled_by_a_sweep() -> None:
    job, patient = expiring.enqueue("acme"), jobs.echo.enqueue("acme", 1)
    late, dependent = expiring.enqueue("acme"), jobs.echo.using(after=[job]).enqueue("beta", 1)
    age(job, expires_at=1)
    age(late, expires_at=1)
    assert states(job, patient, late) == ["queued", "waiting", "waiting"]
    assert sweep_now().canceled == 2
    assert states(job, patient, late, dependent) == ["canceled", "queued", "canceled", "canceled"]
    assert (job.error, job.attempt) == (EXPIRED, 1)
    assert django_rq.get_queue("imports").job_ids == [patient.rq_id], "a worker that comes now finds the next one only"
    assert counters_match()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a plan of PostgreSQL")
def test_a_sweep_looks_for_it_among_the_jobs_with_a_slot_alone() -> None:
    plan = explained(TenantJob.objects.expired_with_slot())
    assert "tenant_slots_holding" in plan


def test_it_costs_its_tenant_no_start_of_its_rate() -> None:
    row = tenant_queue(rate_number=1, rate_per=HOUR, rate_burst=1)
    job, patient = expiring.enqueue("acme"), jobs.echo.enqueue("acme", 1)
    age(job, expires_at=1)
    sweep_now()
    assert (states(job, patient), fresh(row).current_job) == (["canceled", "queued"], 1)


@pytest.mark.parametrize("first", ["the worker", "the sweep"])
def test_a_worker_that_takes_it_at_that_moment_and_the_sweep_cancel_it_once(
    first: str, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has seen it `queued` before the other one goes on."""
    job = jobs.record.using(expires=HOUR).enqueue("acme", "late", history.path)
    age(job, expires_at=1)
    ended: list[str] = []
    monkeypatch.setattr(news, "send", lambda name, **about: ended.append(name) if name == "job_ended" else None)
    by_sweep: list[int] = []
    if first == "the worker":
        in_between(monkeypatch, transitions, "cancel_unstarted", work)
        by_sweep.append(sweep_now().canceled)
    else:
        in_between(monkeypatch, slots, "start", lambda: by_sweep.append(sweep_now().canceled))
        work()
    assert by_sweep == [int(first == "the sweep")]
    assert (states(job), job.error, history.started()) == (["canceled"], EXPIRED, [])
    assert (ended, in_rq()) == (["job_ended"], 0)
    assert counters_match()


def test_one_that_the_database_refuses_to_cancel_keeps_no_other_of_its_tenant_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tenant_queue(max_job=3)
    some = [expiring.enqueue("acme") for _ in range(3)]
    TenantJob.objects.update(expires_at=timezone.now())
    release = slots.release

    def refuse(job: TenantJob, **changes: Any) -> Any:
        if job.pk == some[1].pk:
            raise IntegrityError("not this one")
        return release(job, **changes)

    monkeypatch.setattr(slots, "release", refuse)
    report = sweep_now()
    assert (states(*some), report.canceled, report.failed) == (["canceled", "queued", "canceled"], 2, [])


def test_one_that_somebody_deletes_as_it_is_canceled_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue(max_job=2)
    some = [expiring.enqueue("acme") for _ in range(2)]
    TenantJob.objects.update(expires_at=timezone.now())
    deleted: list[int] = []

    def delete(job: TenantJob) -> None:
        if not deleted:
            deleted.append(job.pk)
            TenantJob.objects.filter(pk=job.pk).delete()

    monkeypatch.setattr(dispatch, "remove", delete)
    report = sweep_now()
    (kept,) = (job for job in some if job.pk not in deleted)
    assert (states(kept), report.canceled, report.failed) == (["canceled"], 2, [])


def test_one_that_has_begun_since_the_sweep_has_seen_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    job = fresh(expiring.enqueue("acme"))
    age(job, expires_at=1)
    in_between(monkeypatch, transitions, "cancel_unstarted", lambda: slots.start(job, another_process()))
    assert sweep_now().canceled == 0
    assert states(job) == ["running"]
    assert counters_match()


def test_a_retry_of_it_does_not_expire(full: None) -> None:
    job = expiring.enqueue("acme")
    age(job, expires_at=1)
    sweep_now()
    fresh(job).retry()
    assert not sweep_now().canceled
    assert states(job) == ["waiting"]


def test_many_are_canceled_in_chunks(full: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "JOBS_PER_STEP", 10)
    some = expiring.enqueue_many([(("acme",), {})] * 25 + [(("beta",), {})] * 3)
    TenantJob.objects.filter(pk__in=[job.pk for job in some], state=State.WAITING).update(expires_at=timezone.now())
    sweep_now()
    assert not TenantJob.objects.expired().exists()
    assert TenantJob.objects.filter(error=EXPIRED).count() >= 25


def test_a_job_without_it_never_expires() -> None:
    assert jobs.echo.enqueue("acme", 1).expires_at is None
    assert expiring.using(expires=2 * HOUR).enqueue("acme").expires_at > timezone.now() + HOUR


@pytest.mark.parametrize("in_transaction", [False, True])
@pytest.mark.parametrize("state", [State.WAITING, State.SCHEDULED, State.QUEUED])
def test_one_whose_time_is_over_stands_for_no_later_one(state: State, in_transaction: bool) -> None:
    tenant_queue(max_job=0)
    first = expiring_once.enqueue("acme")
    TenantJob.objects.filter(pk=first.pk).update(state=state)
    assert expiring_once.enqueue("acme") == first, "the control: until then it does"
    age(first, expires_at=1)
    with transaction.atomic() if in_transaction else nullcontext():
        later = expiring_once.enqueue("acme")
        assert later != first
        assert expiring_once.enqueue("acme") == later
    sweep_now()
    assert states(first, later) == ["canceled", "waiting"]


def test_one_that_has_begun_in_time_stands_for_later_ones_after_it() -> None:
    first = expiring_once.enqueue("acme")
    admit(first.tenant_queue)
    assert slots.start(fresh(first), owner())
    age(first, expires_at=1)
    assert expiring_once.enqueue("acme") == first


@pytest.mark.parametrize("value", [3600, timedelta(0), -HOUR, timedelta(days=367), "1h"], ids=str)
def test_a_wrong_value_is_refused_at_once(value: Any) -> None:
    with pytest.raises(InvalidOption, match="expires"):
        jobs.echo.using(expires=value)
    with pytest.raises(InvalidOption, match="expires"):
        tenant_job("imports", tenant="tenant", expires=value)(jobs.echo.tenant_task.function)


@pytest.mark.parametrize("after", [False, True])
def test_a_job_that_would_expire_before_its_time_is_refused(after: bool) -> None:
    awaited = [jobs.echo.enqueue("acme", 1)] if after else []
    with pytest.raises(InvalidOption, match="it would expire before it may start: run_after is"):
        expiring.using(run_after=timezone.now() + 2 * HOUR, after=awaited).enqueue("acme")
    assert not TenantJob.objects.scheduled().exists()


def test_a_job_that_expires_after_its_time_waits_for_that() -> None:
    later = expiring.using(run_after=timezone.now() + 2 * HOUR)
    assert later.using(expires=3 * HOUR).enqueue("acme").state == State.SCHEDULED


class InATestCase(TestCase):
    def test_run_jobs_cancels_what_is_expired(self) -> None:
        job, other = expiring.enqueue("acme"), expiring.enqueue("acme")
        age(job, expires_at=1)
        assert [ran.pk for ran in run_jobs()] == [other.pk]
        assert states(job, other) == ["canceled", "finished"]
