"""Every record of ours has fields for what it is about, a job above all, and never what the job was called with."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Callable, Iterator
from logging.config import DictConfigurator
from pathlib import Path
from typing import Any

import pytest
import structlog
from django.db import IntegrityError, OperationalError, connection
from rq import Retry

import tenant_slots
from tenant_slots import logs, slots
from tenant_slots.exceptions import TenantQueueLocked
from tenant_slots.models import State, TenantJob
from tenant_slots.repair.one_row import unless_locked
from tenant_slots.running import recording
from tenant_slots.running.progress import Reporter
from tenant_slots.tasks.context import entered
from tenant_slots.tasks.tenant_busy import TenantBusy
from tenant_slots.testing import run_jobs
from tenant_slots.workers import kept
from tenant_slots.workers.kept import Ending
from tests import jobs
from tests.factories import another_process, dead_process, fresh, running_job, tenant_queue, waiting_job, work
from tests.refusals import constrained
from tests.repair.sweeps import sweep_now

PACKAGE = Path(tenant_slots.__file__).parent

ABOUT_NO_SINGLE_JOB = {
    "Redis or the database is away, or spoilt": {
        ("fair_order.py", "what was in the place of the order of tenants is deleted from Redis: %s"),
        ("repair/steps.py", "what runs in these queues is not charged yet, as Redis cannot be asked: %s"),
        ("repair/sweeper.py", "the sweep cannot ask Redis, the rest of it goes on: %s"),
        ("transitions.py", "Redis cannot be asked for the order of tenants, so a sweep offers them again: %s"),
        ("workers/base.py", "Redis does not answer, the worker waits for it: %s"),
        ("workers/telling.py", "Redis is out of reach: %s"),
        ("workers/base.py", "Redis refuses what a worker needs, it is asked again: %s"),
        ("workers/base.py", "the database could not be reached at start; jobs wait until it can"),
        ("db/prepared.py", "there is a pooler before the database, so that each statement is planned anew"),
        ("workers/turns.py", "the database did not answer when jobs were to be admitted for others: %s"),
        ("workers/turns.py", "who admits jobs will notice by itself that worker %s is gone: %s"),
    },
    "a sweep, or a step of it": {
        ("repair/contact.py", "the database's clock was set forward; nobody is called stale for a lease"),
        ("repair/doctor.py", "the check of %s has failed"),
        ("repair/pruning.py", "an ended job is kept, as the project does not let it go: %s"),
        ("repair/steps.py", "the database's clock was set back, or SQL changed times: %s jobs had none that has come"),
        (
            "repair/together.py",
            "the sweep leaves out jobs that cannot be %s: %s, the first one with the primary key %s",
        ),
        ("repair/sweeper.py", "a step of the sweep failed, the rest of it goes on: %s"),
        ("repair/sweeper.py", "sweep: %s"),
        ("repair/sweeper.py", "the sweep failed"),
        ("repair/sweeper.py", "the sweep was given up, the next one goes on: %s"),
        ("transitions.py", "a sweep tells jobs that others have ended: %s"),
        ("transitions.py", "a sweep tells jobs that others have ended, those that the database lets change"),
        ("transitions.py", "a sweep admits jobs for workers that wait, the database did not answer: %s"),
    },
    "many jobs of a tenant queue": {
        ("admin/bulk/run.py", "what a bulk change has done is not in the history of tenant queue %s"),
    },
    "a process": {
        ("signals.py", "a receiver has raised what is to end its process; those behind it are not told"),
        ("signals.py", "a receiver of tenant_slots itself has failed"),
        ("db/commits.py", "a step after a commit failed; the sweep will make up for it"),
        ("parting.py", "what a process of jobs was to do last has failed"),
        ("parting.py", "what a process of jobs was to do last is left undone: %s"),
        ("workers/aside.py", "there is no room for a process that does something aside: %s"),
        ("workers/scheduler.py", "there is no room for a process of RQ's scheduler: %s"),
        ("workers/base.py", "no session can be made, as a receiver of connection_created fails: jobs of tenants wait"),
        ("workers/aside.py", "RQ's registries are not cleaned: that failed, or took too long"),
        ("workers/aside.py", "receivers of connection_created took too long, for the %s. time"),
        ("workers/aside.py", "what they set is missing in the sessions in which this worker keeps its books"),
        ("workers/base.py", "the database did not answer when its settings were to be learnt: %s"),
        ("workers/records.py", "RQ could not be told how jobs have ended"),
        ("workers/children.py", "process %s, which did something aside for a worker, failed"),
        ("workers/heartbeats.py", "a round of heartbeats failed"),
        ("workers/presence.py", "a worker that runs a job could not say that it is there"),
        ("workers/supervisor.py", "what follows from the end of a job took too long, or ended its process"),
    },
}
"""Each with the place and the text, so that a new record has to decide."""


LOGGERS = ("logger.", "self.log.")
"""Ours, and RQ's, by which some records of ours are written in place of RQ's own."""


MADE_BY_LOGS = {
    *("_about(given)", "_about(job, queue)"),
    *("about_jobs", "about_queue", "about_row", "about_task", "known"),
}
"""Expressions for `extra` that are made by `logs` right before, or in a function of their own."""


def calls() -> Iterator[tuple[str, str, bool]]:
    """File, text and whether it has `extra`, of each call of a logger."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            texts = {
                target.id: node.value.value
                for node in (*tree.body, *ast.walk(function))
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(LOGGERS):
                    if node.func.attr in ("isEnabledFor",):  # type: ignore[attr-defined]
                        continue
                    text = node.args[node.func.attr == "log"]  # type: ignore[attr-defined]
                    shown = text.value if isinstance(text, ast.Constant) else texts[ast.unparse(text)]
                    has_extra = any(keyword.arg == "extra" for keyword in node.keywords)
                    yield str(path.relative_to(PACKAGE)), str(shown), has_extra


def test_every_record_names_its_job_or_is_known_to_be_about_none() -> None:
    about_none = set().union(*ABOUT_NO_SINGLE_JOB.values())
    found = set(calls())
    assert len(found) > 50
    assert "workers/records.py" in {file for file, text, _ in found if text.startswith("Successfully completed")}
    bare = {(file, text) for file, text, has_extra in found if not has_extra}
    assert bare - about_none == set(), "give these extra=logs.about(job), or say here why not"
    assert about_none - bare == set(), "these have fields by now, or are gone"


def test_extra_comes_from_logs_alone() -> None:
    """Which knows what must never be in it."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).startswith(LOGGERS)):
                continue
            for shown in (ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "extra"):
                is_known = shown in MADE_BY_LOGS
                assert shown.startswith("logs.about") or is_known, (path, shown)


# --- records as they are written ------------------------------------------------------------------------------------


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Iterator[list[logging.LogRecord]]:
    caplog.set_level(logging.DEBUG, "tenant_slots")
    kept: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = kept.append  # type: ignore[method-assign]
    logging.getLogger("tenant_slots").addHandler(handler)
    yield kept
    logging.getLogger("tenant_slots").removeHandler(handler)


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in logs.FIELDS}


def of(records: list[logging.LogRecord], text: str) -> logging.LogRecord:
    (record,) = [record for record in records if text in record.getMessage()]
    return record


@pytest.mark.django_db(transaction=True)
def test_each_step_of_a_job_is_a_record_with_its_fields(records: list[logging.LogRecord]) -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    known = {"task": "tests.jobs.add", "tenant": "acme", "queue": "reports", "job": str(job.uuid)}
    for text, attempt in (("enqueued", 0), ("admitted", 1), ("started", 1), ("finished", 1)):
        assert fields(of(records, f"{text} tests.jobs.add")) == {**known, "attempt": attempt}


@pytest.mark.django_db(transaction=True)
def test_a_failure_and_a_reclaim_have_them_too(records: list[logging.LogRecord]) -> None:
    row = tenant_queue()
    failed = jobs.fail.enqueue("other")
    work()
    lost = running_job(row, dead_process())
    sweep_now()
    assert fields(of(records, "failed tests.jobs.fail"))["job"] == str(failed.uuid)
    put_back = fields(of(records, "goes back to"))
    assert (put_back["job"], put_back["tenant"], put_back["attempt"]) == (str(lost.uuid), "acme", 1)


@pytest.mark.django_db(transaction=True)
def test_an_outage_at_the_end_of_a_job_is_about_that_job(
    records: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = running_job(tenant_queue(), another_process())
    release = slots.release

    def away_once(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(slots, "release", release)
        raise OperationalError("connection refused")

    monkeypatch.setattr(slots, "release", away_once)
    monkeypatch.setattr(recording, "PAUSES", (0, 60))
    assert recording.record_end(job, {"state": State.FINISHED}, lambda: None)
    written = fields(of(records, "the database did not answer"))
    assert (written["job"], written["task"], written["attempt"]) == (str(job.uuid), job.task, job.attempt)


def test_a_record_about_nothing_in_particular_has_the_fields_too(records: list[logging.LogRecord]) -> None:
    """Or a format that names them could not be used: logging drops a record that lacks one."""
    logging.getLogger("tenant_slots").info("sweep: nothing")
    logging.getLogger("tenant_slots.of_the_project").info("another logger")
    ours, other = records
    assert fields(ours) == dict.fromkeys(logs.FIELDS)
    assert logging.Formatter("%(tenant)s %(job)s %(message)s").format(ours) == "None None sweep: nothing"
    assert not set(logs.FIELDS) & set(vars(other)), "control: nobody completes it"


def test_all_of_ours_log_by_the_one_logger() -> None:
    """A filter of a logger completes no record of the loggers below it."""
    named = [re.findall(r"getLogger\((.*?)\)", path.read_text()) for path in PACKAGE.rglob("*.py")]
    assert set().union(*named) == {'"tenant_slots"'}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("error", [TenantQueueLocked(tenant_queue=1, seconds=1), ValueError("spoilt")])
def test_what_a_sweep_leaves_out_is_named(records: list[logging.LogRecord], error: Exception) -> None:
    row = tenant_queue()
    job = waiting_job(row)

    def change(_: object) -> None:
        raise error

    unless_locked(change, job)
    unless_locked(change, row)
    unless_locked(change, row.pk)
    of_job, of_row, of_key = map(fields, records)
    assert (of_job["job"], of_job["tenant"]) == (str(job.uuid), "acme")
    assert of_row == {**dict.fromkeys(logs.FIELDS), "tenant": "acme", "queue": "imports"}
    assert of_key == dict.fromkeys(logs.FIELDS)


TOO_LONG = "a rest lasts from a second to a day"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("run", [work, run_jobs])
@pytest.mark.parametrize("task", ["wants_a_week", "wants_a_week_slowly"])
def test_what_is_noted_while_a_job_is_called_is_about_that_job(
    records: list[logging.LogRecord], run: Callable[[], Any], task: str
) -> None:
    job = getattr(jobs, task).enqueue("acme")
    run()
    assert fields(of(records, TOO_LONG)) == {**logs.fields_of(job), "attempt": 1}


def test_what_is_noted_outside_of_jobs_is_about_none(records: list[logging.LogRecord]) -> None:
    TenantBusy(seconds=7 * 86400)
    assert fields(of(records, TOO_LONG)) == dict.fromkeys(logs.FIELDS)


@pytest.mark.django_db
def test_a_job_is_here_until_it_has_been_called() -> None:
    row = tenant_queue()
    outer, inner = waiting_job(row), waiting_job(row)
    with entered(outer):
        with entered(inner):
            assert logs.about_here()["job"] == str(inner.uuid)
        assert logs.about_here()["job"] == str(outer.uuid)
    assert logs.about_here() == dict.fromkeys(logs.FIELDS)


@pytest.mark.django_db(transaction=True)
def test_no_record_has_an_argument(records: list[logging.LogRecord]) -> None:
    jobs.add.enqueue(471100815, 1, tenant="acme")
    work()
    assert len(records) >= 4
    shown = [f"{record.getMessage()} {vars(record)}" for record in records if record.name == "tenant_slots"]
    assert not [text for text in shown if "471100815" in text]


@pytest.mark.django_db(transaction=True)
def test_nor_has_one_of_a_result_that_a_row_cannot_keep(records: list[logging.LogRecord]) -> None:
    jobs.gives_by_number.enqueue("acme", "471100815")
    work()
    record = of(records, "the result is kept by RQ only")
    assert "a key of type int" in record.getMessage()
    assert "471100815" not in record.getMessage()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("run", [work, run_jobs])
def test_nor_has_one_of_a_job_that_is_to_run_again(records: list[logging.LogRecord], run: Callable[[], Any]) -> None:
    """What its function raises may quote any, and of a row that the database refuses the last line is that row."""
    jobs.fail.using(retry=Retry(max=1)).enqueue("acme", "there is none\nDETAIL:  (471100815)")
    run()
    assert of(records, "goes back to").getMessage().endswith(" goes back to waiting: ValueError")
    assert not [record for record in records if "471100815" in record.getMessage()]


def report(job: TenantJob) -> None:
    Reporter(job)._write({"progress": {"done": 1, "total": 2}})


def record_end(job: TenantJob) -> None:
    assert not [*kept.settle([Ending((job.pk, job.token), {"state": State.FINISHED})])]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite says nothing of the row")
@pytest.mark.parametrize(
    ("condition", "step"), [("progress IS NULL", report), ("state <> 'finished'", record_end)], ids=["progress", "end"]
)
def test_nor_has_one_of_a_job_that_the_database_refuses_to_change(
    records: list[logging.LogRecord], condition: str, step: Callable[[TenantJob], None]
) -> None:
    """What PostgreSQL says of it quotes the row."""
    job = running_job(tenant_queue(), another_process(), kwargs={"path": "471100815"})
    with constrained(condition):
        step(job)
    (record,) = [record for record in records if "never" in record.getMessage()]
    assert "471100815" not in record.getMessage()


class Unspeakable(IntegrityError):
    """As Django's ProtectedError over an object of the project's whose text cannot be had."""

    def __str__(self) -> str:
        raise AttributeError("there is no customer")


def test_an_error_without_a_text_fails_nobody_who_logs_it() -> None:
    """What a filter raises comes out where somebody logs, and not in a handler."""
    record = logging.LogRecord("tenant_slots", logging.DEBUG, "", 0, "it is kept: %s", (Unspeakable(),), None)
    assert logs.complete(record)
    assert record.getMessage() == "it is kept: Unspeakable"


@pytest.mark.django_db
def test_a_row_that_was_read_in_part_costs_no_query(django_assert_num_queries: Any) -> None:
    pk = waiting_job(tenant_queue()).pk
    part = TenantJob.objects.only("task").get(pk=pk)
    with django_assert_num_queries(0):
        assert logs.about(part) == {"task": part.task, "tenant": None, "queue": None, "job": None, "attempt": None}


@pytest.mark.django_db
def test_several_jobs_have_what_they_have_in_common() -> None:
    acme, other = tenant_queue(), tenant_queue("other")
    mine, theirs = waiting_job(acme), waiting_job(other, rq_queue="imports_bulk")
    both = logs.about(mine, theirs)
    assert both == {"task": mine.task, "tenant": None, "queue": None, "job": None, "attempt": 0}
    assert logs.about() == dict.fromkeys(logs.FIELDS)


def test_a_run_is_remembered_by_its_key_and_old_ones_are_forgotten() -> None:
    for pk in range(1, logs.MOST_REMEMBERED + 2):
        logs.remember(TenantJob(pk=pk, task="tests.jobs.add", attempt=2))
    assert logs.about_run(1) == dict.fromkeys(logs.FIELDS)
    assert logs.about_run(2)["attempt"] == 2


@pytest.mark.django_db(transaction=True)
def test_what_is_noted_of_a_run_that_rq_has_brought_has_its_tenant_and_queue() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert logs.about_run(job.pk) == {**logs.fields_of(job), "attempt": 1}


@pytest.fixture
def factory_of_the_project() -> Iterator[None]:
    """Which names the tenant of the request in every record."""
    before = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = before(*args, **kwargs)
        record.tenant = "of the request"
        return record

    logging.setLogRecordFactory(factory)
    yield
    logging.setLogRecordFactory(before)


def test_a_factory_of_the_project_is_called_as_logging_calls_it() -> None:
    """It need not take anything else."""
    before = logging.getLogRecordFactory()

    def factory(
        name: str,
        level: int,
        path: str,
        line: int,
        text: str,
        args: Any,
        exc_info: Any,
        function: Any,
        stack: Any,
        **_: Any,
    ) -> logging.LogRecord:
        return logging.LogRecord(name, level, path, line, text, args, exc_info, function, stack)

    logging.setLogRecordFactory(factory)
    try:
        assert set(logs.about_named(task="a.b")) == set(logs.FIELDS)
    finally:
        logging.setLogRecordFactory(before)


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("factory_of_the_project")
def test_a_field_that_the_project_sets_in_every_record_is_left_to_it(records: list[logging.LogRecord]) -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    work()
    assert fresh(job).state == State.FINISHED
    written = fields(of(records, "finished tests.jobs.add"))
    assert (written["tenant"], written["job"]) == ("of the request", str(job.uuid))


@pytest.mark.usefixtures("factory_of_the_project")
def test_control_logging_refuses_a_field_that_is_set_twice() -> None:
    with pytest.raises(KeyError, match="tenant"):
        logging.getLogger("tenant_slots").error("no", extra={"tenant": "acme"})


def test_the_names_clash_with_none_of_loggings_own() -> None:
    assert not set(logs.FIELDS) & set(vars(logging.makeLogRecord({})))


# --- the manual -------------------------------------------------------------------------------------------------------

PAGE = PACKAGE.parent / "docs" / "how-to" / "logs.md"


def code_of_page(number: int) -> dict[str, Any]:
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[number]
    found: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), found)  # noqa: S102 - the manual's own
    return found


def test_the_page_names_every_field() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == list(logs.FIELDS)


@pytest.mark.django_db(transaction=True)
def test_the_configuration_for_structlog_writes_a_line_of_json_with_them(records: list[logging.LogRecord]) -> None:
    config = code_of_page(0)["LOGGING"]
    formatter = DictConfigurator(config).configure_formatter(config["formatters"]["json"])
    job = jobs.fail.enqueue("acme")
    work()
    line = json.loads(formatter.format(of(records, "failed tests.jobs.fail")))
    assert {name: line[name] for name in logs.FIELDS} == {**logs.fields_of(job), "attempt": 1}
    assert line["level"] == "warning"
    assert line["event"].startswith("failed tests.jobs.fail")


@pytest.mark.django_db
def test_the_context_of_the_page_binds_them() -> None:
    job = waiting_job(tenant_queue())
    with code_of_page(1)["job_context"](job):
        assert structlog.contextvars.get_contextvars() == logs.fields_of(job)
    assert structlog.contextvars.get_contextvars() == {}
