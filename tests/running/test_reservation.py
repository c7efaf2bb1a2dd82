"""hold_slot gives one of a tenant's slots to code that is no job."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, connection, connections, transaction
from django.test import override_settings

from tenant_slots import dispatch, hold_slot, owners, queue_directory, report_progress, signals, slots, transitions
from tenant_slots.db.clock import in_seconds
from tenant_slots.exceptions import (
    HoldInTransaction,
    InvalidOption,
    InvalidTenant,
    NoFreeSlot,
    NotRetryable,
    TenantMissing,
    TenantQueueFull,
    UnknownQueue,
)
from tenant_slots.models import HOLD_SLOT, Kind, State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.repair.lost_runs import ByHand
from tenant_slots.running import keeper as module
from tenant_slots.running.keeper import Reservation
from tests import jobs
from tests.factories import (
    admit,
    age,
    another_process,
    counters_match,
    damage_found,
    dead_process,
    end_run,
    fresh,
    in_rq,
    in_thread,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.locks import KEEPS_CHANGES_OUT, kept_out
from tests.plans import explained
from tests.processes import wait_until
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")


class InThread:
    """A reservation in a thread of its own, which ends when the test says so."""

    def __init__(self, tenant: str = "acme", **options: Any) -> None:
        self.error: BaseException | None = None
        self.begun, self.end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._reserve, args=(tenant, options), daemon=True)
        self._thread.start()

    def _reserve(self, tenant: str, options: dict[str, Any]) -> None:
        try:
            with hold_slot(tenant, "imports", **options):
                self.begun.set()
                self.end.wait(30)
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def join(self) -> None:
        self.end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def held(**options: Any) -> Iterator[InThread]:
    one = InThread(**options)
    try:
        yield one
    finally:
        one.join()


def waiting_reservation(row: TenantQueue, by: Any, **values: Any) -> TenantJob:
    job: TenantJob = TenantJob.objects.create(
        tenant_queue=row, kind=Kind.RESERVATION, beat_at=in_seconds(0), **by.as_fields(), **values
    )
    return job


def states() -> list[str]:
    return list(TenantJob.objects.order_by("pk").values_list("state", flat=True))


def test_a_reservation_takes_a_slot_while_its_block_runs_and_gives_it_back() -> None:
    with hold_slot("acme", "imports") as reservation:
        row = TenantQueue.objects.get()
        assert (row.tenant, row.queue, row.current_job) == ("acme", "imports", 1)
        assert (reservation.job.state, reservation.job.task, reservation.is_lost) == (State.RUNNING, HOLD_SLOT, False)
        assert owners.liveness(fresh(reservation.job)) is owners.Liveness.ALIVE
    assert (fresh(reservation.job).state, fresh(row).current_job) == (State.FINISHED, 0)
    assert in_rq() == 0


def test_a_block_that_raises_gives_its_slot_back_and_leaves_the_last_line_of_its_error() -> None:
    with pytest.raises(ValueError, match="no such feed"), hold_slot("acme", "imports") as reservation:
        raise ValueError("no such feed \0")
    assert (fresh(reservation.job).state, reservation.job.error) == (State.FAILED, r"ValueError: no such feed \0")
    assert counters_match()


class OddError(SyntaxError):
    """Of which the lines of a traceback cannot be made, in any version of Python."""

    @property
    def text(self) -> str:  # type: ignore[override]
        raise ZeroDivisionError


def test_a_block_whose_error_cannot_be_formatted_is_recorded_all_the_same() -> None:
    with pytest.raises(OddError, match="odd"), hold_slot("acme", "imports") as reservation:
        raise OddError("odd")
    assert fresh(reservation.job).state == State.FAILED
    assert "tests.running.test_reservation.OddError was raised" in reservation.job.error


def test_without_a_free_slot_it_says_so_at_once_and_leaves_the_backlog() -> None:
    row = tenant_queue()
    running_job(row, another_process())
    message = r"'acme' got no slot on queue 'imports' within 0 s.*wait longer"
    with pytest.raises(NoFreeSlot, match=message) as caught, hold_slot("acme", "imports"):
        pytest.fail("the block must not run")
    assert (caught.value.tenant, caught.value.queue, caught.value.timeout) == ("acme", "imports", 0)  # type: ignore[attr-defined]
    assert states() == ["running", "canceled"]
    assert "no slot became free" in TenantJob.objects.last().error
    assert fresh(row).current_job == 1


def test_it_waits_as_long_as_it_was_told_and_no_longer() -> None:
    running_job(tenant_queue(), another_process())
    began = time.monotonic()
    with pytest.raises(NoFreeSlot), hold_slot("acme", "imports", timeout=0.3):
        pass
    assert 0.3 <= time.monotonic() - began < 5


def test_a_job_that_ends_hands_its_slot_to_the_waiting_reservation_and_that_to_the_next_job() -> None:
    row = tenant_queue()
    job = running_job(row, another_process())
    with held(timeout=30) as one:
        wait_until(lambda: states() == ["running", "waiting"])
        last = jobs.record.enqueue("acme", "last", "/dev/null")
        assert fresh(last).state == State.WAITING
        end_run(job, state=State.FINISHED)
        assert one.begun.wait(10)
        assert states() == ["finished", "running", "waiting"]
    assert one.error is None
    assert (fresh(last).state, in_rq()) == (State.QUEUED, 1)
    assert counters_match()


def test_a_reservation_does_not_overtake_a_waiting_job_nor_a_later_job_the_reservation() -> None:
    row = tenant_queue(max_job=0)
    first = waiting_job(row)
    with held(timeout=30) as one:
        wait_until(lambda: len(states()) == 2)
        waiting_job(row)
        TenantQueue.objects.update(max_job=1)
        transitions.offer(row.pk, "imports")
        assert states() == ["queued", "waiting", "waiting"]
        slots.release(fresh(first), state=State.FINISHED)
        assert one.begun.wait(10)
        assert states() == ["finished", "running", "waiting"]


def test_a_higher_priority_goes_first_and_the_key_is_stored() -> None:
    row = tenant_queue(max_job=0)
    waiting_job(row)
    with held(timeout=30, priority=5, key="user-7") as one:
        wait_until(lambda: len(states()) == 2)
        tenant_queue_with_one_slot = fresh(row)
        tenant_queue_with_one_slot.max_job = 1
        tenant_queue_with_one_slot.save()
        assert one.begun.wait(10)
        assert TenantJob.objects.running().get().key == "user-7"


@pytest.mark.parametrize(("tokens", "asks"), [(0, False), (1, True)], ids=["its rate is used up", "control"])
def test_it_asks_nobody_to_wait_for_the_tenant_queue_while_there_is_no_token(
    monkeypatch: pytest.MonkeyPatch, tokens: int, asks: bool
) -> None:
    row = tenant_queue(max_job=5)
    row.set_rate(1, per=timedelta(days=1), burst=1)
    if not tokens:
        running_job(row, another_process())
    looks: list[TenantJob] = []
    monkeypatch.setattr(transitions, "admit_here", looks.append)
    with pytest.raises(NoFreeSlot), hold_slot("acme", "imports", timeout=0.1):
        pass
    assert bool(looks) is asks


@pytest.mark.parametrize(("key", "asks"), [("user-7", False), ("user-8", True)], ids=["at its cap", "control"])
def test_it_asks_nobody_to_wait_for_the_tenant_queue_while_its_key_is_at_its_cap(
    monkeypatch: pytest.MonkeyPatch, key: str, asks: bool
) -> None:
    row = tenant_queue(max_job=5, max_job_per_key=1)
    running_job(row, another_process(), key="user-7")
    looks: list[TenantJob] = []
    monkeypatch.setattr(transitions, "admit_here", looks.append)
    with pytest.raises(NoFreeSlot), hold_slot("acme", "imports", timeout=0.1, key=key):
        pass
    assert bool(looks) is asks


def test_it_begins_when_the_next_token_comes() -> None:
    row = tenant_queue(max_job=5)
    row.set_rate(1, per=timedelta(seconds=1), burst=1)
    running_job(row, another_process())
    with hold_slot("acme", "imports", timeout=30):
        assert states() == ["running", "running"]
    assert counters_match()


def test_a_full_backlog_takes_no_reservation_and_a_free_slot_needs_no_place_in_it() -> None:
    tenant_queue(max_waiting=0)
    with hold_slot("acme", "imports"), pytest.raises(TenantQueueFull), hold_slot("acme", "imports", timeout=30):
        pass
    assert states() == ["finished"]


def test_a_key_at_its_limit_waits_and_another_one_goes_ahead() -> None:
    tenant_queue(max_job=3, max_job_per_key=1)
    with hold_slot("acme", "imports", key="user-7"), held(key="user-7", timeout=30) as one:
        wait_until(lambda: states() == ["running", "waiting"])
        with hold_slot("acme", "imports", key="user-8"):
            assert states() == ["running", "waiting", "running"]
        TenantJob.objects.waiting().get().cancel()
    assert isinstance(one.error, NoFreeSlot)


def test_a_reservation_inside_the_one_that_has_the_only_slot_ends_without_a_deadlock() -> None:
    tenant_queue()
    with hold_slot("acme", "imports"), pytest.raises(NoFreeSlot), hold_slot("acme", "imports", timeout=0.1):
        pass
    assert states() == ["finished", "canceled"]


def test_as_a_decorator_it_holds_a_slot_for_each_call() -> None:
    @hold_slot("acme", "imports")
    def work_in_slot() -> int:
        return TenantQueue.objects.get().current_job

    assert [work_in_slot(), work_in_slot()] == [1, 1]
    assert states() == ["finished", "finished"]


@on_postgresql
def test_nothing_of_ours_is_part_of_a_transaction_of_the_caller() -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        with hold_slot("acme", "imports") as reservation:
            assert TenantQueue.objects.get().current_job == 1
        1 / 0  # noqa: B018
    assert fresh(reservation.job).state == State.FINISHED


@on_postgresql
def test_a_callers_open_transaction_holds_none_of_our_locks() -> None:
    row = tenant_queue(max_job=2)
    with transaction.atomic(), hold_slot("acme", "imports"), held(timeout=5) as one:
        assert one.begun.wait(5), "another reservation must not wait for this one's transaction"
        assert fresh(row).current_job == 2


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL has many writers")
def test_on_sqlite_a_reservation_inside_a_transaction_is_refused_at_once() -> None:
    with transaction.atomic(), pytest.raises(HoldInTransaction, match="'default'"), hold_slot("acme", "imports"):
        pass


def test_the_admission_at_the_very_moment_of_the_timeout_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced: the slot is given between the last look at the row and leaving the backlog."""
    row = tenant_queue(max_job=0)
    original = transitions.cancel_unstarted

    def admit_then_cancel(job: TenantJob, reason: str) -> bool:
        TenantQueue.objects.filter(pk=row.pk).update(max_job=1)
        transitions.offer(row.pk, "imports")
        return original(job, reason)

    monkeypatch.setattr(transitions, "cancel_unstarted", admit_then_cancel)
    with hold_slot("acme", "imports") as reservation:
        assert (fresh(reservation.job).state, fresh(row).current_job) == (State.RUNNING, 1)
    assert counters_match()


def pause(row: TenantQueue) -> None:
    row.pause()


def forbid(row: TenantQueue) -> None:
    row.set_limit(0)


def lower_cap_of_keys(row: TenantQueue) -> None:
    row.set_max_job_per_key(1)


def change_nothing(row: TenantQueue) -> None: ...


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (pause, False),
        (forbid, False),
        (lower_cap_of_keys, False),
        pytest.param(change_nothing, True, id="control"),
    ],
)
def test_one_that_was_given_a_slot_before_a_change_that_takes_it_away_does_not_begin_after_that(
    change: Callable[[TenantQueue], None], begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees its slot a moment later. It goes on waiting, in its place."""
    row = tenant_queue("acme", max_job=5)
    running_job(row, another_process(), key="user")
    started, changed = module.Keeper._started, threading.Event()

    def after_the_change(keeper: module.Keeper, job: TenantJob) -> bool:
        if not changed.is_set():
            change(TenantQueue.objects.get(pk=row.pk))
            changed.set()
        return started(keeper, job)

    monkeypatch.setattr(module.Keeper, "_started", after_the_change)
    with held(timeout=20, key="user") as reservation:
        wait_until(lambda: changed.is_set() and (states()[1] == State.WAITING or reservation.begun.is_set()))
        assert reservation.begun.is_set() == begins
        assert counters_match()
        changed_row = TenantQueue.objects.get(pk=row.pk)
        changed_row.resume(), changed_row.set_limit(5), changed_row.set_max_job_per_key(None)
        assert reservation.begun.wait(10)
    assert reservation.error is None
    assert states() == [State.RUNNING, State.FINISHED]
    assert counters_match()


def test_one_whose_slot_is_taken_away_waits_no_longer_than_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    row, started = tenant_queue("acme", max_job=5), module.Keeper._started

    def after_a_pause(keeper: module.Keeper, job: TenantJob) -> bool:
        TenantQueue.objects.get(pk=row.pk).pause()
        return started(keeper, job)

    monkeypatch.setattr(module.Keeper, "_started", after_a_pause)
    with pytest.raises(NoFreeSlot, match="no slot became free"), hold_slot("acme", "imports"):
        pytest.fail("it began")
    assert states() == [State.CANCELED]
    assert counters_match()


def test_code_that_is_interrupted_while_it_waits_leaves_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    running_job(tenant_queue(), another_process())

    def wait(*_: Any) -> Any:
        wait_until(lambda: len(states()) == 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(module.futures, "wait", wait)
    with pytest.raises(KeyboardInterrupt), hold_slot("acme", "imports", timeout=300):
        pass
    assert states() == ["running", "canceled"]


def test_an_interrupt_at_the_very_moment_of_admission_gives_the_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()

    def result(future: Any) -> Any:
        wait_until(lambda: states() == ["running"])
        raise KeyboardInterrupt

    monkeypatch.setattr(module.Future, "result", result)
    with pytest.raises(KeyboardInterrupt), hold_slot("acme", "imports", timeout=30):
        pass
    assert (states(), fresh(row).current_job) == (["failed"], 0)


def test_one_that_gets_its_slot_with_a_later_one_begins_and_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one looks first, when two slots are free."""
    row = tenant_queue(max_job=0)
    monkeypatch.setattr(module.Keeper, "_gets_slot", lambda *_: False)
    told: list[list[TenantJob]] = []

    def hear(*, jobs: list[TenantJob], **_: Any) -> None:
        told.append(jobs)

    with held(timeout=20) as one:
        wait_until(lambda: states() == ["waiting"])
        earlier, later = TenantJob.objects.get(), waiting_reservation(row, another_process())
        TenantQueue.objects.update(max_job=2)
        signals.jobs_admitted.connect(hear)
        assert transitions.admit_here(later)
        signals.jobs_admitted.disconnect(hear)
        wait_until(one.begun.is_set)
    assert told == [[earlier, later]]
    assert counters_match()


def test_a_waiting_reservation_that_is_canceled_raises() -> None:
    running_job(tenant_queue(), another_process())
    with held(timeout=30) as one:
        wait_until(lambda: len(states()) == 2)
        assert TenantJob.objects.get(kind=Kind.RESERVATION).cancel()
        wait_until(lambda: one.error)
    assert isinstance(one.error, NoFreeSlot)
    assert "canceled" in str(one.error)


@override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.05})
@pytest.mark.parametrize("moment", ["admit_this", "start"])
def test_a_waiting_reservation_that_is_deleted_raises_what_a_canceled_one_does(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced: between two looks at its row."""
    tenant_queue()
    do = getattr(slots, moment)

    def deleted_meanwhile(*values: Any) -> Any:
        done = do(*values) if moment == "start" else []
        TenantJob.objects.all().delete()
        return done

    monkeypatch.setattr(slots, moment, deleted_meanwhile)
    with pytest.raises(NoFreeSlot, match="was canceled"), hold_slot("acme", "imports", timeout=5):
        pass
    assert counters_match()


def test_a_running_reservation_that_is_canceled_learns_of_it_and_goes_on() -> None:
    with hold_slot("acme", "imports") as reservation:
        assert TenantJob.objects.get().cancel()
        wait_until(lambda: reservation.job.cancel_requested_at)
        assert fresh(reservation.job).state == State.RUNNING
    assert fresh(reservation.job).state == State.FINISHED


def test_a_reservation_cannot_be_retried() -> None:
    with hold_slot("acme", "imports") as reservation:
        pass
    TenantJob.objects.update(state=State.FAILED)
    with pytest.raises(NotRetryable, match="nothing to run"):
        reservation.job.retry()
    assert states() == ["failed"]


@override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.05})
def test_the_lease_is_renewed_while_the_block_runs() -> None:
    with hold_slot("acme", "imports") as reservation:
        before = fresh(reservation.job).beat_at
        wait_until(lambda: TenantJob.objects.get().beat_at > before)


@override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.05})
def test_a_waiting_reservation_sends_heartbeats_too() -> None:
    tenant_queue(max_job=0)
    with held(timeout=30) as one:
        wait_until(lambda: TenantJob.objects.exists())
        before = TenantJob.objects.get().beat_at
        wait_until(lambda: TenantJob.objects.get().beat_at > before)
        TenantJob.objects.get().cancel()
    assert isinstance(one.error, NoFreeSlot)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
@pytest.mark.parametrize("mode", KEEPS_CHANGES_OUT)
def test_a_heartbeat_that_a_lock_keeps_out_is_soon_tried_again(mode: str) -> None:
    """Before a sweeper that finds no lock any more has looked twice."""
    keeper, job = module.Keeper("acme", "imports", 1, {}), waiting_reservation(tenant_queue(), another_process())
    admit(job.tenant_queue)
    assert slots.start(fresh(job), another_process())
    with kept_out(mode):
        assert in_thread(lambda: keeper._beat(Reservation(fresh(job)))) == 20 * slots.AGAIN_SHARE
    assert in_thread(lambda: keeper._beat(Reservation(fresh(job)))) == 5


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
@pytest.mark.parametrize("mode", KEEPS_CHANGES_OUT)
def test_that_of_one_that_waits_is_tried_with_its_next_look(mode: str) -> None:
    keeper, job = module.Keeper("acme", "imports", 1, {}), waiting_reservation(tenant_queue(), another_process())
    age(job, beat_at=21)
    before = job.beat_at
    with kept_out(mode):
        in_thread(lambda: keeper._beat_in_backlog(job))
    assert fresh(job).beat_at == before
    in_thread(lambda: keeper._beat_in_backlog(job))
    assert fresh(job).beat_at > before


@override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.05})
def test_a_lost_lease_is_reported_and_logged_once_and_the_release_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = tenant_queue()
    with caplog.at_level(logging.ERROR, "tenant_slots"), hold_slot("acme", "imports") as reservation:
        assert lost_runs.end_lost_run(reservation.job, "taken away by the test")
        other = running_job(row, another_process())
        wait_until(lambda: reservation.is_lost)
    assert (TenantJob.objects.get(pk=reservation.job.pk).state, fresh(other).state) == (State.FAILED, State.RUNNING)
    assert fresh(row).current_job == 1
    assert [record.message for record in caplog.records if "lease" in record.message] == [
        f"the lease of {reservation.job} is lost, its block goes on without a slot"
    ]


def test_a_block_that_ends_before_it_could_hear_of_its_lost_lease_takes_nobodys_slot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = tenant_queue()
    with hold_slot("acme", "imports") as reservation:
        assert lost_runs.end_lost_run(reservation.job, "taken away by the test")
        other = running_job(row, another_process())
    assert (fresh(reservation.job).state, fresh(other).state, fresh(row).current_job) == ("failed", "running", 1)
    assert "its slot had been taken away" in caplog.text


@override_settings(TENANT_SLOTS={"BEAT_INTERVAL": 0.02})
def test_a_database_that_is_away_for_a_heartbeat_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = slots.beat, []

    def beat(*arguments: Any) -> bool:
        calls.append(arguments)
        if len(calls) < 3:
            raise OperationalError("gone")
        return original(*arguments)

    monkeypatch.setattr(slots, "beat", beat)
    with hold_slot("acme", "imports") as reservation:
        wait_until(lambda: len(calls) > 3)
        assert not reservation.is_lost
    assert fresh(reservation.job).state == State.FINISHED


def test_a_database_that_fails_while_it_waits_leaves_nothing_in_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()
    original, failures = slots.start, [OperationalError("committed, but nobody heard")]

    def start(*arguments: Any) -> bool:
        started = original(*arguments)
        if failures:
            raise failures.pop()
        return started

    monkeypatch.setattr(slots, "start", start)
    with pytest.raises(OperationalError), hold_slot("acme", "imports"):
        pass
    wait_until(lambda: states() == ["canceled"])
    assert fresh(row).current_job == 0


@on_postgresql
def test_a_locked_row_is_no_slot_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(module, "SECONDS_FOR_RELEASE", 0.1)
    row = tenant_queue()
    with transaction.atomic():
        list(TenantQueue.objects.select_for_update(no_key=True).filter(pk=row.pk))
        with pytest.raises(NoFreeSlot, match="locked"), hold_slot("acme", "imports"):
            pass
        assert states() == ["waiting"]
    wait_until(lambda: states() == ["canceled"])


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        (("acme", "imports"), {"timeout": -1}, InvalidOption),
        (("acme", "imports"), {"timeout": "5"}, InvalidOption),
        (("acme", "imports"), {"timeout": float("nan")}, InvalidOption),
        (("acme", "imports"), {"priority": 1.5}, InvalidOption),
        (("acme", "imports"), {"key": "x" * 256}, InvalidOption),
        (("acme", "nowhere"), {}, UnknownQueue),
        ((1.5, "imports"), {}, InvalidTenant),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_stored(
    arguments: tuple[Any, str], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error), hold_slot(*arguments, **options):
        pass
    assert not TenantJob.objects.exists()


@override_settings(TENANT_SLOTS={"REQUIRE_TENANT": True})
def test_a_reservation_without_a_tenant_is_refused_where_tenants_are_required() -> None:
    with pytest.raises(TenantMissing, match="hold_slot"), hold_slot(None, "imports"):
        pass


def test_a_reservation_reports_progress_which_ends_with_it() -> None:
    with hold_slot("acme", "imports") as reservation:
        report_progress(3, 4, files=2)
    assert (fresh(reservation.job).progress, reservation.job.stats) == ({"done": 3, "total": 4}, {"files": 2})


def test_no_connection_and_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with hold_slot("acme", "imports"):
        assert set(threading.enumerate()) - before  # control
    assert set(threading.enumerate()) - before == set()


def test_whoever_hears_of_its_start_sees_it_running() -> None:
    heard: list[tuple[str, bool]] = []

    def hear(*, job: TenantJob, **_: Any) -> None:
        heard.append((job.state, job.started_at is not None))

    signals.job_started.connect(hear)
    try:
        with hold_slot("acme", "imports"):
            assert heard == [(State.RUNNING, True)]
    finally:
        signals.job_started.disconnect(hear)


class TestSweep:
    """What becomes of a reservation whose process is gone."""

    def test_one_whose_row_is_deleted_meanwhile_does_not_keep_the_sweep_from_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Forced: each row is deleted as soon as it is canceled."""
        row = tenant_queue(max_job=0)
        for _ in range(2):
            waiting_reservation(row, dead_process())
        monkeypatch.setattr(dispatch, "remove", lambda job: TenantJob.objects.filter(pk=job.pk).delete())
        assert sweep_now().reclaimed == 2

    def test_a_dead_one_that_runs_fails_and_is_not_put_back(self) -> None:
        row = tenant_queue()
        job = waiting_reservation(row, dead_process())
        admit(row)
        slots.start(fresh(job), dead_process())
        assert [finding.kind for finding in damage_found()] == ["dead owner"]
        assert sweep_now().reclaimed == 1
        assert (fresh(job).state, fresh(row).current_job) == (State.FAILED, 0)

    @pytest.mark.parametrize("admitted", [False, True])
    def test_a_dead_one_that_waits_or_was_just_admitted_is_ended_at_once(self, admitted: bool) -> None:
        row = tenant_queue(max_job=int(admitted))
        job = waiting_reservation(row, dead_process())
        admit(row)
        next_one = waiting_job(row)
        assert sweep_now().reclaimed == 1
        assert (fresh(job).state, fresh(next_one).state) == (State.CANCELED, "queued" if admitted else "waiting")
        assert "died" in job.error
        assert counters_match()

    def test_a_stale_one_on_another_host_is_ended_after_its_lease(self) -> None:
        row = tenant_queue(max_job=0)
        job = waiting_reservation(row, dead_process(host="elsewhere"))
        age(job, beat_at=19)
        assert sweep_now().reclaimed == 0
        age(job, beat_at=21)
        assert sweep_now().reclaimed == 1
        assert fresh(job).state == State.CANCELED

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
    @pytest.mark.parametrize("mode", KEEPS_CHANGES_OUT)
    def test_one_that_waits_is_not_stale_while_no_heartbeat_is_let_in(self, mode: str) -> None:
        job = waiting_reservation(tenant_queue(max_job=0), another_process(host="elsewhere"))
        age(job, beat_at=21)
        with kept_out(mode):
            assert in_thread(sweep_now).reclaimed == 0
        assert fresh(job).state == State.WAITING
        assert sweep_now().reclaimed == 1, "the control"

    def test_a_living_one_that_sends_heartbeats_is_left_alone(self) -> None:
        row = tenant_queue()
        running_job(row, another_process())
        job = waiting_reservation(row, another_process())
        assert not sweep_now()
        assert fresh(job).state == State.WAITING

    def test_a_stale_one_on_this_host_loses_its_slot_but_its_process_is_never_killed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(owners, "kill", lambda job: pytest.fail("a web process was killed"))
        row = tenant_queue()
        job = waiting_reservation(row, another_process())
        admit(row)
        slots.start(fresh(job), another_process())
        age(job, beat_at=21)
        assert sweep_now().reclaimed == 1
        assert fresh(job).state == State.FAILED

    def test_an_admitted_one_is_neither_lost_in_redis_nor_pushed(self) -> None:
        row = tenant_queue()
        job = waiting_reservation(row, another_process())
        assert transitions.offer(row.pk, "imports") == [job]
        age(job, admitted_at=60)
        assert damage_found() == []
        assert not sweep_now()
        assert (fresh(job).state, in_rq()) == (State.QUEUED, 0)

    def test_one_that_moved_on_since_it_was_read_is_left_to_the_next_sweep(self) -> None:
        row = tenant_queue(max_job=0)
        job = waiting_reservation(row, dead_process())
        read = TenantJob.objects.get(pk=job.pk)
        TenantQueue.objects.update(max_job=1)
        admit(row)
        assert not transitions.cancel_unstarted(read, "too late")
        assert fresh(job).state == State.QUEUED


def test_a_release_by_hand_ends_a_stale_reservation() -> None:
    row = tenant_queue()
    job = waiting_reservation(row, another_process())
    admit(row)
    slots.start(fresh(job), another_process())
    assert lost_runs.release_by_hand(fresh(job), "stuck") is ByHand.ALIVE
    age(job, beat_at=21)
    assert lost_runs.release_by_hand(fresh(job), "stuck") is ByHand.RELEASED
    assert fresh(job).state == State.FAILED


def test_redis_is_never_asked_about_a_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue()
    job = waiting_reservation(row, another_process())
    monkeypatch.setattr(queue_directory, "queue_named", lambda name: pytest.fail("Redis was asked"))
    dispatch.push([job])
    dispatch.remove(job)
    dispatch.stop(job)
    assert not dispatch.was_stopped(job)


def test_nor_is_it_before_the_block_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    reaching = queue_directory.reaching
    monkeypatch.setattr(queue_directory, "reaching", lambda name: asked.append(name) or reaching(name))
    with hold_slot("acme", "imports"):
        assert not asked, "a Redis that does not answer would keep the block from beginning"
    assert asked, "whoever is next is to have its turn"


def test_a_reservation_inside_a_job_holds_a_slot_of_its_own_queue() -> None:
    jobs.hold_inside.enqueue("acme")
    work()
    assert list(TenantJob.objects.order_by("pk").values_list("state", "result")) == [
        ("finished", 1),
        ("finished", None),
    ]


@on_postgresql
def test_reservations_to_begin_are_found_by_their_index() -> None:
    assert "tenant_slots_reservations" in explained(TenantJob.objects.reservations_to_begin().filter(host="x"))


@on_postgresql
def test_each_thread_ends_the_reservation_that_it_has_begun_with_a_holder_that_they_share() -> None:
    tenant_queue(max_job=2)
    holder = hold_slot("acme", "imports", timeout=20)
    one, another = SharedBy(holder), SharedBy(holder)
    one.leave(ValueError("the first one"))
    assert (fresh(one.job).state, one.job.error) == (State.FAILED, "ValueError: the first one")
    assert fresh(another.job).state == State.RUNNING
    another.leave()
    assert fresh(another.job).state == State.FINISHED
    assert counters_match()


class SharedBy:
    """A thread inside a `with` of a holder that others use as well."""

    def __init__(self, holder: Any) -> None:
        self._holder, self._error = holder, None
        self._begun, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._thread.start()
        assert self._begun.wait(30)

    def _hold(self) -> None:
        try:
            with suppress(ValueError), self._holder as reservation:
                self.job = reservation.job
                self._begun.set()
                assert self._end.wait(30)
                if self._error is not None:
                    raise self._error
        finally:
            connections.close_all()

    def leave(self, error: ValueError | None = None) -> None:
        self._error = error
        self._end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


@on_postgresql
def test_each_task_of_asyncio_ends_its_own_too() -> None:
    tenant_queue(max_job=2)
    holder = hold_slot("acme", "imports", timeout=20)
    held: list[TenantJob] = []
    ended: list[list[str]] = []

    async def hold(begun: asyncio.Event, end: asyncio.Event) -> None:
        with holder as reservation:
            held.append(reservation.job)
            begun.set()
            await end.wait()

    async def both() -> None:
        events = [asyncio.Event() for _ in range(4)]
        async with asyncio.timeout(60):
            one = asyncio.create_task(hold(*events[:2]))
            await events[0].wait()
            another = asyncio.create_task(hold(*events[2:]))
            await events[2].wait()
            events[1].set()
            await one
            ended.append(await sync_to_async(states_of)(held))
            events[3].set()
            await another

    def states_of(jobs: list[TenantJob]) -> list[str]:
        return [fresh(job).state for job in jobs]

    async_to_sync(both)()
    assert ended == [["finished", "running"]]
    assert states_of(held) == ["finished", "finished"]


@on_postgresql
def test_it_may_wait_in_a_task_of_asyncio() -> None:
    """Where nothing may be asked by the caller's own connection: Django raises there."""
    row = tenant_queue(max_job=1)
    running_job(row, another_process())

    async def hold() -> None:
        with hold_slot("acme", "imports", timeout=2 * module.FIRST_LOOK):
            pass

    with pytest.raises(NoFreeSlot):
        async_to_sync(hold)()


def test_a_reservation_may_be_ended_by_another_thread_than_began_it() -> None:
    """As with an executor that runs one step in each."""
    holder = hold_slot("acme", "imports")
    reservation = in_thread(holder.__enter__)
    holder.__exit__(None, None, None)
    assert fresh(reservation.job).state == State.FINISHED
