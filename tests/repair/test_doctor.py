"""slots_doctor finds each kind of damage, says where, and --fix repairs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import django_rq
import psycopg
import pytest
from django.conf import settings
from django.core.checks import CheckMessage
from django.core.checks.registry import registry
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from tenant_slots import queue_directory
from tenant_slots.admin import attention
from tenant_slots.db.clock import ago
from tenant_slots.dispatch import NUDGE
from tenant_slots.models import Kind, State, SweepClaim, TenantJob, TenantQueue
from tenant_slots.repair import doctor as diagnosis
from tenant_slots.repair import liveness
from tests import jobs
from tests.factories import (
    age,
    another_process,
    counters_match,
    dead_process,
    fresh,
    owner,
    running_job,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
    worker_on_record,
)
from tests.processes import Workers
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _somebody_works_and_sweeps() -> None:
    for queue in ("imports", "reports"):
        worker_on_record(f"works-for-{queue}", queue)
    somebody_sweeps()


def doctor(*arguments: str) -> tuple[int, str]:
    """Exit code and output."""
    output = StringIO()
    try:
        call_command("slots_doctor", *arguments, stdout=output)
    except SystemExit as stop:
        return int(stop.code or 0), output.getvalue()
    return 0, output.getvalue()


def wrong_counter() -> None:
    row = tenant_queue()
    running_job(row, another_process())
    TenantQueue.objects.update(current_job=7)


def dead_owner() -> None:
    running_job(tenant_queue(), dead_process())


def dead_reservation() -> None:
    TenantJob.objects.create(tenant_queue=tenant_queue(max_job=0), kind=Kind.RESERVATION, **dead_process().as_fields())


def lost_in_redis() -> None:
    job = jobs.add.using(queue="imports").enqueue(1, 2, tenant="acme")
    django_rq.get_connection("imports").flushall()
    worker_on_record("works-for-imports")
    age(job, admitted_at=6)


def stranded() -> None:
    waiting_job(tenant_queue())


def overdue() -> None:
    age(waiting_job(tenant_queue(), state=State.SCHEDULED), run_after=16)


def _parameters() -> dict[str, Any]:
    """To connect as Django does."""
    names = ("host", "port", "user", "password", "dbname")
    return {name: value for name, value in connection.get_connection_params().items() if name in names}


def test_a_healthy_system_gets_exit_code_0() -> None:
    running_job(tenant_queue(), another_process())
    assert doctor() == (0, "all is well\n")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (wrong_counter, "counter"),
        (dead_owner, "dead owner"),
        (dead_reservation, "dead reservation"),
        (lost_in_redis, "lost in Redis"),
        (stranded, "stranded"),
        (overdue, "overdue"),
    ],
)
def test_damage_is_found_named_and_repaired(damage: Callable[[], None], kind: str) -> None:
    damage()
    code, output = doctor("--json")
    assert code == 1
    assert (kind, "acme", "imports") in {(f["kind"], f["tenant"], f["queue"]) for f in json.loads(output)["findings"]}
    code, output = doctor("--fix")
    assert code == 0, output
    assert "(repaired)" in output
    assert doctor() == (0, "all is well\n")
    assert counters_match()


def test_a_stale_owner_is_found_and_left_to_a_sweeper_that_has_watched() -> None:
    job = running_job(tenant_queue(), owner("far", host="elsewhere"))
    age(job, beat_at=21)
    code, output = doctor("--fix")
    assert code == 1
    assert f"stale owner: 'acme' on 'imports' {job.uuid}: worker" in output
    assert fresh(job).state == State.RUNNING


def test_jobs_that_nobody_sees_to_are_named_without_reading_what_may_be_large() -> None:
    overdue()
    age(running_job(tenant_queue("stale"), owner("far", host="elsewhere")), beat_at=21)
    with CaptureQueriesContext(connection) as queries:
        found = [*diagnosis._overdue(), *diagnosis._stale_owners()]
    assert [(one.kind, one.tenant) for one in found] == [("overdue", "acme"), ("stale owner", "stale")]
    for column in ("args", "kwargs", "options", "context", "result", "error", "stats"):
        assert f'"{column}"' not in str(queries.captured_queries), column


def test_a_redis_out_of_reach_is_a_finding() -> None:
    waiting_job(tenant_queue(), state=State.QUEUED, admitted_at="2020-01-01T00:00Z")
    TenantQueue.objects.update(current_job=1)
    with override_settings(RQ_QUEUES={"imports": {"URL": "redis://127.0.0.1:1/0"}}):
        code, output = doctor("--fix")
    assert code == 1
    assert "Redis cannot be asked" in output


# --- is anybody there? ---------------------------------------------------------------------------------------------


def kinds(*arguments: str) -> list[str]:
    return [finding["kind"] for finding in json.loads(doctor("--json", *arguments)[1])["left"]]


def test_a_queue_with_jobs_and_no_worker_is_found() -> None:
    waiting_job(tenant_queue())
    assert "no worker" not in kinds(), "the control: there is one"
    django_rq.get_connection("imports").flushall()
    assert kinds("--check", "workers") == ["no worker"]
    TenantQueue.objects.update(paused=True)
    assert kinds("--check", "workers") == [], "nobody is needed for what may not start"


def test_a_queue_with_plain_jobs_and_no_worker_is_found_too() -> None:
    django_rq.get_queue("imports").enqueue(jobs.add, 1, 2, tenant="acme")
    assert kinds("--check", "workers") == [], "the control: there is one"
    django_rq.get_connection("imports").delete("rq:workers")
    assert kinds("--check", "workers") == ["no worker"]


def test_what_only_wakes_a_worker_is_no_job() -> None:
    connection = django_rq.get_connection("imports")
    connection.flushall()
    connection.lpush("rq:queue:imports", NUDGE)
    assert kinds("--check", "workers") == []


def test_a_job_of_a_paused_tenant_that_had_been_admitted_needs_no_worker() -> None:
    row = tenant_queue()
    jobs.add.using(queue="imports").enqueue(1, 2, tenant="acme")
    assert fresh(row).jobs.get().state == State.QUEUED
    TenantQueue.objects.update(paused=True)
    django_rq.get_connection("imports").delete("rq:workers")
    assert kinds("--check", "workers") == []


def test_plain_jobs_are_looked_for_on_the_servers_that_answer() -> None:
    django_rq.get_queue("reports").enqueue(jobs.add, 1, 2, tenant="acme")
    django_rq.get_connection("reports").delete("rq:workers")
    away = {"imports": {"URL": "redis://127.0.0.1:1/0"}, "reports": settings.RQ_QUEUES["reports"]}
    with override_settings(RQ_QUEUES=away):
        found = [(finding.kind, finding.queue) for finding in diagnosis.findings("workers")]
    assert found == [("no worker", "reports"), ("redis", "imports")]


def test_workers_that_take_no_other_job_are_none() -> None:
    waiting_job(tenant_queue())
    worker = worker_on_record("works-for-imports-too")
    for name in ("works-for-imports", "works-for-imports-too"):
        worker.connection.hset(f"rq:worker:{name}", "shutdown_requested_date", "2026-01-01T00:00:00.000000Z")
    code, output = doctor("--check", "workers")
    assert (code, "of its 2 workers none takes another job" in output) == (1, True)


# A worker of this host: what the probe of a container asks.


def test_a_worker_of_this_host_is_found_alive(workers: Workers) -> None:
    django_rq.get_connection("imports").flushall()
    assert kinds("--here") == ["no worker here"]
    workers.start()
    assert doctor("--here") == (0, "all is well\n")


def test_a_worker_of_another_host_does_not_count() -> None:
    for name in ("works-for-imports", "works-for-reports"):
        django_rq.get_connection("imports").hset(f"rq:worker:{name}", "hostname", "elsewhere")
    assert kinds("--here") == ["no worker here"]


def test_a_worker_that_is_silent_does_not_count() -> None:
    django_rq.get_connection("imports").flushall()
    worker_on_record("frozen", says_so=False)
    assert kinds("--here") == ["no worker here"]


def test_a_worker_that_ends_after_its_job_still_counts() -> None:
    """A probe that failed would take the rest of its time away."""
    django_rq.get_connection("imports").flushall()
    worker = worker_on_record("leaving")
    worker.connection.hset(worker.key, "shutdown_requested_date", "2026-01-01T00:00:00.000000Z")
    assert kinds("--here") == []


def test_a_redis_out_of_reach_restarts_no_worker() -> None:
    with override_settings(RQ_QUEUES={"imports": {"URL": "redis://127.0.0.1:1/0"}}):
        assert doctor("--here")[0] == 0


@pytest.mark.parametrize("unusable", [{"URL": ""}, {}])
def test_a_queue_that_leads_to_no_redis_hides_no_worker_that_is_missing(unusable: dict[str, str]) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": unusable}):
        worker_on_record("here")
        assert kinds("--here") == []
        django_rq.get_connection("imports").flushall()
        assert kinds("--here") == ["no worker here"]
        told = doctor("--check", "workers")[1]
        assert ("its settings in RQ_QUEUES lead to no Redis" in told, "does not answer" in told) == (True, False)


def test_whether_a_worker_is_here_asks_no_database(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        doctor("--here")


@pytest.mark.parametrize("arguments", [("--here",), ("--check", "counters")])
def test_a_check_of_the_project_that_asks_a_database_away_is_not_in_its_way(arguments: tuple[str, ...]) -> None:
    """On the command line a command begins with Django's system checks."""

    def asks(**_: Any) -> list[CheckMessage]:
        raise OperationalError("connection refused")

    registry.register(asks, "of the project")
    try:
        call_command("slots_doctor", *arguments, skip_checks=False, stdout=StringIO())
    finally:
        registry.registered_checks.remove(asks)


@pytest.mark.parametrize("other", ["--fix", "--check=workers"])
def test_whether_a_worker_is_here_is_asked_alone(other: str) -> None:
    with pytest.raises(CommandError):
        doctor("--here", other)


def test_arguments_that_exclude_each_other_end_as_an_unknown_one_does() -> None:
    with pytest.raises(CommandError) as raised:
        doctor("--here", "--fix")
    assert raised.value.returncode == 2


def test_an_admitted_job_that_nobody_begins_is_found() -> None:
    job = waiting_job(tenant_queue(current_job=1), state=State.QUEUED, attempt=1)
    age(job, admitted_at=240)
    assert kinds("--check", "workers") == []
    age(job, admitted_at=360)
    assert kinds("--check", "workers") == ["queued too long"]


@pytest.mark.parametrize("overflow_queue", ["", "reports"])
def test_one_that_waits_for_busy_workers_is_not(overflow_queue: str) -> None:
    """A worker of RQ finds a job ahead, whatever the others take."""
    row = tenant_queue(current_job=1)
    age(waiting_job(row, state=State.QUEUED, attempt=1, rq_queue=overflow_queue), admitted_at=301)
    name = overflow_queue or "imports"
    worker = worker_on_record("stock", name, of_ours=False)
    for worker_name in (f"works-for-{name}", "stock"):
        worker.connection.hset(f"rq:worker:{worker_name}", "state", "busy")
    assert kinds("--check", "workers") == []
    assert attention.facts().queued_too_long == 0
    worker.set_state("idle")
    assert kinds("--check", "workers") == ["queued too long"], "the control"
    assert attention.facts().queued_too_long == 1


def test_nobody_sweeps_any_more() -> None:
    assert kinds("--check", "sweeps") == []
    SweepClaim.objects.update(until=ago(60))
    assert kinds("--check", "sweeps") == ["no sweep"]


def test_nobody_has_ever_swept_matters_once_there_are_jobs() -> None:
    SweepClaim.objects.all().delete()
    assert kinds("--check", "sweeps") == []
    waiting_job(tenant_queue())
    assert kinds("--check", "sweeps") == ["no sweep"]
    _, output = doctor("--check", "sweeps")
    assert output.startswith("no sweep: there are jobs"), "it concerns no tenant, no queue and no job"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite keeps no old versions of rows")
def test_a_transaction_that_stays_open_for_long_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "MINUTES_PINNED", 0)
    assert kinds("--check", "snapshots") == []
    with psycopg.connect(**_parameters()) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("SELECT 1")
        code, output = doctor("--check", "snapshots")
        assert (code, f"process {session.info.backend_pid} of" in output) == (1, True)
        monkeypatch.setattr(liveness, "MINUTES_PINNED", 10)
        assert kinds("--check", "snapshots") == [], "the control: it is not old yet"


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite prepares no transactions")
@pytest.mark.parametrize(("database", "minutes", "found"), [("own", 11, 1), ("own", 9, 0), ("other", 11, 0)])
def test_a_transaction_that_was_prepared_and_left_is_found(database: str, minutes: int, found: int) -> None:
    """A table in the place of the view of this name: most servers allow no prepared transactions."""
    with connection.cursor() as cursor:
        name = connection.settings_dict["NAME"] if database == "own" else "other"
        cursor.execute("CREATE TEMPORARY TABLE pg_prepared_xacts AS SELECT * FROM pg_catalog.pg_prepared_xacts")
        insert = """
            INSERT INTO pg_temp.pg_prepared_xacts VALUES ('7', 'order-7', now() - make_interval(mins => %s), 'ann', %s)
        """
        cursor.execute(insert, [minutes, name])
        try:
            meanings = [finding.meaning for finding in liveness.old_snapshots()]
            assert (liveness.oldest_snapshot() or 0) >= (60 * minutes if database == "own" else 0)
        finally:
            cursor.execute("DROP TABLE pg_temp.pg_prepared_xacts")
    text = "the prepared transaction 'order-7' of ann has been open for"
    assert sum(text in meaning for meaning in meanings) == found


def test_only_what_is_asked_for_is_checked() -> None:
    wrong_counter(), age(waiting_job(tenant_queue("beta"), state=State.SCHEDULED), run_after=16)
    assert kinds("--check", "counters") == ["counter"]
    assert kinds("--check", "counters,backlog") == ["counter", "overdue"]


def test_a_check_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(CommandError, match="there is no check 'moon'; there are counters, owners"):
        call_command("slots_doctor", "--check", "moon")
    for names in ("moon", ["moon"], ["counters", "moon"]):
        with pytest.raises(CommandError, match="there is no check 'moon'"):
            call_command("slots_doctor", check=names)


def test_code_may_name_checks_as_the_command_line_does() -> None:
    wrong_counter()
    for names in ("counters,counters", "rows, counters", ["counters"]):
        output = StringIO()
        with pytest.raises(SystemExit):
            call_command("slots_doctor", check=names, stdout=output)
        assert output.getvalue().count("counter:") == 1


def test_a_database_out_of_reach_has_an_exit_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise OperationalError("connection refused")

    monkeypatch.setitem(diagnosis.CHECKS, "sweeps", (away,))
    assert doctor("--check", "sweeps")[0] == 2


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no roles")
def test_a_role_without_rights_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE looks_on; SET ROLE looks_on")
        try:
            assert doctor() == (2, "")
        finally:
            cursor.execute("RESET ROLE; DROP ROLE looks_on")
    assert "the database cannot be asked: permission denied" in capsys.readouterr().err


# --- a Redis that cannot be asked ----------------------------------------------------------------------------------

AWAY = {"URL": "redis://127.0.0.1:1/0"}

ASK_REDIS = ["redis", "backlog", "workers"]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("check", ASK_REDIS)
def test_a_redis_that_is_away_is_found_by_each_check_that_asks_it(check: str, waits: bool) -> None:
    """Nothing that is in it has been seen, so that nobody may say that all is well."""
    if waits:
        waiting_job(tenant_queue())
    assert "redis" not in kinds("--check", check), "the control: it is there"
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "imports": AWAY}):
        left = [finding for finding in diagnosis.findings(check) if finding.kind == "redis"]
        assert ([finding.queue for finding in left], doctor("--check", check)[0]) == (["imports"], 1)


def test_one_that_several_checks_meet_is_told_of_once_for_each_queue() -> None:
    with override_settings(RQ_QUEUES={"imports": AWAY, "reports": AWAY}):
        found = [finding.queue for finding in diagnosis.findings(*ASK_REDIS) if finding.kind == "redis"]
    assert found == ["imports", "reports"]


def test_checks_that_do_not_ask_it_do_without() -> None:
    with override_settings(RQ_QUEUES={"imports": AWAY}):
        assert doctor("--check", ",".join(set(diagnosis.CHECKS) - set(ASK_REDIS))) == (0, "all is well\n")


UNUSABLE = [
    {"URL": "localhost:6379"},
    {"URL": "redis://localhost:port/0"},
    {"URL": "redis://localhost:6379/0?no_such_option=1"},
    {"URL": "redis://localhost:6379/0", "DEFAULT_TIMEOUT": "soon"},
    {"URL": None},
    {"HOST": "localhost", "PORT": "port", "DB": 0},
    {"HOST": "redis..svc", "PORT": 6379, "DB": 0},
    {"HOST": f"{'x' * 64}.example", "PORT": 6379, "DB": 0},
    {"HOST": ["localhost"], "PORT": 6379, "DB": 0},
    {"USE_REDIS_CACHE": "no such cache"},
    {},
    None,
    "redis://localhost:6379/0",
]
"""Values in `RQ_QUEUES` that say nothing of how to reach a Redis."""


@pytest.mark.parametrize("wrong", UNUSABLE)
def test_a_redis_that_no_setting_leads_to_is_found(wrong: Any) -> None:
    with override_settings(RQ_QUEUES=dict.fromkeys(settings.RQ_QUEUES, wrong)):
        age(waiting_job(tenant_queue(), state=State.QUEUED, attempt=1), admitted_at=3600)
        waiting_job(tenant_queue("other"))
        code, output = doctor()
    assert code == 1
    assert "RQ_QUEUES['imports'] does not say how to reach its Redis" in output


UNSEEN = {"HOST": "localhost", "PORT": 10**30, "DB": 0}
"""It is found wrong when its Redis is connected to, which counts as away then."""


@pytest.mark.parametrize("check", ASK_REDIS)
def test_a_redis_that_a_wrong_option_keeps_from_being_connected_to_is_found(check: str) -> None:
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": UNSEEN}):
        found = [finding.queue for finding in diagnosis.findings(check) if finding.kind == "redis"]
    assert found == ["reports"]


@pytest.mark.parametrize("wrong", [*UNUSABLE, UNSEEN])
def test_it_keeps_nobody_from_what_is_in_another_queue(wrong: Any) -> None:
    good = settings.RQ_QUEUES["imports"]
    with override_settings(RQ_QUEUES={"reports": wrong, "imports": good}):
        waiting_job(tenant_queue(queue="reports"))
        job = waiting_job(tenant_queue())
        assert {(one.kind, one.queue) for one in diagnosis.findings()} == {
            ("redis", "reports"),
            ("stranded", "imports"),
        }
        sweep_now()
        assert queue_directory.queues_beside("imports") == ["imports"]
    assert fresh(job).state == State.QUEUED
