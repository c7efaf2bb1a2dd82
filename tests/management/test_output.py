"""What the commands print is no condition of what they do."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import pytest
from django.core.management import call_command

from tenant_slots.management.commands import slots_status
from tenant_slots.models import TenantQueue
from tests.factories import tenant_queue

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
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
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
    rows = [tenant_queue(f"tenant {number}", max_job=1) for number in range(150)]
    plans = tmp_path / "plans.csv"
    plans.write_text("tenant,limit\n" + "".join(f"{row.tenant},7\n" for row in rows))
    assert in_latin_1("slots_limit", "--queue", "imports", "--tenant-file", str(plans)).endswith(
        "150 changed, 0 new, 0 unchanged\n"
    )
    assert not TenantQueue.objects.exclude(max_job=7).exists()
