"""A job that raises `TenantBusy` goes back to its place, and its tenant queue rests; others go on."""

from __future__ import annotations

import copy
import logging
import os
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.utils import timezone
from rq.job import JobStatus
from rq.worker import BaseWorker

from tenant_slots import TenantBusy, hold_slot, rests, signals, tenant_job
from tenant_slots.exceptions import InvalidOption, InvalidTime
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running import busy
from tenant_slots.tasks.tenant_busy import rest_of, seconds_left
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests import jobs
from tests.factories import (
    burst,
    counters_match,
    end_run,
    fresh,
    in_rq,
    owner,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.processes import last_rq_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def history(tmp_path: Path) -> str:
    return str(tmp_path / "history")


def lines(history: str) -> list[str]:
    return [line.split(maxsplit=2)[2] for line in Path(history).read_text().splitlines()]


def end_of(row: TenantQueue) -> float:
    """Seconds until the rest is over."""
    return rests.seconds_left(fresh(row))


def test_the_job_goes_back_to_its_place_and_no_other_of_its_tenant_starts(history: str) -> None:
    row = tenant_queue(max_job=1)
    job = jobs.ask_partner.enqueue("acme", history)
    after, other = waiting_job(row), waiting_job(tenant_queue("other"))
    work()
    assert (fresh(job).state, job.failures, job.crashes, job.interruptions) == (State.WAITING, 0, 0, 0)
    assert job.progress == {"done": 1, "total": None}
    assert [fresh(after).state, fresh(other).state] == [State.WAITING, State.WAITING]
    assert list(row.jobs.backlog()) == [job, after]
    assert lines(history) == ["busy acme"]
    assert 3500 < end_of(row) <= 3600
    assert row.rest_reason == "HTTP 429"
    assert counters_match()


def test_others_go_on(history: str) -> None:
    busy, other = jobs.ask_partner.enqueue("acme", history), jobs.add.enqueue(1, 2, tenant="other")
    work()
    assert (fresh(busy).state, fresh(other).state) == (State.WAITING, State.FINISHED)


def test_rq_has_no_failure_of_it(history: str) -> None:
    job = jobs.ask_partner.enqueue("acme", history)
    work()
    queue = django_rq.get_queue("imports")
    assert queue.failed_job_registry.count == 0
    attempt = queue.fetch_job(last_rq_id(job))
    assert attempt is not None
    assert attempt.get_status() == JobStatus.FINISHED
    assert (in_rq(), queue.started_job_registry.count) == (0, 0)


def test_a_job_that_fails_otherwise_is_a_failure_and_nobody_rests() -> None:
    row = tenant_queue()
    job = jobs.fail.enqueue("acme")
    work()
    assert fresh(job).state == State.FAILED
    assert fresh(row).rests_until is None


def test_it_is_told_with_the_reason(history: str) -> None:
    told: list[Any] = []

    def receive(*, job: TenantJob, reason: str, **_: Any) -> None:
        told.append((job.pk, job.state, reason))

    signals.job_put_back.connect(receive)
    try:
        job = jobs.ask_partner.enqueue("acme", history)
        work()
    finally:
        signals.job_put_back.disconnect(receive)
    assert told == [(job.pk, State.WAITING, "the job said that its tenant is busy: HTTP 429")]
    assert fresh(job).error == told[0][2]


def test_after_the_rest_the_job_runs_again(history: str, tmp_path: Path) -> None:
    door = tmp_path / "door"
    job = jobs.ask_partner.enqueue("acme", history, str(door))
    work()
    door.touch()
    TenantQueue.objects.update(rests_until=timezone.now() - timedelta(seconds=1))
    TenantQueue.objects.get().admit_waiting()
    work()
    assert (fresh(job).state, job.attempt, job.failures) == (State.FINISHED, 2, 0)
    row = TenantQueue.objects.get()
    assert (row.rests_until, row.rest_reason) == (None, ""), "each admission would ask the clock"


DAY = 24 * 3600


@pytest.mark.parametrize(("seconds", "rest"), [(0, 1), (-0.3, 1), (0.2, 1), (2 * DAY, DAY), (10**400, DAY), (DAY, DAY)])
def test_a_partner_may_name_any_number_of_seconds(history: str, seconds: float, rest: float) -> None:
    """As in ``Retry-After``. None at all would have the job run again at once, and again."""
    job = jobs.ask_partner.enqueue("acme", history, seconds=seconds)
    work()
    assert (fresh(job).state, job.failures, lines(history)) == (State.WAITING, 0, ["busy acme"])
    until = fresh(job.tenant_queue).rests_until
    assert rest - 0.1 <= (until - job.started_at).total_seconds() <= rest + 20


class PartnerBusy(TenantBusy):
    """As a project has one for each of its partners, which sets what it has read in an answer."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__("HTTP 429", seconds=30)
        vars(self).update(given)


class UnmadeBusy(TenantBusy):
    def __init__(self) -> None:
        """Without a call of the constructor."""


class MoodyBusy(TenantBusy):
    asked = 0

    @property
    def reason(self) -> str:
        self.asked += 1
        if self.asked > 1:
            raise ValueError("asked again")
        return "HTTP 429"

    @reason.setter
    def reason(self, value: str) -> None:
        """It has its own."""


class Whatever(int):
    """A number that computes as it likes."""

    def __float__(self) -> float:
        return float("inf")

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __lt__


IMPOSSIBLE: dict[str, tuple[Callable[[], TenantBusy], str]] = {
    "a text": (lambda: PartnerBusy({"seconds": "30"}), "InvalidOption"),
    "no number": (lambda: PartnerBusy({"seconds": float("nan")}), "InvalidOption"),
    "no reason": (lambda: PartnerBusy({"reason": None}), "InvalidOption"),
    "both": (lambda: PartnerBusy({"until": timezone.now()}), "InvalidOption"),
    "a naive time": (lambda: PartnerBusy({"seconds": None, "until": datetime(2030, 1, 1)}), "InvalidTime"),
    "a time as text": (lambda: PartnerBusy({"seconds": None, "until": "2030-01-01T00:00:00Z"}), "InvalidTime"),
    "nothing": (UnmadeBusy, "AttributeError"),
    "another answer each time": (lambda: MoodyBusy(seconds=30), "MoodyBusy"),
}


@tenant_job("imports", tenant="tenant")
def be_impossible(tenant: str, kind: str) -> None:
    raise IMPOSSIBLE[kind][0]()


@tenant_job("imports", tenant="tenant")
def rest_for_very_long(tenant: str) -> None:
    raise PartnerBusy({"seconds": 10**400})


def test_a_plain_rq_job_waits_too_where_more_was_set_than_is_possible() -> None:
    plain = django_rq.get_queue("imports").enqueue(rest_for_very_long, "acme")
    work()
    assert TenantJob.objects.get().state == State.WAITING
    assert not plain.is_failed
    assert DAY - 60 < end_of(TenantQueue.objects.get()) <= DAY


@tenant_job("imports", tenant="tenant")
async def be_impossible_later(tenant: str, kind: str) -> None:
    raise IMPOSSIBLE[kind][0]()


@pytest.mark.parametrize("task", [be_impossible, be_impossible_later])
@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_what_cannot_be_told_a_tenant_queue_fails_the_job_and_ends_no_worker(kind: str, task: Any) -> None:
    job, other = task.enqueue("acme", kind), jobs.add.enqueue(1, 2, tenant="other")
    work()
    assert (fresh(job).state, fresh(other).state) == (State.FAILED, State.FINISHED)
    assert job.error_class.endswith(IMPOSSIBLE[kind][1]), job.error
    assert fresh(job.tenant_queue).rests_until is None
    assert counters_match()


@pytest.mark.parametrize("worker_class", [TenantWorker, TenantPreforkWorker, TenantSimpleWorker])
@pytest.mark.parametrize("kind", ["a text", "no reason", "nothing"])
def test_nor_one_of_ours_which_records_what_came_of_the_job(kind: str, worker_class: type[BaseWorker]) -> None:
    job, other = be_impossible.enqueue("acme", kind), jobs.add.using(queue="imports").enqueue(1, 2, tenant="other")
    burst(worker_class)
    assert (fresh(job).state, job.interruptions, fresh(other).state) == (State.FAILED, 0, State.FINISHED)
    assert counters_match()


@pytest.mark.parametrize("worker_class", [TenantWorker, TenantPreforkWorker, TenantSimpleWorker])
def test_should_such_a_one_get_through_the_job_fails_and_its_worker_goes_on(
    worker_class: type[BaseWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "rest_of", lambda error: {"reason": "HTTP 429", "seconds": "30", "until": None})
    row = tenant_queue("busy")
    job, other = (
        jobs.ask_partner.enqueue("busy", os.devnull),
        jobs.add.using(queue="imports").enqueue(1, 2, tenant="other"),
    )
    burst(worker_class)
    assert (fresh(job).state, job.interruptions, fresh(other).state) == (State.FAILED, 0, State.FINISHED)
    assert "cannot go back" in job.error
    assert fresh(row).rests_until is None
    assert counters_match()


@pytest.mark.parametrize("kind", ["a text", "nothing"])
def test_so_it_does_that_of_plain_rq(kind: str) -> None:
    plain = django_rq.get_queue("imports").enqueue(be_impossible, "acme", kind)
    work()
    assert plain.get_status() == JobStatus.FAILED
    assert TenantJob.objects.get().state == State.FAILED
    assert counters_match()


@pytest.mark.parametrize(
    "given", [{"seconds": 10**400}, {"seconds": Whatever(10**400)}, {"seconds": -5}, {"reason": "x" * 10_000}]
)
def test_what_was_set_later_is_bounded_as_what_was_given(given: dict[str, Any]) -> None:
    assert rest_of(PartnerBusy(given))["seconds"] in (1, 30, DAY)
    outcome = busy.put_back(PartnerBusy(given))
    assert outcome is not None
    rests.begin(tenant_queue(), **outcome["rest"])


@pytest.mark.parametrize(("seconds", "rest"), [(-3600, 1), (-1e9, 1), (2 * DAY, DAY), (1e9, DAY)])
def test_and_any_time(seconds: float, rest: float) -> None:
    until = timezone.now() + timedelta(seconds=seconds)
    job = jobs.ask_partner_slowly.enqueue("acme", until.isoformat())
    work()
    assert (fresh(job).state, job.failures) == (State.WAITING, 0)
    until = fresh(job.tenant_queue).rests_until
    assert rest - 0.1 <= (until - job.started_at).total_seconds() <= rest + 20


def test_what_was_shortened_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tenant_slots"):
        assert TenantBusy(seconds=30).seconds == 30
        assert not caplog.messages
        TenantBusy(seconds=2 * DAY)
        rests.begin(tenant_queue(), "HTTP 429", until=(timezone.now() + timedelta(days=9)).isoformat())
    assert [text.startswith("a rest lasts") for text in caplog.messages] == [True, True]


def test_a_coroutine_and_a_time(history: str) -> None:
    until = timezone.now() + timedelta(hours=2)
    job = jobs.ask_partner_slowly.enqueue("acme", until.isoformat())
    work()
    row = TenantQueue.objects.get()
    assert (fresh(job).state, row.rests_until, row.rest_reason) == (State.WAITING, until, "slow down")


def test_a_later_one_prolongs_the_rest_and_never_shortens_it() -> None:
    row = tenant_queue(max_job=3)
    running = [running_job(row, owner()) for _ in range(3)]
    for job, seconds, reason in zip(running, (60, 600, 30), ("first", "second", "third"), strict=True):
        end_run(job, **busy.put_back(TenantBusy(reason, seconds=seconds)) or {})
    assert 500 < end_of(row) <= 600
    assert row.rest_reason == "second"
    assert counters_match()


def test_a_moment_too_far_ahead_for_a_rest_is_none() -> None:
    """The clock was set back since."""
    row = tenant_queue(max_job=2, rests_until=timezone.now() + timedelta(days=2))
    job = running_job(row, owner())
    end_run(job, **busy.put_back(TenantBusy("now", seconds=60)) or {})
    assert 0 < end_of(row) <= 60
    assert row.rest_reason == "now"


def test_a_job_that_is_to_be_canceled_is_canceled_and_its_tenant_queue_rests(history: str) -> None:
    job = jobs.ask_partner.enqueue("acme", history)
    TenantJob.objects.update(cancel_requested_at=timezone.now())
    work()
    assert fresh(job).state == State.CANCELED
    assert end_of(job.tenant_queue) > 0


def test_a_job_that_waits_in_rq_is_put_back_when_the_rest_begins() -> None:
    row = tenant_queue(max_job=2)
    job = jobs.add.using(tenant="acme", queue="imports").enqueue(1, 2)
    assert (fresh(job).state, in_rq()) == (State.QUEUED, 1)
    TenantQueue.objects.filter(pk=row.pk).update(rests_until=timezone.now() + timedelta(hours=1))
    work()
    assert (fresh(job).state, job.attempt) == (State.WAITING, 1)
    assert counters_match()


def test_inside_a_block_that_holds_a_slot_it_is_an_error_like_any_other() -> None:
    job = jobs.ask_partner_holding_a_slot.enqueue("acme")
    work()
    held = TenantJob.objects.get(tenant_queue__tenant="other")
    assert (held.state, held.tenant_queue.rests_until) == (State.FAILED, None)
    assert (fresh(job).state, end_of(job.tenant_queue) > 0) == (State.WAITING, True), "it is the job that raised it"
    with pytest.raises(TenantBusy), hold_slot("third", "imports"):
        raise TenantBusy("HTTP 429", seconds=60)
    assert TenantQueue.objects.get(tenant="third").rests_until is None


def test_a_plain_rq_job_comes_back_when_the_rest_is_over(history: str) -> None:
    rq_job = django_rq.get_queue("imports").enqueue(jobs.ask_partner, "acme", history)
    work()
    job = TenantJob.objects.get()
    assert (job.state, job.failures, lines(history)) == (State.WAITING, 0, ["busy acme"])
    assert 3500 < end_of(job.tenant_queue) <= 3600
    registry = django_rq.get_queue("imports").scheduled_job_registry
    assert rq_job.get_status() == JobStatus.SCHEDULED
    in_seconds = registry.get_scheduled_time(rq_job.id) - datetime.now(UTC)
    assert timedelta(seconds=3500) < in_seconds <= timedelta(seconds=3601)
    assert django_rq.get_queue("imports").failed_job_registry.count == 0
    rq_job.refresh()
    assert not rq_job.number_of_retries


def test_a_plain_rq_job_is_brought_forward_when_the_rest_ends_early(history: str, tmp_path: Path) -> None:
    door = tmp_path / "door"
    django_rq.get_queue("imports").enqueue(jobs.ask_partner, "acme", history, str(door))
    work()
    door.touch()
    TenantQueue.objects.get().end_rest()
    work()
    assert TenantJob.objects.get().state == State.FINISHED
    assert lines(history) == ["busy acme", "answered acme"]


def test_a_plain_rq_job_without_a_tenant_comes_back_too(history: str) -> None:
    rq_job = django_rq.get_queue("imports").enqueue(jobs.ask_partner, None, history)
    work()
    assert rq_job.get_status() == JobStatus.SCHEDULED
    assert not TenantQueue.objects.exists()


@pytest.mark.parametrize(
    "values",
    [{}, {"seconds": True}, {"seconds": float("nan")}, {"seconds": float("inf")}, {"seconds": "30"},
     {"seconds": 1, "until": datetime(2030, 1, 1, tzinfo=UTC)}, {"reason": 429, "seconds": 1}],
)  # fmt: skip
def test_a_wrong_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="TenantBusy"):
        TenantBusy(**values)


def test_one_without_an_end_is_told_how_to_give_it() -> None:
    with pytest.raises(InvalidOption, match="give seconds= or until="):
        TenantBusy("full")


@pytest.mark.parametrize("until", ["soon", datetime(2020, 1, 1), datetime.min.replace(tzinfo=UTC)])
def test_a_wrong_time_is_refused(until: Any) -> None:
    with pytest.raises(InvalidTime):
        TenantBusy(until=until)


@pytest.mark.parametrize("hours", [-26, 26, pytest.param(0, id="control")])
def test_a_rest_lasts_until_the_time_that_was_given_whatever_the_clock_of_the_workers_host_says(
    hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    until, now = timezone.now() + timedelta(hours=2), timezone.now
    job = jobs.ask_partner_slowly.enqueue("acme", until.isoformat())
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(hours=hours))
    work()
    assert fresh(job.tenant_queue).rests_until == until


def test_nobody_waits_for_longer_than_a_day_for_a_time_that_is_far_ahead_by_this_hosts_clock() -> None:
    assert seconds_left(TenantBusy(until=timezone.now() + timedelta(days=2))) == DAY


def test_a_time_that_has_passed_leaves_no_seconds() -> None:
    assert seconds_left(TenantBusy(until=timezone.now() - timedelta(hours=1))) == 0


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_it_can_be_pickled_and_copied(again: Any) -> None:
    error = TenantBusy("HTTP 429", seconds=30)
    other = again(error)
    assert (type(other), str(other), other.reason, other.seconds, other.until) == (
        TenantBusy, "HTTP 429", "HTTP 429", 30, None,
    )  # fmt: skip
