"""slots_status, slots_limit and slots_sweep, as somebody at a terminal meets them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connection, connections
from django.utils import timezone

from tenant_slots import tenants
from tenant_slots.interruptions import SweepTimeout
from tenant_slots.management.commands import slots_status, slots_sweep
from tenant_slots.management.commands._table import table
from tenant_slots.models import State, TenantQueue
from tenant_slots.repair import steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tests.factories import age, fresh, in_rq, owner, running_job, tenant_queue, waiting_job, work
from tests.processes import ROOT, environment
from tests.sleeping import replace_sleep

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def status(*arguments: str, to: io.StringIO | None = None, **options: Any) -> str:
    out = to or io.StringIO()
    call_command("slots_status", *arguments, stdout=out, **options)
    return out.getvalue()


def limit(*arguments: str) -> str:
    out = io.StringIO()
    call_command("slots_limit", *arguments, stdout=out)
    return out.getvalue().strip()


@committing
@pytest.mark.parametrize(
    "arguments",
    [
        ("slots_status",),
        ("slots_limit", "acme", "imports", "5"),
        pytest.param(
            ("slots_sweep",),
            marks=pytest.mark.skipif(connection.vendor == "sqlite", reason="each step fails by itself"),
        ),
    ],
)
def test_that_the_database_is_away_is_said_in_a_sentence(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("connection refused")

    session = connections["default"]
    session.close()
    monkeypatch.setattr(type(session), "connect", away)
    with pytest.raises(CommandError, match="the database cannot be asked: connection refused"):
        call_command(*arguments)


def run_limit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "manage.py", "slots_limit", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)


@pytest.fixture
def small_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("LINES", "8")


# --- slots_status --------------------------------------------------------------------------------------------------


def test_the_table_shows_each_tenant_queue_busiest_first() -> None:
    tenant_queue("idle", max_job=2, paused=True)
    row = tenant_queue("acme", max_job=5, current_job=1, share=4)
    waiting_job(row, state=State.RUNNING)
    waiting_job(row, enqueued_at=timezone.now() - timedelta(hours=3, minutes=20, seconds=30))

    head, first, second = status().splitlines()

    assert " ".join(head.split()) == "TENANT QUEUE IN USE RUNNING QUEUED WAITING SCHEDULED OLDEST WAIT SHARE PAUSED"
    assert first.split() == ["acme", "imports", "1", "/", "5", "1", "0", "1", "0", "3", "h", "20", "m", "4"]
    assert second.split() == ["idle", "imports", "0", "/", "2", "0", "0", "0", "0", "1", "paused"]


@pytest.mark.parametrize("reason", ["HTTP 429", ""])
def test_a_rest_is_shown_with_what_is_left_of_it_and_why(reason: str) -> None:
    tenant_queue(rests_until=timezone.now() + timedelta(seconds=600), rest_reason=reason)
    tenant_queue("later", rests_until=timezone.now() - timedelta(seconds=1), rest_reason=reason)
    _, first, second = status().splitlines()
    assert re.search(rf"1  +rests (10 m 0|9 m \d+) s{': ' * bool(reason)}{reason}$", first)
    assert "rests" not in second
    resting, rested = json.loads(status("--json"))["tenant_queues"]
    assert 500 < resting["rests_for"] <= 600
    assert (resting["rest_reason"], rested["rests_for"]) == (reason, None)


def test_columns_are_aligned_whatever_the_names() -> None:
    lines = table(("TENANT", "QUEUE", "N"), [("東京", "q", "1"), ("e\u0301", "q", "10"), ("plain", "q", "100")])
    assert lines == ["TENANT  QUEUE    N", "東京    q        1", "e\u0301       q       10", "plain   q      100"]


def test_a_hostile_name_can_neither_steer_the_terminal_nor_turn_the_line() -> None:
    waiting_job(tenant_queue("\x1b[2Jred\r\n\u202etxet\x9b"))
    line = status().splitlines()[1]
    assert line.startswith("\\x1b[2Jred\\r\\n\\u202etxet\\x9b")
    assert len(status().splitlines()) == 2


@pytest.mark.usefixtures("small_screen")
def test_a_long_name_is_shortened_to_the_width_of_the_terminal_but_not_in_a_pipe() -> None:
    tenant_queue("x" * 200)
    assert max(map(len, status(to=Terminal()).splitlines())) <= 90
    assert "x" * 200 in status()


def test_only_the_asked_queue_or_tenant_is_shown() -> None:
    tenant_queue("acme"), tenant_queue("acme", queue="reports"), tenant_queue("beta")
    assert len(status("--queue", "imports").splitlines()) == 3
    assert len(status("--tenant", "acme").splitlines()) == 3
    assert len(status("--tenant", "acme", "--queue", "reports").splitlines()) == 2
    assert status("--tenant", "nobody") == "No tenant queue.\n"


def test_json_holds_every_fact() -> None:
    waiting_job(tenant_queue("a\x1bcme\u202e", max_job=3))
    [row] = json.loads(status("--json"))["tenant_queues"]
    wait = row.pop("oldest_wait")
    assert 0 <= wait < 30
    assert row == {
        "tenant": "a\x1bcme\u202e",
        "queue": "imports",
        "max_job": 3,
        "current_job": 0,
        "share": 1,
        "paused": False,
        "rests_for": None,
        "rest_reason": "",
        "running": 0,
        "queued": 0,
        "waiting": 1,
        "scheduled": 0,
    }
    assert json.loads(status("--json", "--tenant", "nobody")) == {"tenant_queues": []}


def test_watch_repeats_until_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    replace_sleep(monkeypatch, sleep)
    documents = [json.loads(line) for line in status("--json", "--watch").splitlines()]
    assert len(documents) == 3
    assert pauses == [2.0, 2.0, 2.0]


@pytest.mark.usefixtures("small_screen")
def test_watch_shows_the_busiest_that_fit_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        tenant_queue(f"idle {number}")
    waiting_job(tenant_queue("busy"))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    replace_sleep(monkeypatch, interrupt)
    out = status("--watch", to=Terminal())
    assert out.startswith(slots_status.CLEAR_SCREEN)
    assert len(out.splitlines()) < 8
    assert "busy" in out.splitlines()[1]
    assert out.endswith("… and 16 more\n")


@pytest.mark.parametrize("interval", ["0", "-1", "soon", "nan", "inf"])
def test_an_interval_must_be_a_time(interval: str) -> None:
    with pytest.raises(CommandError, match="is not a number of seconds"):
        status("--watch", f"--interval={interval}")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.4, "0 s"), (59.9, "59 s"), (60, "1 m 0 s"), (3661, "1 h 1 m"), (180_000, "2 d 2 h")],
)
def test_a_wait_is_shown_in_two_units(seconds: float | None, text: str) -> None:
    assert slots_status.duration(seconds) == text


@committing
def test_ctrl_c_ends_a_real_watch_without_an_error() -> None:
    tenant_queue()
    command = [sys.executable, "-u", "-W", "ignore", "manage.py", "slots_status", "--watch", "--interval=0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True, **pipes) as process:
        try:
            assert process.stdout
            assert process.stdout.readline().startswith(b"TENANT")
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, b"")


# --- slots_limit ---------------------------------------------------------------------------------------------------


@committing
def test_raising_a_limit_lets_waiting_jobs_in() -> None:
    row = tenant_queue(max_job=0)
    waiting_job(row), waiting_job(row)
    assert limit("acme", "imports", "1") == "acme on imports: 0 → 1, 2 jobs were waiting"
    assert (fresh(row).max_job, row.current_job, in_rq()) == (1, 1, 1)


def test_a_missing_row_is_created_with_the_limit() -> None:
    assert limit("acme", "imports", "4") == "acme on imports: 1 → 4, 0 jobs were waiting"
    assert TenantQueue.objects.get().max_job == 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("acme", "imports", "-1"), "-1 is not a limit for tenant 'acme'"),
        (("acme", "imports", "abc"), "'abc' is not a limit"),
        (("acme", "imports", "10001"), "10001 is not a limit"),
        (("acme", "imports", "1.5"), "'1.5' is not a limit"),
        (("acme", "nonsense", "1"), "Queue 'nonsense' is not in RQ_QUEUES"),
        (("x" * 256, "imports", "1"), "255"),
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_is_created(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        limit(*arguments)
    assert not TenantQueue.objects.exists()


def test_a_missing_row_stays_missing_when_the_project_creates_rows_itself(settings: Any) -> None:
    settings.TENANT_SLOTS = {"AUTO_CREATE": False}
    with pytest.raises(CommandError, match="AUTO_CREATE"):
        limit("acme", "imports", "3")
    assert not TenantQueue.objects.exists()


def limit_of_plan(tenant: str, queue: str) -> int:
    raise LookupError(f"no plan for {tenant}")


def test_a_default_that_cannot_be_had_is_a_sentence_and_no_traceback(settings: Any) -> None:
    settings.TENANT_SLOTS = {"DEFAULT_MAX_JOB": f"{__name__}.limit_of_plan"}
    problem = r"^DEFAULT_MAX_JOB, DEFAULT_SHARE or DEFAULT_RATE raised LookupError: no plan for acme; .* has no row yet"
    with pytest.raises(CommandError, match=problem):
        limit("acme", "imports", "3")
    assert not TenantQueue.objects.exists()
    tenant_queue()
    assert limit("acme", "imports", "3") == "acme on imports: 1 → 3, 0 jobs were waiting"


def test_a_row_that_is_deleted_meanwhile_is_a_sentence_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    look = tenants.tenant_queue_for

    def look_then_delete(tenant: str, queue: str) -> TenantQueue:
        row = look(tenant, queue)
        TenantQueue.objects.get(pk=row.pk).delete()
        return row

    monkeypatch.setattr(tenants, "tenant_queue_for", look_then_delete)
    with pytest.raises(CommandError, match=r"^acme on imports was deleted meanwhile; run the command again"):
        limit("acme", "imports", "3")


@committing
def test_a_refused_limit_exits_with_1_and_one_line() -> None:
    refused = run_limit("acme", "imports", "-1")
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.startswith("CommandError: -1 is not a limit")
    assert len(refused.stderr.splitlines()) == 1


def test_a_share_is_set_by_itself_or_with_a_limit() -> None:
    row = tenant_queue(max_job=2)
    assert limit("acme", "imports", "--share", "5", "--by", "billing") == "acme on imports: share 1 → 5"
    assert (fresh(row).share, row.max_job, row.limit_set_by) == (5, 2, "")
    assert limit("acme", "imports", "3", "--share", "2").splitlines() == [
        "acme on imports: 2 → 3, 0 jobs were waiting",
        "acme on imports: share 5 → 2",
    ]


@pytest.mark.parametrize("share", ["0", "1001", "a lot", "1.5"])
def test_a_wrong_share_is_refused_before_the_limit_is_changed(share: str) -> None:
    with pytest.raises(CommandError, match="is not a share for tenant 'acme' on queue 'imports'"):
        limit("acme", "imports", "3", "--share", share)
    assert not TenantQueue.objects.exists()


def test_a_rate_is_set_and_taken_away() -> None:
    row = tenant_queue(max_job=2)
    assert limit("acme", "imports", "--rate", "100/m", "--burst", "10") == (
        "acme on imports: rate none → 100/m, burst 10"
    )
    assert str(fresh(row).rate) == "100/m, burst 10"
    assert limit("acme", "imports", "--rate", "5/minute") == "acme on imports: rate 100/m, burst 10 → 5/m, burst 1"
    assert limit("acme", "imports", "--no-rate", "--by", "ops") == "acme on imports: rate 5/m, burst 1 → none"
    assert (fresh(row).rate, row.max_job, row.limit_set_by) == (None, 2, "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--rate", "100/month"), "'100/month' cannot be a rate: write it as"),
        (("--rate", "100/m", "--burst", "0"), "'burst 0' cannot be a rate: give a whole number from 1"),
        (("--rate", "100/m", "--burst", "x"), "give a whole number from 1"),
        (("--burst", "5"), "give either|--rate"),
        (("2", "--burst", "5"), "give --rate with --burst"),
        (("--rate", "1/m", "--no-rate"), "not allowed with argument"),
    ],
)
def test_a_wrong_rate_is_refused_before_the_limit_is_changed(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        limit("acme", "imports", *arguments)
    assert not TenantQueue.objects.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("acme", "imports"),
        ("--queue", "imports", "--tenant-file", "plans.csv", "--no-rate"),
        ("acme", "--share", "2"),
        ("--share", "2"),
        ("--queue", "imports", "--tenant-file", "plans.csv", "--share", "2"),
        ("acme", "imports", "--share", "2", "--dry-run"),
    ],
)
def test_what_names_neither_one_row_nor_a_file_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError, match="give either TENANT QUEUE with N, --share, --rate or --no-rate, or --queue"):
        limit(*arguments)


def test_options_that_code_gives_by_name_are_what_they_are() -> None:
    call_command("slots_limit", "acme", "imports", share=5, rate="5/m", burst=3, stdout=io.StringIO())
    row = TenantQueue.objects.get()
    assert (row.share, str(row.rate)) == (5, "5/m, burst 3")
    with pytest.raises(CommandError, match="share"):
        call_command("slots_limit", "acme", "imports", share=0)


# --- slots_sweep ---------------------------------------------------------------------------------------------------


@committing
def test_slots_sweep_says_what_it_did() -> None:
    waiting_job(tenant_queue())
    output = io.StringIO()
    call_command("slots_sweep", stdout=output)
    assert output.getvalue() == "admitted 1\n"
    work()
    output = io.StringIO()
    call_command("slots_sweep", stdout=output)
    assert output.getvalue() == "nothing to repair\n"


@committing
def test_slots_sweep_says_what_failed_and_that_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ProgrammingError("no such table")

    monkeypatch.setattr(steps, "STEPS", (broken,))
    output, errors = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("slots_sweep", stdout=output, stderr=errors)
    assert (stop.value.code, output.getvalue()) == (1, "")
    assert errors.getvalue() == "broken: ProgrammingError('no such table')\n"


@committing
def test_what_a_row_holds_writes_no_line_and_clears_no_screen_of_who_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    evil, shown = "\x1b[2J\r\nall is well\u202e", r"\x1b[2J\r\nall is well\u202e"

    def leaves(report: Report, contact: Contact) -> None:
        report.left.append(f"worker {evil}")
        report.failed.append(evil)

    monkeypatch.setattr(steps, "STEPS", (leaves,))
    job = running_job(tenant_queue(), owner(evil, host="elsewhere"))
    age(job, beat_at=500)
    said = io.StringIO()
    for command in ("slots_doctor", "slots_sweep"):
        with pytest.raises(SystemExit):
            call_command(command, stdout=said, stderr=said)
    assert said.getvalue().count(shown) == 3
    assert "\x1b" not in said.getvalue()
    assert "\u202e" not in said.getvalue()
    assert "\nall is well" not in said.getvalue()


@committing
def test_slots_sweep_loops_until_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    waiting_job(tenant_queue())
    output: Any = io.StringIO()
    monkeypatch.setattr(slots_sweep, "time", SimpleNamespace(sleep=interrupt))
    call_command("slots_sweep", "--loop", stdout=output)
    assert output.getvalue() == "admitted 1\n"


@pytest.fixture
def _own_signals() -> Iterator[None]:
    """The command leaves its handlers behind."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def told(number: int) -> None:
    assert signal.getsignal(number) is not signal.SIG_DFL, "it would kill this process"
    signal.raise_signal(number)


@committing
@pytest.mark.usefixtures("_own_signals")
def test_or_until_it_is_told_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that is killed leaves jobs that it has begun to ask, which nobody asks again."""
    monkeypatch.setattr(slots_sweep, "time", SimpleNamespace(sleep=lambda _: told(signal.SIGTERM)))
    call_command("slots_sweep", "--loop")


@committing
@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_also_while_the_database_does_not_answer(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Psycopg waits for it once more when it is interrupted, until the alarm of the sweep rings."""

    def wait_for_an_answer(_: Sweeper) -> None:
        try:
            told(number)
        except KeyboardInterrupt as interruption:
            raise SweepTimeout from interruption

    monkeypatch.setattr(Sweeper, "sweep", wait_for_an_answer)
    monkeypatch.setattr(slots_sweep, "time", SimpleNamespace(sleep=lambda _: pytest.fail("it goes on")))
    call_command("slots_sweep", "--loop")
