"""A terminal ends with all that its program has started: a server that outlives the tests keeps its port and memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.terminals import Shell, Terminal
from tests.processes import wait_until

IN_THE_BACKGROUND = "bash -c 'sleep 600 & wait'"
"""The other one does not hear Ctrl-C."""

IN_THE_FOREGROUND = "bash -c 'sleep 600; true'"
"""It ends when the other one has."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def started(shell: Shell, line: str) -> Terminal:
    terminal = shell.open(line)
    wait_until(lambda: programs(terminal) == ["bash", "sleep"])  # a fork that is bash still hears other signals
    return terminal


def programs(terminal: Terminal) -> list[str]:
    return sorted(Path(f"/proc/{pid}/comm").read_text().strip() for pid in terminal.running())


def test_closing_a_terminal_ends_its_program_and_what_that_has_started(shell: Shell) -> None:
    terminal = started(shell, IN_THE_BACKGROUND)
    terminal.close()
    assert terminal.running() == []


def test_control_what_outlives_its_program_is_seen(shell: Shell) -> None:
    terminal = started(shell, IN_THE_BACKGROUND)
    terminal.process.kill()
    terminal.process.wait()
    assert len(terminal.running()) == 1


def test_ctrl_c_is_told_to_what_the_program_has_started(shell: Shell) -> None:
    terminal = started(shell, IN_THE_FOREGROUND)
    terminal.interrupt()
    assert terminal.running() == []
