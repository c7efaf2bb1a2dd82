"""slots_limit --tenant-file: many limits at once, all lines checked before any is applied."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.db.models import Count
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots import many_limits, tenants
from tenant_slots.db import transactions
from tenant_slots.management import limit_file
from tenant_slots.models import KeptChange, LimitSource, TenantQueue
from tenant_slots.signals import limit_changed
from tests.factories import fresh, in_rq, tenant_queue, waiting_job
from tests.processes import ROOT, environment, somebody_waits_for_a_lock, wait_until
from tests.races.test_callers_transactions import kept_open, meanwhile

pytestmark = pytest.mark.django_db


@pytest.fixture
def plans(tmp_path: Path) -> Any:
    """``plans(text, *options)`` runs the command on a file with this text; gives its output and errors."""

    def run(text: str | bytes, *options: str, queue: str = "imports") -> tuple[str, str]:
        file = tmp_path / "plans.csv"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        out, errors = io.StringIO(), io.StringIO()
        try:
            call_command(
                "slots_limit", "--queue", queue, "--tenant-file", str(file), *options, stdout=out, stderr=errors
            )
        except CommandError as error:
            error.out, error.errors = out.getvalue(), errors.getvalue()  # type: ignore[attr-defined]
            raise
        return out.getvalue(), errors.getvalue()

    return run


def limits() -> dict[str, int]:
    return dict(TenantQueue.objects.order_by("tenant").values_list("tenant", "max_job"))


def refused(plans: Any, text: str | bytes, *options: str) -> str:
    """The listed lines; nothing may have changed."""
    before = limits()
    with pytest.raises(CommandError) as raised:
        plans(text, *options)
    assert limits() == before
    errors: str = raised.value.errors or str(raised.value)
    return errors


def test_limits_are_changed_created_and_left_alone(plans: Any) -> None:
    tenant_queue("acme", max_job=1), tenant_queue("beta", max_job=5)
    tenant_queue("acme", queue="reports", max_job=9)
    out, errors = plans("tenant,limit\nacme,4\nbeta,5\ngamma,2\n")
    assert out.splitlines() == ["acme: 1 → 4", "gamma: new, 2", "1 changed, 1 new, 1 unchanged"]
    assert errors == ""
    assert {(row.tenant, row.queue): row.max_job for row in TenantQueue.objects.all()} == {
        ("acme", "imports"): 4,
        ("acme", "reports"): 9,
        ("beta", "imports"): 5,
        ("gamma", "imports"): 2,
    }


def test_a_new_row_has_the_default_share_and_rate(plans: Any, settings: Any) -> None:
    settings.TENANT_SLOTS = {"DEFAULT_SHARE": {"imports": 3}, "DEFAULT_RATE": "5/h"}
    plans("tenant,limit\nacme,4\n")
    row = TenantQueue.objects.get()
    assert (row.max_job, row.share, str(row.rate)) == (4, 3, "5/h, burst 1")


def test_a_second_run_changes_nothing(plans: Any) -> None:
    text = "tenant,limit\nacme,4\nbeta,5\n"
    plans(text)
    versions = list(TenantQueue.objects.values_list("version", flat=True))
    assert plans(text)[0] == "0 changed, 0 new, 2 unchanged\n"
    assert list(TenantQueue.objects.values_list("version", flat=True)) == versions


def test_a_dry_run_says_what_would_change_and_changes_nothing(plans: Any) -> None:
    tenant_queue("acme", max_job=1)
    out, _ = plans("tenant,limit\nacme,4\ngamma,2\n", "--dry-run")
    assert out.splitlines() == ["acme: 1 → 4", "gamma: new, 2", "would be: 1 changed, 1 new, 0 unchanged"]
    assert limits() == {"acme": 1}


def test_every_bad_line_is_listed_and_no_line_is_applied(plans: Any) -> None:
    tenant_queue("acme", max_job=1)
    lines = [
        "tenant,limit",
        "acme,4",
        "beta,many",
        "gamma,-1",
        ",3",
        "acme,5",
        "delta",
        "x,1,2",
        "y" * 256 + ",1",
        "z,",
    ]
    errors = refused(plans, "\n".join(lines))
    assert [line.partition(":")[0] for line in errors.splitlines()] == [f"line {number}" for number in range(3, 11)]
    for reason in ("'many' is not a limit", "-1 is not", "is missing", "on line 2 already", "as many columns", "255"):
        assert reason in errors


def test_the_failure_counts_the_wrong_lines(plans: Any) -> None:
    with pytest.raises(CommandError, match="1 line is wrong; nothing was changed"):
        plans("tenant,limit\nacme,no\n")


@pytest.mark.parametrize(
    "text",
    [
        "\ufefftenant,limit\r\nacme,4\r\n",
        "limit,tenant\n4,acme\n",
        "Tenant , Limit\n acme , 4 \n",
        'name,tenant,limit\n"Acme, Inc.","acme",4\n',
        "tenant,limit\n\nacme,4\n\n",
    ],
)
def test_the_file_may_be_written_as_spreadsheets_do(plans: Any, text: str) -> None:
    plans(text)
    assert limits() == {"acme": 4}


@pytest.mark.parametrize("text", ["acme,4\n", "", "tenant;limit\nacme;4\n", "tenant,tenant,limit\na,b,1\n"])
def test_a_file_without_its_head_is_refused(plans: Any, text: str) -> None:
    assert "line 1: the head of the file must name the column" in refused(plans, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"tenant" , limit\nacme,4\n', 1),
        ('tenant,limit\n"ac"me,4\n', 2),
        ('tenant,limit\nbeta,4\n\n"acme,4\n', 4),
        ('tenant,limit\n"acme,4\nbeta,4\ngamma,4\n', 2),
    ],
)
def test_what_is_not_csv_is_refused_by_the_line_where_it_begins(plans: Any, text: str, line: int) -> None:
    assert f"line {line}: this is not CSV" in refused(plans, text)


def test_so_is_any_other_line_that_goes_on_for_several(plans: Any) -> None:
    """As where a spreadsheet has a column of notes, and these have lines of their own."""
    notes = '"a trial\nuntil May"'
    errors = refused(plans, f"tenant,limit,notes\nacme,4,{notes}\nbeta,many,{notes}\nacme,5,{notes}\n")
    assert [line.partition(":")[0] for line in errors.splitlines()] == ["line 4", "line 6"]
    assert "is on line 2 already" in errors


def test_a_file_that_is_not_utf8_or_missing_is_refused(plans: Any) -> None:
    assert "cannot be read" in refused(plans, "tenant,limit\nj\u00f6rg,1\n".encode("latin-1"))
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("slots_limit", "--queue", "imports", "--tenant-file", "/nowhere.csv")


def test_a_tenant_without_a_row_is_a_bad_line_where_rows_are_not_created(plans: Any, settings: Any) -> None:
    settings.TENANT_SLOTS = {"AUTO_CREATE": False}
    tenant_queue("acme", max_job=1)
    assert refused(plans, "tenant,limit\nacme,4\nbeta,2\n").startswith("line 3: Tenant 'beta' has no tenant queue")


def test_an_unknown_queue_is_refused(plans: Any) -> None:
    with pytest.raises(CommandError, match="'nonsense' is not in RQ_QUEUES"):
        plans("tenant,limit\nacme,4\n", queue="nonsense")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["acme"],
        ["acme", "imports"],
        ["--queue", "imports"],
        ["--tenant-file", "plans.csv"],
        ["acme", "imports", "3", "--dry-run"],
        ["acme", "imports", "3", "--json"],
        ["acme", "imports", "3", "--queue", "imports", "--tenant-file", "plans.csv"],
    ],
)
def test_it_is_either_one_tenant_or_a_file(arguments: list[str]) -> None:
    with pytest.raises(CommandError, match="give either TENANT QUEUE with N, --share, --rate or --no-rate, or --queue"):
        call_command("slots_limit", *arguments)


def test_json_has_the_same_facts(plans: Any) -> None:
    tenant_queue("acme", max_job=1), tenant_queue("beta", max_job=5)
    out, _ = plans("tenant,limit\nacme,4\nbeta,5\ngamma,2\n", "--json")
    assert json.loads(out) == {
        "changed": [{"tenant": "acme", "old": 1, "new": 4}],
        "new": [{"tenant": "gamma", "new": 2}],
        "unchanged": 1,
        "errors": [],
    }
    with pytest.raises(CommandError) as raised:
        plans("tenant,limit\nacme,no\n", "--json")
    [error] = json.loads(raised.value.out)["errors"]
    assert error["line"] == 2


@pytest.mark.django_db(transaction=True)
def test_who_and_why_are_sent_and_stored(plans: Any) -> None:
    heard: list[Any] = []

    def listen(change: Any, **_: Any) -> None:
        heard.append((change.old, change.new, change.by, change.reason))

    row = tenant_queue("acme", max_job=1)
    limit_changed.connect(listen)
    try:
        plans("tenant,limit\nacme,4\nbeta,2\n", "--by", "billing", "--reason", "new plans")
        call_command("slots_limit", "acme", "imports", "5", "--by", "eve", "--reason", "sale", stdout=io.StringIO())
    finally:
        limit_changed.disconnect(listen)
    assert heard == [(1, 4, "billing", "new plans"), (4, 5, "eve", "sale")]
    assert (fresh(row).limit_set_by, row.limit_source) == ("eve", LimitSource.SET)
    beta = TenantQueue.objects.get(tenant="beta")
    assert (beta.limit_set_by, beta.limit_source) == ("billing", LimitSource.SET)


def test_a_temporary_limit_ends_even_where_the_number_is_the_same(plans: Any) -> None:
    row = tenant_queue("acme", max_job=1)
    row.set_override(4, timezone.now() + timedelta(hours=1))
    assert plans("tenant,limit\nacme,4\n")[0].startswith("acme: 4 → 4")
    assert (fresh(row).max_job, row.override_until) == (4, None)


def test_all_unchanged_limits_together_cost_one_query(plans: Any) -> None:
    TenantQueue.objects.bulk_create(TenantQueue(tenant=str(n), queue="imports", max_job=3) for n in range(10_000))
    lines = "".join(f"{n},3\n" for n in range(10_000))
    with CaptureQueriesContext(connection) as captured:
        assert plans(f"tenant,limit\n{lines}")[0] == "0 changed, 0 new, 10000 unchanged\n"
    assert len(captured) == 1


def test_new_rows_are_made_a_hundred_at_a_time(plans: Any) -> None:
    lines = "".join(f"{n},3\n" for n in range(300))
    with CaptureQueriesContext(connection) as captured:
        assert plans(f"tenant,limit\n{lines}")[0].endswith("\n0 changed, 300 new, 0 unchanged\n")
    assert len(captured) <= 1 + 3 * 7, "a question what is there, and for each hundred an INSERT and a SELECT"
    assert set(TenantQueue.objects.values_list("max_job", "limit_source")) == {(3, LimitSource.SET)}


def share_of_plan(tenant: str, queue: str) -> Any:
    return {"acme": 3, "beta": "no plan", "gamma": 4}[tenant]


def test_a_line_whose_row_has_no_defaults_is_reported_and_the_others_are_made(plans: Any, settings: Any) -> None:
    settings.TENANT_SLOTS = {"DEFAULT_SHARE": f"{__name__}.share_of_plan"}
    with pytest.raises(CommandError, match="2 lines are not applied, the others are") as raised:
        plans("tenant,limit\nacme,4\nbeta,4\ngamma,4\ndelta,4\n")
    assert raised.value.errors.splitlines() == [
        "line 3: 'no plan' is not a share for tenant 'beta' on queue 'imports': give an integer from 1 to 1000.",
        "line 5: DEFAULT_SHARE or DEFAULT_RATE raised KeyError: 'delta'",
    ]
    assert limits() == {"acme": 4, "gamma": 4}


def limit_of_plan(tenant: str, queue: str) -> Any:
    raise LookupError(tenant)


def test_nobody_is_asked_for_a_limit_that_the_line_gives(plans: Any, settings: Any) -> None:
    settings.TENANT_SLOTS = {"DEFAULT_MAX_JOB": f"{__name__}.limit_of_plan"}
    with pytest.raises(LookupError):  # control
        tenants.tenant_queue_for("acme", "imports")
    assert plans("tenant,limit\nacme,4\n")[0].endswith("0 changed, 1 new, 0 unchanged\n")


@pytest.fixture
def _impatient() -> Iterator[None]:
    token = transactions.patience.set(0.2)
    yield
    transactions.patience.reset(token)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_row_that_another_transaction_makes_is_reported_and_the_others_are_made(plans: Any) -> None:
    text = "tenant,limit\nacme,4\nbeta,4\ngamma,4\n"
    with kept_open(partial(tenant_queue, "beta", max_job=1)):
        with pytest.raises(CommandError, match="1 line is not applied, the others are") as raised:
            plans(text)
        assert raised.value.errors.startswith("line 3: Tenant queue of 'beta' on imports")
        assert limits() == {"acme": 4, "gamma": 4}
    assert plans(text)[0].endswith("1 changed, 0 new, 2 unchanged\n")


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
def test_a_row_that_a_job_has_made_first_gets_its_limit_as_a_change(plans: Any) -> None:
    errors: list[Exception] = []
    with transaction.atomic():
        row = tenant_queue("beta", max_job=1)
        command = meanwhile(partial(plans, "tenant,limit\nacme,4\nbeta,4\n", "--reason", "new plans"), errors)
        wait_until(somebody_waits_for_a_lock)
    command.join(20)
    assert errors == []
    assert limits() == {"acme": 4, "beta": 4}
    assert [(one.old, one.new, one.reason) for one in row.kept_changes.all()] == [("1", "4", "new plans")]


def test_a_row_that_stays_locked_is_reported_and_the_others_are_changed(
    plans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_queue("acme", max_job=1), tenant_queue("beta", max_job=1)
    real = TenantQueue.set_limit

    def set_limit(row: TenantQueue, *args: Any, **facts: Any) -> Any:
        if row.tenant == "acme":
            raise OperationalError("canceling statement due to lock timeout")
        return real(row, *args, **facts)

    monkeypatch.setattr(TenantQueue, "set_limit", set_limit)
    with pytest.raises(CommandError, match="1 line is not applied, the others are") as raised:
        plans("tenant,limit\nacme,4\nbeta,4\n")
    assert raised.value.errors == "line 2: canceling statement due to lock timeout\n"
    assert limits() == {"acme": 1, "beta": 4}


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time")
class TestManyChanges:
    """Outside of a transaction, where each row is one statement."""

    def test_each_row_takes_one_statement(self, plans: Any) -> None:
        TenantQueue.objects.bulk_create(TenantQueue(tenant=str(n), queue="imports", max_job=3) for n in range(300))
        lines = "".join(f"{n},4\n" for n in range(300))
        with CaptureQueriesContext(connection) as captured:
            assert plans(f"tenant,limit\n{lines}")[0].endswith("\n300 changed, 0 new, 0 unchanged\n")
        assert len(captured) <= 300 + 1 + 3 * 4
        assert set(TenantQueue.objects.values_list("max_job", "limit_source", "version")) == {(4, LimitSource.SET, 1)}
        assert set(KeptChange.objects.values_list("old", "new").annotate(Count("pk"))) == {("3", "4", 300)}

    @pytest.mark.usefixtures("_impatient")
    def test_a_row_that_stays_locked_is_reported_and_the_others_are_changed(self, plans: Any) -> None:
        tenant_queue("acme", max_job=1), tenant_queue("beta", max_job=1), tenant_queue("gamma", max_job=1)
        beta = TenantQueue.objects.select_for_update().filter(tenant="beta")
        is_refused = pytest.raises(CommandError, match="1 line is not applied, the others are")
        with kept_open(lambda: list(beta)), is_refused as raised:
            plans("tenant,limit\nacme,4\nbeta,4\ngamma,4\n")
        assert raised.value.errors.startswith("line 3: Tenant queue beta")
        assert limits() == {"acme": 4, "beta": 1, "gamma": 4}

    def test_a_row_that_changes_meanwhile_is_read_again(self, plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        tenant_queue("acme", max_job=1), tenant_queue("beta", max_job=1)
        write = many_limits.write

        def write_after_others(one: Any) -> bool:
            if one.row.tenant == "acme":
                TenantQueue.objects.get(pk=one.row.pk).set_limit(7)
            return write(one)

        monkeypatch.setattr(many_limits, "write", write_after_others)
        assert plans("tenant,limit\nacme,4\nbeta,4\n")[0].endswith("2 changed, 0 new, 0 unchanged\n")
        assert limits() == {"acme": 4, "beta": 4}
        changes = KeptChange.objects.filter(tenant_queue__tenant="acme").order_by("pk")
        assert list(changes.values_list("old", "new")) == [("1", "7"), ("7", "4")]

    def test_a_row_that_is_deleted_meanwhile_is_reported(self, plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        tenant_queue("acme", max_job=1), tenant_queue("beta", max_job=1)
        compare = limit_file.compare

        def compare_then_delete(*args: Any) -> Any:
            found = compare(*args)
            TenantQueue.objects.get(tenant="acme").delete()
            return found

        monkeypatch.setattr(limit_file, "compare", compare_then_delete)
        with pytest.raises(CommandError, match="1 line is not applied, the others are") as raised:
            plans("tenant,limit\nacme,4\nbeta,4\n")
        assert raised.value.errors.startswith("line 2: ")
        assert limits() == {"beta": 4}


def end_own_session() -> None:
    with suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no sessions to lose")
class TestDatabaseGoesAway:
    """At one line: those before it are done, the others are for another run."""

    @pytest.fixture(autouse=True)
    def _two_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tenants, "TENANTS_AT_ONCE", 2)

    def goes_on(self, plans: Any, text: str, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...] = ()) -> Any:
        with pytest.raises(CommandError, match="the database went away at line 5; run the command again") as raised:
            plans(text, *options)
        monkeypatch.undo()
        return raised.value

    def test_while_rows_are_changed(self, plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(6):
            tenant_queue(str(number), max_job=1)
        write = many_limits.write

        def write_and_lose(one: Any) -> bool:
            if one.row.tenant == "3":
                end_own_session()
            return write(one)

        monkeypatch.setattr(many_limits, "write", write_and_lose)
        text = "tenant,limit\n" + "".join(f"{number},4\n" for number in range(6))
        cut = self.goes_on(plans, text, monkeypatch)
        assert cut.out.splitlines() == ["0: 1 → 4", "1: 1 → 4", "2 changed, 0 new, 0 unchanged"]
        assert [line.partition(":")[0] for line in cut.errors.splitlines() if line.startswith("line")] == ["line 5"]
        assert plans(text)[0].endswith("3 changed, 0 new, 3 unchanged\n")
        assert set(limits().values()) == {4}

    @pytest.mark.parametrize("callee", ["create_missing", "defaults_beside_limit"])
    def test_while_rows_are_made(self, callee: str, plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        real, calls = getattr(tenants, callee), iter(range(100))

        def lose(*args: Any) -> Any:
            if next(calls) == (1 if callee == "create_missing" else 3):
                end_own_session()
                TenantQueue.objects.exists()
            return real(*args)

        monkeypatch.setattr(tenants, callee, lose)
        text = "tenant,limit\n" + "".join(f"{number},4\n" for number in range(6))
        text = text.replace("1,4\n", "1,4\n\n") if callee == "create_missing" else text
        cut = self.goes_on(plans, text, monkeypatch, ("--json",))
        document = json.loads(cut.out)
        assert [new["tenant"] for new in document["new"]] == ["0", "1"]
        assert [error["line"] for error in document["errors"]] == [5]
        assert plans(text)[0].endswith("0 changed, 4 new, 2 unchanged\n")

    def test_while_the_disk_is_waited_for(self, plans: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in range(6):
            tenant_queue(str(number), max_job=1)
        wait, calls = many_limits.wait_for_disk, iter(range(3))

        def lose_and_wait() -> None:
            if next(calls) == 1:
                end_own_session()
            wait()

        monkeypatch.setattr(many_limits, "wait_for_disk", lose_and_wait)
        text = "tenant,limit\n\n" + "".join(f"{number},4\n" for number in range(6))
        assert self.goes_on(plans, text, monkeypatch).out.splitlines()[-1] == "2 changed, 0 new, 0 unchanged"
        assert plans(text)[0].endswith("2 changed, 0 new, 4 unchanged\n")


@pytest.mark.parametrize("unbuffered", ["1", ""])
@pytest.mark.django_db(transaction=True)
def test_a_reader_that_has_read_enough_ends_no_changes(unbuffered: str, tmp_path: Path) -> None:
    TenantQueue.objects.bulk_create(TenantQueue(tenant=str(n), queue="imports", max_job=3) for n in range(150))
    file = tmp_path / "plans.csv"
    file.write_text("tenant,limit\n" + "".join(f"{n},4\n" for n in range(200)))
    command = [sys.executable, "-W", "ignore", "manage.py", "slots_limit", "--queue=imports", f"--tenant-file={file}"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        values = {**environment(), "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, cwd=ROOT, env=values, stdout=pipe, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (set(limits().values()), len(limits())) == ({4}, 200)


@pytest.mark.django_db(transaction=True)
def test_what_is_done_is_told_before_the_rest_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "TENANTS_AT_ONCE", 2)
    for number in range(4):
        tenant_queue(f"tenant {number}", max_job=1)
    told: list[Any] = []
    difference = limit_file.compare([limit_file.Line(n, f"tenant {n}", 4) for n in range(4)], "imports")

    def tell(one: Any) -> None:
        told.append((one.line.tenant, TenantQueue.objects.filter(max_job=4).count()))

    limit_file.apply(difference, "imports", by="", reason="", tell=tell)
    there = [2, 2, 4, 4] if connection.vendor == "postgresql" else [1, 2, 3, 4]  # one by one, without a wait for disks
    assert told == [(f"tenant {number}", count) for number, count in enumerate(there)]


@pytest.mark.django_db(transaction=True)
def test_waiting_jobs_that_fit_start_at_once(plans: Any) -> None:
    row = tenant_queue("acme", max_job=0)
    waiting_job(row), waiting_job(row), waiting_job(row)
    plans("tenant,limit\nacme,2\n")
    assert (fresh(row).current_job, in_rq()) == (2, 2)


@pytest.mark.parametrize("limit", ["1_0", "+5", "\uff11\uff10", "1e3", "0x10", "5.0", "", "9" * 5000])
def test_a_limit_is_written_in_digits_only(plans: Any, limit: str) -> None:
    assert "is not a limit" in refused(plans, f"tenant,limit\nacme,{limit}\n")
    with pytest.raises(CommandError, match="is not a limit"):
        call_command("slots_limit", "acme", "imports", limit or " ")
    assert "1 new" in plans("tenant,limit\nacme, 007 \n")[0]
    assert limits() == {"acme": 7}
