"""Hypothesis walks through enqueue, admit, start, finish, crash, sweep and what people do, on the real tables."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import booleans, data, integers, sampled_from

from tenant_slots import locks, slots, statements, transitions
from tenant_slots.models import HOLDING, State, TenantJob, TenantQueue
from tenant_slots.owners import Owner
from tenant_slots.releases import Release
from tenant_slots.repair import lost_runs, sweeper
from tests import jobs
from tests.factories import admit, another_process, dead_process, pretend_idle

pytestmark = pytest.mark.django_db(transaction=True)

TENANTS = ("a", "b")


class Slots(RuleBasedStateMachine):
    """What was started is held here as a process would hold it: the row as of its start, which may be stale by now."""

    def __init__(self) -> None:
        super().__init__()
        TenantJob.objects.all().delete()
        TenantQueue.objects.all().delete()
        django_rq.get_connection("reports").flushdb()
        pretend_idle(1000)
        self.processes: list[TenantJob] = []
        self.stale: list[TenantJob] = []
        self.released: set[tuple[int, int]] = set()

    @initialize()
    def tenants_begin_with_a_limit_of_one(self) -> None:
        for tenant in TENANTS:
            TenantQueue.objects.create(tenant=tenant, queue="reports", max_job=1)

    @rule(tenant=sampled_from(TENANTS), priority=integers(-1, 1))
    def enqueue(self, tenant: str, priority: int) -> None:
        jobs.add.using(priority=priority).enqueue(1, 2, tenant=tenant)

    @rule(tenant=sampled_from(TENANTS))
    def admit(self, tenant: str) -> None:
        row = TenantQueue.objects.get(tenant=tenant)
        expected = list(row.jobs.backlog().values_list("pk", flat=True)[: row.free])
        assert [job.pk for job in admit(row)] == expected, "I5"

    @rule(choice=data(), dies=booleans())
    @precondition(lambda self: TenantJob.objects.queued().exists())
    def start(self, choice: Any, dies: bool) -> None:
        job = choice.draw(sampled_from(list(TenantJob.objects.queued().order_by("pk"))))
        by: Owner = dead_process() if dies else another_process()
        started = slots.start(job, by)
        assert started == self._would_be_admitted(job)
        assert not slots.start(job, by), "a job starts once"
        if not started:
            assert transitions.put_back(job), "it goes back to its place in the backlog"
            return
        job.refresh_from_db()
        (self.stale if dies else self.processes).append(job)

    def _would_be_admitted(self, job: TenantJob) -> bool:
        row = job.tenant_queue
        more_urgent = row.jobs.waiting().filter(priority__gt=job.priority)
        return not row.paused and row.current_job <= row.max_job and not more_urgent.exists()

    @rule(choice=data(), state=sampled_from([State.FINISHED, State.FAILED, State.WAITING]))
    @precondition(lambda self: self.processes)
    def finish(self, choice: Any, state: State) -> None:
        job = choice.draw(sampled_from(self.processes))
        self.processes.remove(job)
        self.stale.append(job)
        self._release(job, state)

    @rule(choice=data())
    @precondition(lambda self: self.stale)
    def a_stale_process_finishes(self, choice: Any) -> None:
        self._release(choice.draw(sampled_from(self.stale)), State.FINISHED)

    def _release(self, job: TenantJob, state: State) -> None:
        held = TenantJob.objects.held_as(job).exists()
        released = transitions.release(job, state=state)
        assert bool(released) == held, "I4: only the owner releases"
        if released:
            assert (job.pk, job.attempt) not in self.released, "a slot is released once"
            self.released.add((job.pk, job.attempt))

    @rule(choice=data())
    @precondition(lambda self: self.processes)
    def a_process_dies(self, choice: Any) -> None:
        job = choice.draw(sampled_from(self.processes))
        self.processes.remove(job)
        self.stale.append(job)
        lost_runs.end_lost_run(job, "it died")

    @rule()
    def sweep(self) -> None:
        sweeper.run_now("model")
        dead = TenantJob.objects.running().filter(worker="dead")
        assert not dead.exists(), "I2"

    @rule(tenant=sampled_from(TENANTS), limit=integers(0, 3))
    def set_limit(self, tenant: str, limit: int) -> None:
        TenantQueue.objects.get(tenant=tenant).set_limit(limit)

    @rule(tenant=sampled_from(TENANTS))
    def pause(self, tenant: str) -> None:
        TenantQueue.objects.get(tenant=tenant).pause()

    @rule(tenant=sampled_from(TENANTS))
    def resume(self, tenant: str) -> None:
        TenantQueue.objects.get(tenant=tenant).resume()

    @rule(choice=data())
    @precondition(lambda self: TenantJob.objects.not_started().exists())
    def cancel(self, choice: Any) -> None:
        job = choice.draw(sampled_from(list(TenantJob.objects.not_started().order_by("pk"))))
        assert job.cancel()
        assert job.state == State.CANCELED

    @rule(choice=data())
    @precondition(lambda self: TenantJob.objects.filter(state__in=["failed", "canceled"]).exists())
    def retry(self, choice: Any) -> None:
        ended = TenantJob.objects.filter(state__in=["failed", "canceled"]).order_by("pk")
        choice.draw(sampled_from(list(ended))).retry()

    @invariant()
    def i6_counters_match(self) -> None:
        for row in TenantQueue.objects.all():
            assert row.current_job == row.jobs.filter(state__in=HOLDING).count()

    @invariant()
    def i7_no_job_waits_beside_a_free_slot_while_workers_are_idle(self) -> None:
        assert not any(row.free and row.jobs.waiting().exists() for row in TenantQueue.objects.all())

    @invariant()
    def i1_nobody_is_admitted_beyond_the_limit(self) -> None:
        """A lowered limit stops nothing, so what counts is the limit at the time of the last admission."""
        for row in TenantQueue.objects.all():
            before = getattr(self, "_before", {}).get(row.pk, 0)
            assert row.current_job <= max(row.max_job, before)
        self._before = dict(TenantQueue.objects.values_list("pk", "current_job"))


WALKS = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def test_i1_to_i7_hold_on_the_way_through_random_operations() -> None:
    run_state_machine_as_test(Slots, settings=WALKS)


def test_control_a_release_that_does_not_ask_who_owns_the_slot_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(job: TenantJob, states: Any = None, **changes: Any) -> Release:
        with locks.locked(job.tenant_queue_id) as row:
            TenantJob.objects.filter(pk=job.pk).update(**changes)
            statements.GIVE_BACK.update(pk=row.pk, slots=1)
            return Release(State(changes["state"]))

    monkeypatch.setattr(slots, "release", release)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Slots, settings=settings(WALKS, phases=[Phase.generate]))
