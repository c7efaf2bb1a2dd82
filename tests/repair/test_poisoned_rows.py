"""A row that SQL from outside has spoilt harms nobody but its own job, and the doctor names it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DataError, connection
from django.db.models import CharField, Field, Model, TextField
from django.test import Client
from django.urls import reverse

from tenant_slots import queue_directory
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.models import (
    BulkChange,
    BulkChunk,
    JobDependency,
    KeptChange,
    QueueMinute,
    QueueTotal,
    State,
    SweepClaim,
    TenantJob,
    TenantQueue,
)
from tenant_slots.models.fields import Moment, StoredJSON
from tenant_slots.repair import doctor, steps, unreadable
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.finding import Finding
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tests import jobs
from tests.admin.site import JOBS, LIVE, QUEUES, change_page
from tests.factories import (
    another_process,
    counters_match,
    dead_process,
    fresh,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)
from tests.refusals import any_change_of, refused
from tests.repair.sweeps import sweep_now

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite keeps what it is given, as text"),
]

TIMES = ["infinity", "-infinity", "12024-01-01T00:00:00+00", "4000-01-01 00:00:00 BC", "9999-12-31T23:59:59-05:00"]
JSON = ["9" * 5000, "[" * 5000 + "]" * 5000, '"text"', "7", "[7]", '{"done": "x", "retry": 3}', "null"]
BIG = "1" + "0" * 400
LONG_AGO = "2001-01-01T00:00:00+00:00"
A_RUN = f'"started": null, "ended": "{LONG_AGO}", "worker": "", "error": null, "text": ""'
ODD_JSON = {
    "progress": [
        f'{{"done": {BIG}, "total": 1}}', f'{{"done": 1, "total": {BIG}}}', '{"done": 1}', '{"done": -1, "total": 2}',
    ],
    "options": [
        '{"timeout": 0}', f'{{"timeout": {BIG}}}', '{"timeout": 2147483648}', f'{{"result_ttl": {BIG}}}',
        f'{{"failure_ttl": -{BIG}}}', '{"unknown": {"attempt": 0}}', '{"unknown": {"since": "x", "attempt": 0}}',
        '{"unknown": {"since": "2026-01-01T00:00:00", "attempt": 0}}', '{"task": {"backend": "", "run_after": "soon"}}',
    ],
    "runs": [
        '[{"attempt": 1}]',
        f'[{{"number": 1, "attempt": {BIG}, {A_RUN}}}]', f'[{{"number": {BIG}, "attempt": 1, {A_RUN}}}]',
        '[{"number": 1, "attempt": 1, "started": null, "ended": "soon", "worker": "", "error": null, "text": ""}]',
        f'[{{"number": 1, "attempt": 1, {A_RUN.replace("+00:00", "")}}}]',
    ],
    "args": ["[" * 800 + "]" * 800],
}  # fmt: skip
"""JSON of the right form whose numbers and depth are beyond what our own code writes."""
ODD_HISTORIES = [f"[[{BIG}, 5]]", f"[[5, {BIG}]]", "[[-1e300, 5]]", "[[5, 1e300]]", "[[5, -1]]"]
NO_RQ_IDS = ["a b/", "\r\n", "\u202e", "x" * 200]
TEXTS = ["", "nowhere", "\u202e<script>", "a\r\nb", "%s {0}"]


def fields(model: type[Model], *kinds: type[Field[Any, Any]]) -> list[str]:
    """The names of these columns, those of a later model too."""
    return [field.name for field in model._meta.concrete_fields if isinstance(field, kinds)]


JOB_TIMES = fields(TenantJob, Moment)
JOB_JSON = fields(TenantJob, StoredJSON)
JOB_WORDS = ["kind", "state"]
UNIQUE_TEXTS = ["rq_job_id", "unique_key"]
JOB_TEXTS = [name for name in fields(TenantJob, CharField, TextField) if name not in (*JOB_WORDS, *UNIQUE_TEXTS)]
QUEUE_TIMES = fields(TenantQueue, Moment)
QUEUE_TEXTS = fields(TenantQueue, CharField, TextField)


def write(row: Any, column: str, value: str) -> None:
    table = connection.ops.quote_name(row._meta.db_table)
    key = connection.ops.quote_name(row._meta.pk.column)
    with connection.cursor() as cursor:
        # Names of our own tables and columns.
        cursor.execute(f"UPDATE {table} SET {column} = %s WHERE {key} = %s", [value, row.pk])  # noqa: S608


def job_in(state: State, tenant: str) -> TenantJob:
    row = tenant_queue(tenant, max_job=2)
    if state == State.RUNNING:
        return running_job(row, another_process())
    return waiting_job(row, state=state)


TABLES = list(apps.get_app_config("tenant_slots").get_models())
ELSEWHERE = [model for model in TABLES if model not in (TenantJob, TenantQueue)]
TIMES_ELSEWHERE = [(model, column) for model in ELSEWHERE for column in fields(model, Moment)]
JSON_ELSEWHERE = [(model, column) for model in ELSEWHERE for column in fields(model, StoredJSON)]

STATES = [State.SCHEDULED, State.WAITING, State.RUNNING, State.FAILED]

OF_JOBS = [
    *[(JOB_TIMES, value) for value in TIMES],
    *[(JOB_JSON, value) for value in JSON],
    *[(JOB_TEXTS, value) for value in TEXTS],
    *[([column], value) for column in JOB_WORDS for value in ("", "nowhere")],
    *[([column], value) for column, values in ODD_JSON.items() for value in values],
    *[(["rq_job_id"], value) for value in NO_RQ_IDS],
    (["unique_key"], TEXTS[1]),
]
OF_QUEUES = [
    *[(QUEUE_TIMES, value) for value in TIMES],
    *[(["limit_history"], value) for value in (*JSON, *ODD_HISTORIES)],
    *[([column], value) for column in QUEUE_TEXTS for value in TEXTS],
]


def poison_everything() -> list[TenantJob]:
    """One job for each poison and each state that it may meet, and one for each of a tenant queue."""
    spoilt = []
    for number, (columns, value) in enumerate(OF_JOBS):
        for state in STATES:
            job = job_in(state, f"poisoned {number} {state}")
            spoil(job, columns, value if columns[0] not in UNIQUE_TEXTS else f"{value}{job.pk}"[-64:])
            spoilt.append(job)
    for number, (columns, value) in enumerate(OF_QUEUES):
        name = "reports" if "tenant" in columns else "imports"
        job = waiting_job(tenant_queue(f"queue {number}", queue=name, max_job=1, paused="resume_at" in columns))
        spoil(job.tenant_queue, columns, value)
        spoilt.append(job)
    for model, column in TIMES_ELSEWHERE:
        for value in TIMES:
            write(row_elsewhere(model), column, value)
    return spoilt


def spoil(row: Any, columns: list[str], value: str) -> None:
    for column in columns:
        if len(value) <= (row._meta.get_field(column).max_length or len(value)):
            write(row, column, value)


@pytest.fixture
def _nothing_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record.getMessage() for record in caplog.records if "step" in record.getMessage()]


@pytest.mark.usefixtures("_nothing_failed")
def test_poisoned_rows_of_every_kind_leave_everybody_else_alone(boss: Client) -> None:
    poison_everything()
    well = tenant_queue("well", queue="reports", max_job=1)
    due, dead = waiting_job(well, state=State.SCHEDULED), running_job(tenant_queue("dead"), dead_process())
    TenantJob.objects.filter(pk=due.pk).update(run_after="2001-01-01T00:00:00+00:00")
    for _ in range(2):
        assert sweep_now().failed == []
    assert fresh(due).state == State.QUEUED
    assert fresh(dead).attempt == 2
    call_command("slots_status", stdout=io.StringIO())
    well.set_limit(5)
    job = jobs.add.enqueue(1, 2, tenant="well")
    for url in (QUEUES, JOBS, change_page(well), change_page(job), f"{LIVE}?rows={well.pk}", f"{JOBS}?state=running"):
        assert boss.get(url).status_code == 200, url
    work("reports")
    assert fresh(job).state == State.FINISHED
    assert doctor.findings()


def test_every_page_of_a_poisoned_row_is_shown(boss: Client) -> None:
    for job in poison_everything():
        page = change_page(job.tenant_queue if job.state == State.WAITING else job)
        assert boss.get(page).status_code == 200, job.tenant_queue.tenant


@pytest.mark.parametrize(("model", "url", "live"), [(TenantQueue, QUEUES, LIVE), (TenantJob, JOBS, f"{JOBS}live/")])
def test_every_page_of_a_list_with_poisoned_rows_is_shown_and_kept_up_to_date(
    model: type[Model], url: str, live: str, boss: Client
) -> None:
    poison_everything()
    shown: set[int] = set()
    for number in range(1, 2 + model._base_manager.count() // 100):
        page = boss.get(url, {"p": number})
        assert page.status_code == 200
        rows = {row.pk for row in page.context["cl"].result_list}
        assert boss.get(live, {"rows": ",".join(map(str, rows))}).status_code == 200
        shown |= rows
    assert shown == set(model._base_manager.values_list("pk", flat=True))


def test_control_the_driver_loads_no_row_of_a_query_that_finds_such_a_time() -> None:
    write(job_in(State.SCHEDULED, "poisoned"), "run_after", "infinity")
    with connection.cursor() as cursor:
        cursor.execute("SELECT run_after FROM tenant_slots_tenantjob")
        with pytest.raises(DataError):
            cursor.fetchall()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("args", '{"a": 1}'),
        ("args", "9" * 5000),
        ("kwargs", "[]"),
        ("kwargs", '{"b": ' + "[" * 5000 + "]" * 5000 + "}"),
        ("options", "3"),
        ("options", '{"retry": {"max": "x"}}'),
        ("options", '{"retry": {"max": 3, "intervals": [-1e300]}}'),
        ("options", '{"retry": {"max": -3, "intervals": [1]}}'),
    ],
)
def test_a_job_that_cannot_be_read_fails_alone_and_says_why(column: str, value: str) -> None:
    spoilt, other = jobs.add.enqueue(1, 2, tenant="poisoned"), jobs.add.enqueue(1, 2, tenant="well")
    write(spoilt, column, value)
    work("reports")
    assert fresh(other).state == State.FINISHED
    assert fresh(spoilt).state == State.FAILED
    assert f"UnreadableColumn: {column} of job {spoilt.uuid}" in spoilt.error
    assert counters_match()


def test_a_job_with_options_that_cannot_be_read_gives_its_slot_back() -> None:
    row = tenant_queue("poisoned", queue="reports", max_job=1)
    spoilt, other = waiting_job(row), waiting_job(row)
    write(spoilt, "options", "[]")
    sweep_now()
    TenantJob.objects.filter(pk=spoilt.pk).update(admitted_at="2001-01-01T00:00:00+00:00")
    sweep_now()
    assert (fresh(spoilt).state, fresh(other).state) == (State.FAILED, State.QUEUED)
    assert "options of job" in spoilt.error


@pytest.mark.parametrize("rq_id", NO_RQ_IDS)
def test_a_job_whose_id_is_none_of_rq_fails_alone_wherever_rq_is_asked_for_it(rq_id: str) -> None:
    running = running_job(tenant_queue("running"), dead_process())
    lost = waiting_job(tenant_queue("lost", current_job=1), state=State.QUEUED, admitted_at=LONG_AGO)
    waiting, due, canceled = (waiting_job(tenant_queue(name)) for name in ("waiting", "due", "canceled"))
    TenantJob.objects.filter(pk=due.pk).update(state=State.SCHEDULED, run_after=LONG_AGO)
    spoilt = [running, lost, waiting, due, canceled]
    for job in spoilt:
        write(job, "rq_job_id", f"{rq_id}{job.pk}")
    other = waiting_job(tenant_queue("other"), state=State.QUEUED, admitted_at=LONG_AGO)
    TenantQueue.objects.filter(tenant="other").update(current_job=1)
    assert fresh(canceled).cancel()
    report = sweep_now()
    assert (report.failed, report.repushed) == ([], 1)
    assert other.last_rq_id in queue_directory.queue_named("imports").job_ids
    states = [State.FAILED, State.FAILED, State.FAILED, State.FAILED, State.CANCELED]
    assert [fresh(job).state for job in spoilt] == states
    assert counters_match()


def unreadable_rows() -> list[Finding]:
    return [one for one in doctor.findings("rows") if one.kind == "unreadable"]


def named_by_the_doctor() -> set[tuple[str, str]]:
    return {(one.kind, one.job or one.tenant) for one in doctor.findings()}


@pytest.mark.parametrize("column", JOB_TIMES)
def test_the_doctor_names_a_job_with_a_time_out_of_the_calendar(column: str) -> None:
    spoilt = []
    for number, value in enumerate(TIMES):
        for state in (State.SCHEDULED, State.FAILED):
            spoilt.append(job_in(state, f"poisoned {number} {state}"))
            write(spoilt[-1], column, value)
            job_in(state, f"well {number} {state}")
    found = unreadable_rows()
    assert {one.job for one in found} == {str(job.uuid) for job in spoilt}
    assert all(f"read: {column};" in one.meaning for one in found)


NO_JSON_OF_OURS = ["9" * 5000, "[" * 5000 + "]" * 5000, '"text"', "7"]


@pytest.mark.parametrize("state", [State.WAITING, State.FAILED])
@pytest.mark.parametrize("column", JOB_JSON)
def test_the_doctor_names_a_job_with_json_that_cannot_be_read(column: str, state: State) -> None:
    spoilt = [job_in(state, f"poisoned {number}") for number in range(2 if column == "result" else 4)]
    job_in(state, "well")
    assert unreadable_rows() == []
    for job, value in zip(spoilt, NO_JSON_OF_OURS, strict=False):  # a result may be any text and any number
        write(job, column, value)
    found = unreadable_rows()
    assert {one.job for one in found} == {str(job.uuid) for job in spoilt}
    assert all(f"read: {column};" in one.meaning for one in found)


def test_of_jobs_that_have_ended_the_json_of_the_latest_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreadable, "LATEST_JOBS", 2)
    old, _, new = (job_in(State.FAILED, name) for name in ("old", "between", "new"))
    for job in (old, new):
        write(job, "result", "9" * 5000)
        write(job, "args", "7")
    assert {one.tenant for one in unreadable_rows()} == {"new"}


@pytest.mark.parametrize(("column", "value"), [*[(column, "infinity") for column in QUEUE_TIMES],
                                               ("limit_source", "nowhere"), ("limit_history", "7")])  # fmt: skip
def test_the_doctor_names_a_tenant_queue_that_cannot_be_read(column: str, value: str) -> None:
    row, _ = tenant_queue("poisoned"), tenant_queue("well")
    write(row, column, value)
    found = [one for one in doctor.findings() if one.kind == "unreadable"]
    assert [one.tenant for one in found] == ["poisoned"]
    assert column in found[0].meaning


def test_the_doctor_names_a_tenant_queue_whose_queue_rq_lacks_and_whose_jobs_hold_up_nobody() -> None:
    lost, other = (waiting_job(tenant_queue(tenant, queue="reports")) for tenant in ("poisoned", "well"))
    write(lost.tenant_queue, "queue", "nowhere")
    for _ in range(2):
        sweep_now()
        TenantJob.objects.queued().update(admitted_at="2001-01-01T00:00:00+00:00")
    work("reports")
    assert fresh(other).state == State.FINISHED
    assert ("unknown queue", "poisoned") in named_by_the_doctor()


@pytest.mark.parametrize("column", ["kind", "state"])
def test_the_doctor_names_a_job_of_no_kind_and_in_no_state_and_cancel_comes_back(
    column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = job_in(State.WAITING, "poisoned"), job_in(State.WAITING, "well")
    write(job, column, "nowhere")
    found = [one for one in doctor.findings("rows") if one.kind == "unreadable"]
    assert [(one.job, one.tenant) for one in found] == [(str(job.uuid), "poisoned")]
    assert column in found[0].meaning
    looks: list[int] = []
    refresh = TenantJob.refresh_from_db

    def refresh_three_times(*args: Any, **kwargs: Any) -> None:
        looks.append(1)
        assert len(looks) <= 3, "it would ask for ever"
        refresh(*args, **kwargs)

    monkeypatch.setattr(TenantJob, "refresh_from_db", refresh_three_times)
    assert job.cancel() == (column == "kind")


def row_elsewhere(model: type[Model]) -> Model:
    number = model._base_manager.count()
    if model is KeptChange:
        row, _ = TenantQueue.objects.get_or_create(tenant="history", queue="imports")
        row.set_limit(5 + number)
        return KeptChange.objects.latest("pk")
    if model is QueueMinute:
        return QueueMinute.objects.create(queue="imports" if number % 2 else "", minute=minute(number))
    if model is SweepClaim:
        return SweepClaim.objects.create(name=f"host {number}", until=LONG_AGO)
    change = BulkChange.objects.create(
        total=1, job=UUID(int=1), site="admin", model="tenant_slots.tenantqueue", action="pause"
    )
    return BulkChunk.objects.create(change=change) if model is BulkChunk else change


def minute(number: int) -> datetime:
    return datetime(2001, 1, 1, tzinfo=UTC) + timedelta(minutes=number)


def is_named(found: Finding, row: Model, column: str) -> bool:
    is_of_it = found.meaning.startswith(f"row {row.pk} of {row._meta.db_table}: ")
    return (
        is_of_it
        and found.tenant == ("history" if isinstance(row, KeptChange) else "")
        and f"read: {column};" in (found.meaning)
    )


@pytest.mark.parametrize(("model", "column"), TIMES_ELSEWHERE)
def test_the_doctor_names_such_a_time_in_any_other_table_and_the_admin_is_shown(
    model: type[Model], column: str, boss: Client
) -> None:
    rows = [row_elsewhere(model) for _ in TIMES]
    assert unreadable_rows() == []
    for row, value in zip(rows, TIMES, strict=True):
        write(row, column, value)
    found = unreadable_rows()
    assert len(found) == len(TIMES)
    assert all(any(is_named(one, row, column) for one in found) for row in rows)
    for name in ("changelist", "overview", "workers", "bulk_changes"):
        assert boss.get(reverse(f"admin:tenant_slots_tenantqueue_{name}")).status_code == 200, name


@pytest.mark.parametrize(("model", "column"), JSON_ELSEWHERE)
def test_the_doctor_names_json_of_any_other_table_that_is_none_of_ours(model: type[Model], column: str) -> None:
    row = row_elsewhere(model)
    write(row, f'"{column}"', "7")
    (found,) = unreadable_rows()
    assert is_named(found, row, column)


@pytest.mark.parametrize(("model", "column"), [(KeptChange, "what"), (BulkChange, "ending")])
def test_the_doctor_names_a_word_that_means_nothing(model: type[Model], column: str) -> None:
    row, _ = row_elsewhere(model), row_elsewhere(model)
    assert unreadable_rows() == []
    write(row, column, "nowhere")
    (found,) = unreadable_rows()
    assert is_named(found, row, column)


def test_each_table_that_there_is_was_thought_of() -> None:
    """One more needs a row here, unless nothing of it is read that could be spoilt."""
    without = {QueueTotal, JobDependency}
    spoilt = {TenantJob, TenantQueue, *(model for model, _ in (*TIMES_ELSEWHERE, *JSON_ELSEWHERE))}
    assert spoilt | without == set(TABLES)


def test_what_the_doctor_names_is_printed_with_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    job = job_in(State.SCHEDULED, "poisoned")
    write(job, "run_after", "infinity")
    with pytest.raises(SystemExit):
        call_command("slots_doctor", "--fix", "--json", "--check", ",".join(sorted(doctor.CHECKS.keys() - {"sweeps"})))
    document = json.loads(capsys.readouterr().out)
    assert [one["job"] for one in document["left"]] == [str(job.uuid)]


# --- one step, one row ---------------------------------------------------------------------------------------------


def test_a_step_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: Report, contact: Contact) -> None:
        raise LookupError("no such thing")

    def broken_query(report: Report, contact: Contact) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 'infinity'::timestamptz")
            cursor.fetchall()

    running_job(tenant_queue(), dead_process())
    monkeypatch.setattr(steps, "LOCAL_STEPS", (broken, broken_query, *steps.LOCAL_STEPS))
    report = sweep_now()
    assert report.reclaimed == 1
    assert [sentence.partition(":")[0] for sentence in report.failed] == ["broken", "broken_query"]


@pytest.mark.parametrize("as_error", ["XX001", "0A000", "P0001"])
def test_a_row_that_cannot_even_be_read_ends_its_step_alone(as_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on a page of the disk that is corrupted."""

    def corrupted(report: Report, contact: Contact) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'corrupted' USING ERRCODE = '{as_error}'; END $$")

    running_job(tenant_queue(), dead_process())
    monkeypatch.setattr(steps, "LOCAL_STEPS", (corrupted, *steps.LOCAL_STEPS))
    report = sweep_now()
    assert (report.reclaimed, [sentence.partition(":")[0] for sentence in report.failed]) == (1, ["corrupted"])


def test_a_server_that_takes_no_writes_ends_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a standby that a session was led to by a failover."""
    reached = []

    def write_nothing(report: Report, contact: Contact) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
            cursor.execute("DELETE FROM tenant_slots_tenantjob")

    monkeypatch.setattr(steps, "LOCAL_STEPS", (write_nothing, lambda report, contact: reached.append(1)))
    one = Sweeper("test")
    assert one.sweep_if_due() is None
    assert (reached, one.contact.breaks) == ([], 1)


def test_a_server_that_takes_no_writes_and_that_a_trigger_has_asked_ends_none() -> None:
    """As postgres_fdw passes it on after a failover there: a dead owner's slot comes back behind such a row."""
    refusing, other = (running_job(tenant_queue(tenant), dead_process()) for tenant in ("whale", "acme"))
    with refused(any_change_of(refusing), "read_only_sql_transaction"):
        one = Sweeper("test")
        report = one.sweep_if_due()
    assert (report and report.reclaimed, one.contact.breaks) == (1, 0)
    assert fresh(refusing).state == State.RUNNING != fresh(other).state


def test_a_lost_database_ends_a_sweep_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def cut_off(report: Report, contact: Contact) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    monkeypatch.setattr(steps, "LOCAL_STEPS", (cut_off, lambda report, contact: reached.append(1)))
    one = Sweeper("test")
    assert one.sweep_if_due() is None
    assert (reached, one.contact.breaks) == ([], 1)


def test_a_sweep_whose_time_is_over_goes_on_with_no_other_step(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def too_long(report: Report, contact: Contact) -> None:
        raise SweepTimeout("too long")

    monkeypatch.setattr(steps, "LOCAL_STEPS", (too_long, lambda report, contact: reached.append(1)))
    assert Sweeper("test").sweep_if_due() is None
    assert reached == []


def test_a_row_that_fails_does_not_stop_the_others_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = [running_job(tenant_queue(f"tenant {number}"), dead_process()) for number in range(3)]
    release = steps.lost_runs.transitions.release

    def breaks_once(job: TenantJob, **changes: Any) -> Any:
        if job.pk == dead[0].pk:
            raise LookupError("no such thing")
        return release(job, **changes)

    monkeypatch.setattr(steps.lost_runs.transitions, "release", breaks_once)
    assert sweep_now().reclaimed == 2
    assert fresh(dead[0]).state == State.RUNNING
