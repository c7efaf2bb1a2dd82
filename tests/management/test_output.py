"""What the commands print is no condition of what they do."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from tenant_slots import signals
from tenant_slots.management.commands import slots_status, slots_sweep
from tenant_slots.models import TenantQueue
from tenant_slots.repair import doctor, steps
from tenant_slots.tenants import TENANTS_AT_ONCE
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

COMMANDS = {
    "slots_limit": ["acme", "imports", "5"],
    "slots_status": [],
    "slots_doctor": ["--json"],
    "slots_sweep": [],
}


@pytest.fixture
def nobody() -> Iterator[TextIO]:
    """A pipe whose reader has gone."""
    with pipe_to_nobody() as stream:
        yield stream


@pytest.fixture
def nobody_of_errors() -> Iterator[TextIO]:
    """The same, written to line by line as stderr is."""
    with pipe_to_nobody(line_by_line=True) as stream:
        yield stream


@contextmanager
def pipe_to_nobody(*, line_by_line: bool = False) -> Iterator[TextIO]:
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), open(writer, "w", buffering=1 if line_by_line else -1) as stream:
        yield stream


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_has_gone_is_no_error(command: str, nobody: TextIO) -> None:
    tenant_queue("acme")
    with suppress(SystemExit):  # of the doctor, who finds no worker
        call_command(command, *COMMANDS[command], stdout=nobody)


@pytest.mark.parametrize("command", COMMANDS)
def test_nor_is_an_output_that_the_shell_has_closed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant_queue("acme")
    monkeypatch.setattr(sys, "stdout", None)
    with suppress(SystemExit):
        call_command(command, *COMMANDS[command])


def test_who_watches_no_more_ends_it(nobody: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def asleep(seconds: float) -> None:
        raise AssertionError("it goes on for nobody")

    monkeypatch.setattr(slots_status.time, "sleep", asleep)
    call_command("slots_status", "--watch", stdout=nobody)


@pytest.fixture
def full_disk() -> Iterator[TextIO]:
    with suppress(OSError), open("/dev/full", "w") as stream:
        yield stream


@pytest.fixture
def full_disk_of_errors() -> Iterator[TextIO]:
    with suppress(OSError), open("/dev/full", "w", buffering=1) as stream:
        yield stream


@pytest.fixture
def one_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OperationalError("no such table")

    monkeypatch.setattr(steps, "STEPS", [refuse, *steps.STEPS])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_is_full_is_told_of_when_the_work_is_done(command: str, full_disk: TextIO) -> None:
    """Or what reads a file of JSON would take half of it for all."""
    row = tenant_queue("acme", max_job=1)
    with pytest.raises(CommandError, match=r"could be written: .*No space left"):
        call_command(command, *COMMANDS[command], stdout=full_disk)
    row.refresh_from_db()
    assert row.max_job == (5 if command == "slots_limit" else 1)


def test_and_all_limits_of_a_file_are_set_meanwhile(tmp_path: Path, full_disk: TextIO) -> None:
    plans = plans_of(tmp_path, 1500)  # more than a stream keeps in memory
    with pytest.raises(CommandError, match="No space left"):
        call_command("slots_limit", "--queue", "imports", "--tenant-file", str(plans), stdout=full_disk)
    assert not TenantQueue.objects.exclude(max_job=7).exists()


@pytest.fixture
def database_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: str) -> None:
        raise OperationalError("the connection is closed")

    monkeypatch.setattr(doctor, "findings", away)


def test_wrong_lines_of_a_file_are_an_error_on_a_full_disk_too(tmp_path: Path, full_disk: TextIO) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text("tenant,limit\nacme,many\n")
    with pytest.raises(CommandError, match="1 line is wrong"):
        call_command("slots_limit", "--queue", "imports", "--tenant-file", str(plans), stdout=full_disk)
    full_disk.flush()  # as Python does at its exit, with an exit code of 120 if that fails


@pytest.mark.usefixtures("database_is_away")
def test_so_is_a_database_that_is_away(full_disk_of_errors: TextIO) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("slots_doctor", stderr=full_disk_of_errors)
    assert ended.value.code == 2
    full_disk_of_errors.flush()


@pytest.mark.usefixtures("one_step_fails")
def test_and_a_part_of_a_sweep_that_failed(full_disk_of_errors: TextIO) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("slots_sweep", stderr=full_disk_of_errors)
    assert ended.value.code == 1
    full_disk_of_errors.flush()


def test_whoever_has_called_a_command_writes_on_once_there_is_room_again(full_disk: TextIO) -> None:
    with pytest.raises(CommandError, match="No space left"):
        call_command("slots_status", stdout=full_disk)
    assert Path(f"/proc/self/fd/{full_disk.fileno()}").readlink() == Path("/dev/full")


@pytest.mark.usefixtures("one_step_fails")
@pytest.mark.parametrize("stream", ["nobody", "full_disk"])
def test_whoever_sweeps_goes_on_whatever_can_be_written(
    stream: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, errors = request.getfixturevalue(stream), request.getfixturevalue(f"{stream}_of_errors")
    rounds: list[float] = []

    def next_round(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    job = waiting_job(tenant_queue())
    monkeypatch.setattr(slots_sweep, "time", SimpleNamespace(sleep=next_round))
    call_command("slots_sweep", "--loop", stdout=output, stderr=errors)
    assert len(rounds) == 2
    job.refresh_from_db()
    assert job.state == "queued"


@pytest.mark.usefixtures("one_step_fails")
def test_a_single_sweep_still_says_that_a_part_of_it_failed(nobody_of_errors: TextIO) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("slots_sweep", stderr=nobody_of_errors)
    assert ended.value.code == 1


@pytest.mark.usefixtures("database_is_away")
def test_a_doctor_whom_nobody_reads_still_says_that_the_database_is_away(nobody_of_errors: TextIO) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("slots_doctor", stderr=nobody_of_errors)
    assert ended.value.code == 2


def test_wrong_lines_of_a_file_are_an_error_that_nobody_need_read(tmp_path: Path, nobody_of_errors: TextIO) -> None:
    plans = tmp_path / "plans.csv"
    plans.write_text("tenant,limit\nacme,many\n")
    with pytest.raises(CommandError, match="1 line is wrong"):
        call_command("slots_limit", "--queue", "imports", "--tenant-file", str(plans), stderr=nobody_of_errors)


def test_each_change_of_a_file_is_told_of_before_the_next_ones_are_made(tmp_path: Path) -> None:
    """At once also to a pipe, which Python gives some kilobytes together."""
    plans, pipe, told_before = plans_of(tmp_path, TENANTS_AT_ONCE + 1), io.BytesIO(), []

    def listen(*, tenant_queue: TenantQueue, **_: Any) -> None:
        told_before.append(pipe.getvalue().decode().count("\n"))

    signals.limit_changed.connect(listen)
    try:
        with io.TextIOWrapper(pipe, encoding="utf-8") as stream:
            call_command("slots_limit", "--queue", "imports", "--tenant-file", str(plans), stdout=stream)
    finally:
        signals.limit_changed.disconnect(listen)
    assert len(told_before) == TENANTS_AT_ONCE + 1
    assert told_before[-1] == TENANTS_AT_ONCE


def plans_of(directory: Path, number: int) -> Path:
    """A file that gives so many tenants, who have a limit of 1 so far, one of 7."""
    TenantQueue.objects.bulk_create(TenantQueue(tenant=f"tenant {each}", queue="imports") for each in range(number))
    plans = directory / "plans.csv"
    plans.write_text("tenant,limit\n" + "".join(f"tenant {each},7\n" for each in range(number)))
    return plans


def in_latin_1(*command: Any) -> str:
    output = io.BytesIO()
    with io.TextIOWrapper(output, encoding="latin-1") as stream:
        call_command(*command, stdout=stream)
        stream.flush()
        return output.getvalue().decode("latin-1")


def test_what_a_terminal_cannot_show_is_an_escape() -> None:
    assert in_latin_1("slots_limit", "café", "imports", "5") == "café on imports: 1 \\u2192 5, 0 jobs were waiting\n"
    tenant_queue("שלום")
    assert "\\u05e9\\u05dc\\u05d5\\u05dd" in in_latin_1("slots_status")


def test_and_all_limits_of_a_file_are_set_there(tmp_path: Path) -> None:
    plans = plans_of(tmp_path, 150)
    assert in_latin_1("slots_limit", "--queue", "imports", "--tenant-file", str(plans)).endswith(
        "150 changed, 0 new, 0 unchanged\n"
    )
    assert not TenantQueue.objects.exclude(max_job=7).exists()
