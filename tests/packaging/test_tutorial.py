"""The tutorial, word for word: each file written, each line typed, and each terminal shows what the text says."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.packaging.reader import USER, Reader, Seen
from tests.packaging.terminals import Shell
from tests.packaging.tutorial import TUTORIAL, Command, differences, steps

TEXT = TUTORIAL.read_text()
COMMANDS = [step for step in steps(TEXT) if isinstance(step, Command) and step.shown]


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def seen(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """All of it was done, but for what is named here: the package is not uploaded yet, ports may be taken, and nobody
    answers the questions of ``createsuperuser``.
    """
    redis, web = free_port(), free_port()
    instead = {
        "pip install tenant-slots": f"pip install {wheel}",
        "6379": str(redis),
        "manage.py runserver": f"manage.py runserver {web}",
        "127.0.0.1:8000": f"127.0.0.1:{web}",
        "manage.py createsuperuser": "manage.py createsuperuser --noinput",
    }
    text = TEXT
    for said, done in instead.items():
        assert said in text, f"the tutorial does not say {said} any more"
        text = text.replace(said, done)
    shell = Shell(tmp_path_factory.mktemp("tutorial"), **USER)
    try:
        yield Reader(shell, text, redis).follow()
    finally:
        shell.close()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.line)
def test_a_terminal_shows_what_the_text_shows(command: Command, seen: Seen) -> None:
    assert differences(command.shown, seen.outputs[command.line]) == []


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.line)
def test_control_with_any_other_word_in_the_text_a_terminal_does_not(command: Command, seen: Seen) -> None:
    for line in command.shown:
        for word in re.finditer(r"[^\W\d]\w*|\d+", line):
            other = "other" if not word[0].isdigit() else "0" if int(word[0]) else "1"
            changed = line[: word.start()] + other + line[word.end() :]
            text = TEXT.replace(line, changed)
            (found,) = (step for step in steps(text) if isinstance(step, Command) and step.line == command.line)
            assert differences(found.shown, seen.outputs[command.line]), changed
    assert differences(command.shown[:-1], seen.outputs[command.line]) or len(command.shown) == 1


def test_no_command_warns(seen: Seen) -> None:
    assert [line for line, output in seen.outputs.items() if "WARNINGS" in output] == []


def test_the_limit_is_in_the_admin(seen: Seen) -> None:
    assert re.search(r'name="max_job"[^>]* value="2"|value="2"[^>]* name="max_job"', seen.limit_page)


def test_the_job_whose_process_was_killed_says_so(seen: Seen) -> None:
    (says,) = re.findall(r'It says "([^"]+)"', TEXT)
    assert says in seen.job_page


def test_control_a_fence_that_nobody_says_what_to_do_with_is_not_left_out() -> None:
    with pytest.raises(ValueError, match="nothing says what to do"):
        list(steps(TEXT.replace("Create `enqueue.py`:", "So it goes:")))
