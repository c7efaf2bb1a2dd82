"""What a job changes in its process the next one in the same work-horse does not see."""

from __future__ import annotations

import _thread
import errno
import json
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import django_rq
import psycopg
import pytest
from django.db import OperationalError, connection, connections

from tenant_slots.db.leftovers import ways_of_all
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running.supervised import RiddenRun
from tenant_slots.workers import TenantPreforkWorker, left_processes
from tenant_slots.workers.baseline import LOOKS, SECONDS_TO_BEGIN, Baseline
from tenant_slots.workers.sessions import (
    close_ended_sessions,
    end_thread_of_coroutines,
    leave_transactions,
    restore_sessions,
)
from tests import jobs
from tests.factories import counters_match
from tests.history import History
from tests.processes import Workers, wait_until
from tests.processes import test_database_url as database_url
from tests.sleeping import replace_sleep
from tests.workers import jobs as horse_jobs
from tests.workers import leftovers
from tests.workers.leftovers import GONE_ANYWAY, IN_ANY, IN_POSTGRESQL, LASTING, TRANSACTIONS, WRITTEN

PREFORK = "tenant_slots.workers.TenantPreforkWorker"
FORGETFUL = "tests.workers.classes.ForgetfulWorker"
SIMPLE = "tenant_slots.workers.TenantSimpleWorker"
CARELESS = "tests.workers.classes.CarelessWorker"

postgresql_only = pytest.mark.skipif(connection.vendor != "postgresql", reason="a session of SQLite is closed")

PUT_BACK = [*TRANSACTIONS, *IN_ANY, *(IN_POSTGRESQL if connection.vendor == "postgresql" else [])]
OF_SESSIONS = [*TRANSACTIONS, *IN_POSTGRESQL]
SHOWN = [kind for kind in PUT_BACK if connection.vendor == "postgresql" or kind not in TRANSACTIONS]
"""In a transaction that is open for ever SQLite lets nobody else write, so that no end is recorded either."""


@pytest.fixture
def workers(transactional_db: None, _nobody_is_left: None) -> Iterator[Workers]:
    """Their work-horses run three jobs each: one that looks, one that leaves something, and one that looks again."""
    started = Workers(TEST_TENANT_SLOTS=json.dumps({"JOBS_PER_HORSE": 3}))
    yield started
    started.stop()


def results_under(workers: Workers, worker_class: str, jobs: list[TenantJob]) -> list[list[Any]]:
    """What the jobs returned, in their order: their process first."""
    assert workers.run("--burst", worker_class=worker_class).returncode == 0
    ended = [TenantJob.objects.get(pk=job.pk) for job in jobs]
    assert {(job.state, job.crashes) for job in ended} == {(State.FINISHED, 0)}, [job.error for job in ended]
    return [job.result for job in ended]


def seen_under(
    workers: Workers, worker_class: str, kinds: list[str], leave: Any = leftovers.leave
) -> dict[str, tuple[object, object]]:
    """What one job saw before, and another one after the job that left something, in the same process."""
    jobs = []
    for kind in kinds:
        jobs += [task.enqueue("acme", kind) for task in (leftovers.see, leave, leftovers.see)]
    results = results_under(workers, worker_class, jobs)
    seen = {}
    for n, kind in enumerate(kinds):
        (first, before), (second, _), (third, after) = results[3 * n : 3 * n + 3]
        assert first == second, f"{kind}: another horse was needed too soon"
        assert (third != second) is needs_another_horse(worker_class, kind), f"{kind}: the wrong horse"
        seen[kind] = before, after
    return seen


def needs_another_horse(worker_class: str, kind: str) -> bool:
    """A block of ``atomic()`` is rolled back; whoever still holds it may end it in the midst of another one."""
    return (worker_class == PREFORK and kind == "atomic") or (worker_class != CARELESS and kind in LASTING)


def test_what_a_job_leaves_the_next_one_in_its_process_does_not_see(workers: Workers) -> None:
    kinds = [kind for kind in (*PUT_BACK, *GONE_ANYWAY) if not needs_another_horse(PREFORK, kind)]
    seen = seen_under(workers, PREFORK, kinds)
    assert {kind: after for kind, (_, after) in seen.items()} == {kind: before for kind, (before, _) in seen.items()}
    assert not TenantQueue.objects.filter(tenant=WRITTEN).exists()
    if connection.vendor == "postgresql":
        assert seen["time zone of the session"] == ("UTC", "UTC"), "that is Django's, not the server's"


@postgresql_only
@pytest.mark.parametrize("leave", [leftovers.leave, leftovers.leave_in_callback])
def test_without_a_work_horse_its_sessions_are_put_back(workers: Workers, leave: Any) -> None:
    """A worker that runs jobs in its own process records in them how these have ended."""
    seen = seen_under(workers, SIMPLE, OF_SESSIONS, leave)
    assert {kind: after for kind, (_, after) in seen.items()} == {kind: before for kind, (before, _) in seen.items()}
    assert not TenantQueue.objects.filter(tenant=WRITTEN).exists()


@postgresql_only
def test_control_without_a_work_horse_the_next_job_sees_what_nobody_puts_back(workers: Workers) -> None:
    seen = seen_under(workers, "tests.workers.classes.ForgetfulSimpleWorker", ["LISTEN", "temporary table"])
    assert [kind for kind, (before, after) in seen.items() if before == after] == []


@postgresql_only
@pytest.mark.parametrize("kind", ["time zone of the session", "role", "statement_timeout"])
def test_nor_in_a_session_of_a_pool(workers: Workers, kind: str) -> None:
    """Which Django configures when the pool opens it, and not when it is handed out."""
    workers.variables["TEST_DATABASE_POOL"] = json.dumps({"min_size": 1})
    ((before, after),) = seen_under(workers, PREFORK, [kind]).values()
    assert after == before
    if kind == "time zone of the session":
        assert after == "UTC", "that is Django's, not the server's"


def test_control_a_process_in_which_nothing_is_put_back_shows_all_of_it(workers: Workers) -> None:
    seen = seen_under(workers, FORGETFUL, SHOWN)
    assert [kind for kind, (before, after) in seen.items() if before == after] == []


def test_control_where_jobs_share_a_context_and_have_no_alarm_the_rest_is_shown_too(workers: Workers) -> None:
    seen = seen_under(workers, "tests.workers.classes.CarefreeWorker", list(GONE_ANYWAY))
    assert [kind for kind, (before, after) in seen.items() if before == after] == []


def test_what_cannot_be_put_back_needs_another_process(workers: Workers) -> None:
    """Which `seen_under` looks at; here a horse may run as many as all of them."""
    workers.variables["TEST_TENANT_SLOTS"] = "{}"
    seen = seen_under(workers, PREFORK, [*LASTING, "atomic"])
    assert {kind: after for kind, (_, after) in seen.items()} == {kind: before for kind, (before, _) in seen.items()}


def test_control_the_same_process_shows_what_cannot_be_put_back(workers: Workers) -> None:
    seen = seen_under(workers, CARELESS, list(LASTING))
    assert [kind for kind, (before, after) in seen.items() if before == after] == []


@pytest.mark.parametrize(("worker_class", "is_foretold"), [(PREFORK, False), (FORGETFUL, True)])
def test_a_job_cannot_foretell_what_the_next_one_draws(workers: Workers, worker_class: str, is_foretold: bool) -> None:
    jobs = [leftovers.seed_and_draw.enqueue("acme", 1), leftovers.seed_and_draw.enqueue("acme")]
    jobs = [*jobs, leftovers.see.enqueue("acme", "folder")]
    jobs += [leftovers.seed_and_draw.enqueue("acme", 1), leftovers.seed_and_draw.enqueue("acme")]
    results = results_under(workers, worker_class, jobs)
    (a, drawn_a), (b, next_a), _, (c, drawn_c), (d, next_c) = results
    assert (a == b, c == d, a == c) == (True, True, False)
    assert drawn_a == drawn_c
    assert (next_a == next_c) is is_foretold


@pytest.mark.parametrize("kind", [*TRANSACTIONS, *(["plain BEGIN"] if "plain BEGIN" in PUT_BACK else [])])
def test_what_the_next_job_writes_is_committed_and_what_the_last_one_left_open_is_not(
    workers: Workers, kind: str
) -> None:
    results_under(workers, PREFORK, [leftovers.leave.enqueue("acme", kind), leftovers.write.enqueue("acme", "later")])
    assert set(TenantQueue.objects.values_list("tenant", flat=True)) == {"acme", "later"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", TRANSACTIONS)
def test_a_transaction_is_left_without_a_connection_that_nobody_else_knows(kind: str) -> None:
    """Who has kept Django's object, as a test runner does for its end, closes the session that is in use."""
    kept = connections["default"]
    leftovers.TRANSACTIONS[kind].leave()
    leave_transactions(ways_of_all())
    assert connections["default"] is kept
    assert (kept.in_atomic_block, kept.get_autocommit()) == (False, True)
    assert not TenantQueue.objects.filter(tenant=WRITTEN).exists()


@postgresql_only
def test_what_a_project_sets_in_every_session_is_set_in_one_that_was_cleaned(workers: Workers) -> None:
    jobs = [leftovers.own_setting.enqueue("acme", True), leftovers.own_setting.enqueue("acme")]
    (first, before), (second, after) = results_under(workers, PREFORK, jobs)
    assert (first, before) == (second, after)
    assert before == "12345ms"


def test_a_thread_that_a_job_left_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """What it costs is seen nowhere else."""
    end_thread_of_coroutines()  # of a test before this one, whose end would make up for the other
    baseline, let_go = Baseline(), threading.Event()
    left = threading.Thread(target=let_go.wait, name="that of a library")
    left.start()
    with caplog.at_level("INFO", logger="tenant_slots"):
        is_restorable = baseline.is_restorable()
    let_go.set()
    left.join()
    assert not is_restorable
    assert "that of a library" in caplog.text
    assert baseline.is_restorable()


def test_a_process_that_a_job_left_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_processes, "are_left", lambda: False)  # the servers of the tests
    baseline = Baseline()
    assert baseline.is_restorable()
    monkeypatch.setattr(left_processes, "are_left", lambda: True)
    with caplog.at_level("INFO", logger="tenant_slots"):
        assert not baseline.is_restorable()
    assert "a job left a process that runs" in caplog.text


@pytest.mark.parametrize(("state", "is_left"), [("S", True), ("Z", False)])
def test_of_a_dead_process_in_the_group_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, state: str, is_left: bool
) -> None:
    """Where the first process of a container waits for none it stays there; nobody else can wait for it."""
    stats = {os.getpid(): ["R", "1", str(os.getpid())], 7: [state, "1", str(os.getpid())]}
    monkeypatch.setattr(left_processes, "_leads_others", lambda: True)
    monkeypatch.setattr(left_processes, "all_stats", lambda: stats)
    assert left_processes.are_left() is is_left


def test_nor_is_one_overlooked_that_threading_does_not_know() -> None:
    end_thread_of_coroutines()
    baseline, runs, let_go = Baseline(), threading.Event(), threading.Event()

    def stay() -> None:
        runs.set()
        let_go.wait()

    _thread.start_new_thread(stay, ())
    assert runs.wait(10)
    is_restorable = baseline.is_restorable()
    let_go.set()
    assert not is_restorable
    wait_until(baseline.is_restorable)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the system does not say how many threads there are")
def test_nor_one_that_has_not_run_yet_after_another_came_and_went(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does not count it before; it is overlooked now and then only, so it is tried a few times.

    A loaded machine may take longer to let it run, or to let the one before go, than a worker waits for it.
    """
    monkeypatch.setattr("tenant_slots.workers.baseline.SECONDS_TO_BEGIN", 10)
    monkeypatch.setattr("tenant_slots.workers.baseline.LOOKS", 10_000)
    end_thread_of_coroutines()
    baseline = Baseline()
    for _ in range(5):
        assert _is_noticed(baseline, start_thread)
        assert _is_noticed(baseline, lambda function: _thread.start_new_thread(function, ()))


def _is_noticed(baseline: Baseline, start: Callable[[Callable[[], object]], object]) -> bool:
    let_go = threading.Event()
    start(let_go.wait)
    is_restorable = baseline.is_restorable()
    let_go.set()
    wait_until(baseline.is_restorable)
    return not is_restorable


def start_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function)
    thread.start()
    return thread


@pytest.mark.parametrize("is_known", [True, pytest.param(False, id="control")])
def test_nobody_waits_for_a_thread_that_is_known(is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is after each job that is a coroutine."""
    waits: list[float] = []
    replace_sleep(monkeypatch, waits.append)
    baseline, let_go = Baseline(), threading.Event()
    if not is_known:
        monkeypatch.setattr(_thread, "_count", lambda: 0)
    thread = start_thread(let_go.wait)
    baseline.is_restorable()
    let_go.set()
    thread.join()
    assert waits == ([] if is_known else [SECONDS_TO_BEGIN / LOOKS] * LOOKS)


@postgresql_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("looks", [True, pytest.param(False, id="control")])
def test_a_session_that_the_server_has_ended_is_closed_before_anybody_uses_it(looks: bool) -> None:
    backend = leftovers.sql("SELECT pg_backend_pid()")
    with psycopg.connect(database_url(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])
    try:
        if looks:
            close_ended_sessions()
        with nullcontext() if looks else pytest.raises(OperationalError):
            assert leftovers.sql("SELECT pg_backend_pid()") != backend
    finally:
        connection.close()


@postgresql_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("takes_writes", [False, pytest.param(True, id="control")])
def test_a_session_that_was_made_when_nobody_could_write_is_closed(takes_writes: bool) -> None:
    """As on a standby, or while somebody had set that. It would refuse each job's writes for as long as it is kept."""
    name = connection.settings_dict["NAME"]
    with psycopg.connect(database_url(), autocommit=True, options="-c default_transaction_read_only=off") as other:
        if not takes_writes:
            other.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        connection.close()
        leftovers.sql("SELECT 1")
        other.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    restore_sessions()
    assert (connection.connection is not None) is takes_writes


@postgresql_only
@pytest.mark.django_db(transaction=True)
def test_a_session_that_goes_on_is_kept() -> None:
    backend = leftovers.sql("SELECT pg_backend_pid()")
    close_ended_sessions()
    assert leftovers.sql("SELECT pg_backend_pid()") == backend


@postgresql_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("binds", "statements"), [("driver", 1), ("server", 2)])
def test_a_session_is_put_back_in_one_round_trip_where_the_driver_binds_parameters(
    binds: str, statements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.ensure_connection()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", binds == "server")
    monkeypatch.setattr(connection, "timezone_name", "Asia/Tokyo")
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE 'Europe/Paris'")
        cursor.execute("SET statement_timeout = '4711s'")
    sent, execute = [], psycopg.Cursor.execute

    def noted(cursor: Any, query: Any, *args: Any, **options: Any) -> Any:
        sent.append(query)
        return execute(cursor, query, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", noted)
        restore_sessions()
    assert len(sent) == statements, sent
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('TimeZone'), current_setting('statement_timeout')")
        assert cursor.fetchone() == ("Asia/Tokyo", "0")
    connection.close()


def test_a_process_that_may_not_look_into_its_folder_is_restored_in_all_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As after ``sudo -u`` in somebody else's home."""

    def refuse(path: Any, *arguments: Any) -> int:
        if path == ".":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, *arguments)

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    baseline = Baseline()
    os.environ["LEFT_BY_A_JOB"] = "left"
    assert baseline.is_restorable()
    baseline.restore()
    assert "LEFT_BY_A_JOB" not in os.environ
    monkeypatch.chdir(tmp_path)
    assert not baseline.is_restorable(), "it would run the next job elsewhere"


@postgresql_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("max_age", "stays"), [(0, True), (None, True), (3600, True), (0.001, False)])
def test_our_session_is_kept_for_as_long_as_the_project_says(
    max_age: float | None, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Django's default it would be closed after each job."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", max_age)
    connection.close()
    connection.connect()
    wait_until(lambda: stays or time.monotonic() >= connection.close_at)
    restore_sessions()
    assert (connection.connection is not None) is stays


@postgresql_only
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("checks", [True, pytest.param(False, id="control")])
def test_the_health_of_our_session_is_checked_before_each_job_where_the_project_says_so(
    checks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", checks)
    connection.close()
    backend = leftovers.sql("SELECT pg_backend_pid()")
    restore_sessions()
    with psycopg.connect(database_url(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [backend])
    try:
        with nullcontext() if checks else pytest.raises(OperationalError):
            assert leftovers.sql("SELECT pg_backend_pid()") != backend
    finally:
        connection.close()


@pytest.mark.django_db(transaction=True)
def test_a_job_that_a_work_horse_did_not_come_to_has_not_crashed(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job has left may end its process while that is put back, when the next job was handed out already."""

    def end(baseline: Baseline) -> None:
        time.sleep(0.3)
        os._exit(3)

    monkeypatch.setattr(Baseline, "restore", end)
    rows = [jobs.record.enqueue(tenant, tenant, history.path) for tenant in ("acme", "umbrella", "whale")]
    queue = django_rq.get_queue("imports")
    TenantPreforkWorker([queue], connection=queue.connection).work(burst=True, logging_level="CRITICAL")
    assert sorted(history.started()) == ["acme", "umbrella", "whale"]
    ended = [TenantJob.objects.get(pk=row.pk) for row in rows]
    assert {(job.state, job.crashes, job.interruptions) for job in ended} == {(State.FINISHED, 0, 0)}
    assert counters_match()


@pytest.mark.django_db(transaction=True)
def test_a_work_horse_in_which_no_job_begins_any_more_is_replaced(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that it is fit for another one; each would be put back, for ever."""
    broken = horse_jobs.break_what_begins.enqueue("whale")
    rows = [jobs.record.enqueue(tenant, tenant, history.path) for tenant in ("acme", "umbrella")]
    queue = django_rq.get_queue("imports")
    TenantPreforkWorker([queue], connection=queue.connection).work(burst=True, logging_level="CRITICAL")
    assert sorted(history.started()) == ["acme", "umbrella"]
    ended = [TenantJob.objects.get(pk=row.pk) for row in (broken, *rows)]
    assert {(job.state, job.crashes, job.interruptions) for job in ended} == {(State.FINISHED, 0, 0)}
    assert sorted(job.attempt for job in ended) == [1, 1, 2]
    assert "has not begun job" in caplog.text
    assert counters_match()


@pytest.mark.django_db(transaction=True)
def test_control_one_that_ends_its_process_before_it_is_called_has(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new work-horse has nothing but this job to die of; who put it back would do so for ever."""
    monkeypatch.setattr(RiddenRun, "begin", lambda *_: os._exit(3))
    row = jobs.record.enqueue("acme", "acme", history.path)
    queue = django_rq.get_queue("imports")
    TenantPreforkWorker([queue], connection=queue.connection).work(burst=True, logging_level="CRITICAL")
    assert history.started() == []
    assert TenantJob.objects.get(pk=row.pk).state == State.FAILED


def test_a_trace_of_memory_that_went_on_before_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """By PYTHONTRACEMALLOC it does before anybody has loaded `tracemalloc`, as the first job that looks at it does."""
    tracemalloc.start(3)
    try:
        with monkeypatch.context() as unloaded:
            unloaded.delitem(sys.modules, "tracemalloc")
            baseline = Baseline()
        tracemalloc.stop()
        tracemalloc.start(5)
        baseline._restore_interpreter()
        assert (tracemalloc.is_tracing(), tracemalloc.get_traceback_limit()) == (True, 3)
    finally:
        tracemalloc.stop()
