"""A lost lease ends the run; a database that is out of reach is not a lost lease; a heartbeat waits for nobody."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.backends.signals import connection_created
from django.test import override_settings

from tenant_slots import slots
from tenant_slots.db import session_settings
from tenant_slots.db.sessions import private_connection
from tenant_slots.models import State, TenantJob
from tenant_slots.tasks import attempts
from tenant_slots.witness import Witness
from tenant_slots.workers import heartbeats
from tenant_slots.workers.heartbeats import Heartbeats
from tenant_slots.workers.watchdog import Watchdog
from tests.factories import age, another_process, fresh, in_thread, running_job, tenant_queue
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Run:
    """A running job with its witness and heartbeats; counts how often it was ended."""

    def __init__(self) -> None:
        self.job = running_job(tenant_queue(), another_process())
        self.witness = Witness()
        self.witness.taking(self.job.pk, self.job.token, os.getpid())
        self.witness.holding()
        self.horse = 0
        self.ended = 0
        self.outages = 0
        self.heartbeats = Heartbeats(self._runs, self._end, self._outage)

    def _runs(self) -> dict[tuple[int, int], int]:
        seen = self.witness.read()
        return {(seen.job_id, seen.token): self.horse} if seen.phase else {}

    def beat(self) -> float:
        return self.heartbeats.beat(self._runs())

    def _end(self, _: object) -> None:
        self.ended += 1

    def _outage(self) -> None:
        self.outages += 1


@pytest.mark.parametrize("is_over", [True, False])
def test_a_lease_is_called_lost_of_a_run_that_goes_on_and_not_of_one_whose_end_is_kept(
    is_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer to the commit that has recorded the end was lost: its worker keeps the end, to record it again."""
    run = Run()
    heartbeats = Heartbeats(run._runs, run._end, run._outage, executes=lambda _: not is_over)
    assert slots.release(fresh(run.job), state=State.FAILED)
    heartbeats.beat(run._runs())
    assert ("its run is ended here" in caplog.text, run.ended) == (not is_over, int(not is_over))


@pytest.fixture
def beating() -> Iterator[Run]:
    """A run whose heartbeats are sent by their thread."""
    run = Run()
    run.heartbeats.start()
    yield run
    run.heartbeats.stop()


def is_renewed(run: Run) -> bool:
    """Whether a heartbeat is sent within half a minute."""
    age(run.job, beat_at=19)
    before = fresh(run.job).beat_at
    run.heartbeats.look_now()
    wait_until(lambda: fresh(run.job).beat_at > before)
    return True


def unreachable(*_: Any) -> bool:
    raise OperationalError("no route")


def test_a_heartbeat_renews_the_lease() -> None:
    run = Run()
    age(run.job, beat_at=19)
    before = run.job.beat_at
    assert run.beat() == 5
    assert fresh(run.job).beat_at > before
    assert not run.ended


def test_a_heartbeat_names_the_work_horse_that_was_forked_after_the_start() -> None:
    run = Run()
    assert run.job.horse == 0
    run.horse = 4711
    run.beat()
    assert fresh(run.job).horse == 4711


def test_a_lost_lease_ends_the_run_and_releases_nothing() -> None:
    run = Run()
    slots.release(run.job, state=State.WAITING)
    run.beat()
    assert run.ended == 1
    assert TenantJob.objects.get().state == State.WAITING


@pytest.mark.parametrize(
    ("state", "error", "ended"),
    [
        (State.FINISHED, None, 0),
        (State.FAILED, "builtins.ValueError", 0),
        (State.WAITING, "builtins.ValueError", 0),
        (State.WAITING, attempts.NO_ERROR, 0),
        (State.FAILED, attempts.RUN_LOST, 1),
        (State.WAITING, attempts.RUN_LOST, 1),
        (State.CANCELED, attempts.CANCELED, 1),
    ],
)
@pytest.mark.parametrize("is_admitted_again", [False, True])
def test_a_run_that_has_recorded_its_end_itself_is_left_alone(
    state: State, error: str | None, ended: int, is_admitted_again: bool
) -> None:
    """It may have to call `on_success` or `on_failure`. Of one that was taken for lost its row says so."""
    run = Run()
    noted = {} if state == State.FINISHED else attempts.noted(run.job, error, "text", "worker-7", 1.0)
    slots.release(run.job, state=state, **noted)
    if is_admitted_again and state == State.WAITING:
        slots.admit(run.job.tenant_queue_id, "imports", 1)
        assert fresh(run.job).state == State.QUEUED
    run.beat()
    assert run.ended == ended


@pytest.mark.parametrize("state", [State.FAILED, State.WAITING])
def test_an_end_of_an_earlier_run_is_none_of_this_one(state: State) -> None:
    run = Run()
    earlier = attempts.noted(run.job, "builtins.ValueError", "text", "worker-7", 1.0)
    TenantJob.objects.update(attempt=2, **earlier)
    slots.release(fresh(run.job), state=state)
    run.beat()
    assert run.ended == 1


def test_a_run_that_ends_during_the_heartbeat_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()

    def ends_meanwhile(*_: Any) -> bool:
        run.witness.idle()
        return False

    monkeypatch.setattr(slots, "beat", ends_meanwhile)
    run.beat()
    assert not run.ended


def test_a_run_that_somebody_has_asked_to_stop_is_ended() -> None:
    run = Run()
    run.job.cancel()
    run.beat()
    assert run.ended == 1


@pytest.mark.parametrize(("choice", "ends"), [("continue", 0), ("stop", 1)])
def test_a_database_out_of_reach_follows_the_setting(choice: str, ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    now = heartbeats.time.monotonic()
    monkeypatch.setattr(slots, "beat", unreachable)
    with override_settings(TENANT_SLOTS={"ON_LOST_DATABASE": choice}):
        run.beat()
        assert (run.ended, run.outages) == (0, 1)
        monkeypatch.setattr(heartbeats.time, "monotonic", lambda: now + 21)
        run.beat()
    assert run.ended == ends


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
def test_a_heartbeat_waits_for_nobody_who_holds_the_row() -> None:
    """A job may lock its own row for longer than a lease. The control: with patience, the heartbeat does wait."""
    run = Run()
    with transaction.atomic():
        TenantJob.objects.select_for_update().get()
        assert in_thread(run.beat) == 20 * slots.AGAIN_SHARE
    assert not run.ended
    assert run.beat() == 5


@pytest.fixture
def _server_binds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server takes one statement at a time, and ends one that waits for long."""
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "server_side_binding", True)
    monkeypatch.setitem(options, "options", "-c statement_timeout=5s")
    connection.close()
    yield
    monkeypatch.undo()
    connection.close()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
@pytest.mark.usefixtures("_server_binds")
def test_a_heartbeat_waits_for_nobody_where_the_server_binds_the_parameters() -> None:
    run = Run()
    with transaction.atomic():
        TenantJob.objects.select_for_update().get()
        assert in_thread(run.beat) == 20 * slots.AGAIN_SHARE
    age(run.job, beat_at=19)
    before = fresh(run.job).beat_at
    assert run.beat() == 5
    assert fresh(run.job).beat_at > before


@pytest.mark.skipif(connection.vendor != "postgresql", reason="an option of PostgreSQL's driver")
@pytest.mark.usefixtures("_server_binds")
def test_a_session_of_our_own_sends_what_belongs_together_at_once() -> None:
    def binding() -> bool:
        with private_connection(5):
            return "server_side_binding" in connection.settings_dict["OPTIONS"]

    assert not in_thread(binding)


@pytest.mark.parametrize("is_silent", [True, pytest.param(False, id="control")])
def test_receivers_of_the_project_do_not_hear_of_a_session_that_the_worker_keeps_to_itself(
    is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_settings, "_known", [])
    heard: list[object] = []

    def hear(**_: object) -> None:
        heard.append(threading.get_ident())

    def use() -> int:
        with private_connection(5, is_silent=is_silent):
            assert TenantJob.objects.count() == 0
            with transaction.atomic():
                assert not connection.run_on_commit
        return threading.get_ident()

    connection_created.connect(hear)
    try:
        thread = in_thread(use)
    finally:
        connection_created.disconnect(hear)
    assert (thread in heard) is not is_silent


ERRORS = [RuntimeError("can't start new thread"), OSError("too many open files"), SystemExit()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "places",
    [[(slots, "beat")], [(slots, "beat"), (heartbeats.logger, "warning"), (heartbeats.logger, "exception")]],
    ids=["beat", "beat and log"],
)
def test_no_error_ends_the_thread_that_keeps_the_leases(
    beating: Run, places: list[tuple[object, str]], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one of whoever writes it to the log."""
    met = threading.Event()

    def fail(*_: object) -> None:
        met.set()
        raise error

    for owner, name in places:
        monkeypatch.setattr(owner, name, fail)
    beating.heartbeats.look_now()
    assert met.wait(30)
    monkeypatch.undo()
    assert is_renewed(beating)


def test_heartbeats_need_no_other_thread_once_they_have_begun(beating: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that is short of processes may have no room for one."""
    assert is_renewed(beating)

    def no_room(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_room)
    assert is_renewed(beating)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite answers at once")
def test_who_waits_too_long_for_an_answer_gets_an_error_each_time() -> None:
    watchdog = Watchdog()
    watchdog.start()
    try:
        assert in_thread(lambda: [is_cut(watchdog, seconds) for seconds in (1, 0, 1)]) == [True, False, True]
    finally:
        watchdog.stop()
        wait_until(lambda: not sleeping_sessions())


def is_cut(watchdog: Watchdog, seconds: float) -> bool:
    connection.ensure_connection()
    try:
        with watchdog.cutting_after(0.2), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(%s)", [seconds])
    except OperationalError:
        connection.close()
        return True
    return False


def sleeping_sessions() -> int:
    """The server notices late that somebody has gone."""
    with connection.cursor() as cursor:
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
        cursor.execute(sessions)
        return int(cursor.fetchone()[0])
