"""However long each row of a transaction takes, jobs of many tenants are not locked for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tenant_slots.enqueueing import on_busy
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import JobDependency, State, TenantJob
from tenant_slots.repair import asking, pace, pruning, steps, waits
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.pace import Pace
from tenant_slots.repair.report import Report
from tests.factories import many_waiting, tenant_queue, waiting_job

ALL = range(1000)


class Clock:
    """Time passes only where a row is changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (pace, steps):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def sizes(one: Pace, clock: Clock, seconds_of_one: float, until: float) -> list[int]:
    """Of the transactions that are begun before that time."""
    found: list[int] = []
    for part in one.parts(ALL, steps.ROWS_PER_STEP):
        with one.noting(part):
            clock.now += len(part) * seconds_of_one
        found.append(len(part))
        if clock.now > until:
            break
    return found


def test_where_each_takes_no_time_there_are_soon_as_many_as_there_may_be(clock: Clock) -> None:
    one = Pace()
    assert len(sizes(one, clock, 0.0001, until=1)) == 6
    assert sizes(one, clock, 0.0001, until=2)[0] > 900


@pytest.mark.parametrize("seconds_of_one", [0.001, 0.01, 0.15])
def test_where_each_takes_long_all_together_take_a_third_of_a_second(clock: Clock, seconds_of_one: float) -> None:
    one = Pace()
    first, *others = sizes(one, clock, seconds_of_one, until=4)
    assert first == pace.FIRST
    assert max(others) * seconds_of_one <= pace.SECONDS_TOGETHER


def test_a_trigger_of_a_millisecond_keeps_no_due_job_from_being_promoted_in_the_time_for_that(clock: Clock) -> None:
    assert sum(sizes(Pace(), clock, 0.001, until=steps.SECONDS_TO_PROMOTE)) == len(ALL)


def test_they_grow_again_when_it_goes_faster(clock: Clock) -> None:
    one = Pace()
    sizes(one, clock, 0.15, until=4)
    assert max(sizes(one, clock, 0.0001, until=8)) > 400


def test_one_in_the_midst_of_which_the_time_of_the_sweep_is_over_is_followed_by_smaller_ones(clock: Clock) -> None:
    one = Pace()

    def take_too_long() -> None:
        with one.noting(range(16)):
            clock.now += 8
            raise SweepTimeout

    with pytest.raises(SweepTimeout):
        take_too_long()
    assert next(iter(one.parts(ALL, steps.ROWS_PER_STEP))) == range(1)


def promoted_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    monkeypatch.setattr(steps._Promoted, "add", lambda self, pks: seen.append(len(pks)) or len(pks))
    return seen


def moved_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    monkeypatch.setattr(steps, "_move_to_own_queue", lambda pks: seen.append(len(pks)) or len(pks))
    return seen


def set_right_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    seen: list[int] = []
    monkeypatch.setattr(steps, "_set_right", lambda pks: seen.append(len(pks)) or len(pks))
    return seen


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("step", "watch", "wrong"),
    [
        (steps.promote, promoted_together, {"state": State.SCHEDULED, "run_after": "2020-01-01T00:00Z"}),
        (steps.offer, moved_together, {"rq_queue": "given up"}),
        (steps.set_times_right, set_right_together, {"state": State.FINISHED, "ended_at": None}),
    ],
)
def test_a_sweep_goes_on_with_as_many_as_fitted_the_last_time(
    step: Callable[[Report, Contact], None],
    watch: Callable[[pytest.MonkeyPatch], Sequence[int]],
    wrong: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, contact = watch(monkeypatch), Contact()
    many_waiting(tenant_queue(max_job=0), 40)
    TenantJob.objects.update(**wrong)
    monkeypatch.setattr(pace, "SECONDS_TOGETHER", 3600)
    contact.pace._rows = 7
    step(Report(), contact)
    assert seen == [7, 14, 19]


def are_told_of_an_end() -> None:
    ended = waiting_job(tenant_queue("other"), state=State.FINISHED)
    jobs = TenantJob.objects.exclude(pk=ended.pk)
    jobs.update(state=State.SCHEDULED)
    JobDependency.objects.bulk_create(JobDependency(job=job, after=ended) for job in jobs)


def become(**values: Any) -> Callable[[], object]:
    return lambda: TenantJob.objects.update(**values)


LONG_AGO = "2020-01-01T00:00Z"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("step", "module", "have_them"),
    [
        pytest.param(waits.end_waits, waits, become(expires_at=LONG_AGO), id="expired"),
        pytest.param(waits.end_waits, waits, are_told_of_an_end, id="told of an end"),
        pytest.param(waits.promote_forgotten, waits, become(state=State.SCHEDULED), id="forgotten"),
        pytest.param(pruning.prune, pruning, become(state=State.FINISHED, ended_at=LONG_AGO), id="pruned"),
        pytest.param(asking.ask, asking, become(asks=True), id="asked"),
    ],
)
def test_so_it_does_with_those_of_one_tenant_and_with_what_is_old(
    step: Callable[[Report, Contact], None],
    module: ModuleType,
    have_them: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, contact = [], Contact()
    name = "in_halves" if module is pruning else "jobs_together"
    together = getattr(module, name)

    def watched(rows: Sequence[object], *how: Any) -> int:
        seen.append(len(rows))
        return int(together(rows, *how))

    monkeypatch.setattr(module, name, watched)
    monkeypatch.setattr(on_busy, "_on_busy", lambda job: "discard")
    many_waiting(tenant_queue(max_job=0), 40)
    have_them()
    monkeypatch.setattr(pace, "SECONDS_TOGETHER", 3600)
    contact.pace._rows = 7
    step(Report(), contact)
    assert [rows for rows in seen if rows] == [7, 14, 19]
