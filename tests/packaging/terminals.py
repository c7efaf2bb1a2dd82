"""Terminals of somebody who follows the manual: a shell that is left where it was, and programs that go on running."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.processes import wait_until

OURS = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "REDIS_URL", "PYTHONPATH")
"""What the tests' own project is told, and a reader's must not be."""


class Terminal:
    """A program in a terminal of its own, until Ctrl-C."""

    def __init__(self, process: subprocess.Popen[bytes], printed: Path) -> None:
        self.process = process
        self._printed = printed

    @property
    def output(self) -> str:
        return self._printed.read_text()

    def running(self) -> list[int]:
        """The ids of its processes: the program, and what it has started, also in groups of their own."""
        return [pid for pid, state, session in _processes() if session == self.process.pid and state not in "ZX"]

    def interrupt(self) -> None:
        """Ctrl-C, which all of the program's group is told, as a server that the program has started."""
        self._tell(signal.SIGINT)
        self.process.wait(timeout=30)

    def close(self) -> None:
        """Ctrl-C, then the end of all that has not heard it. Returns when nothing is left."""
        with suppress(subprocess.TimeoutExpired):
            self.interrupt()
        self._tell(signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not self.running(), message=f"not all of it ended: {self.process.args}")

    def _tell(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _processes() -> Iterator[tuple[int, str, int]]:
    """Of this system: each one's id, state and session."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, _group, session = stat.read_text().rpartition(")")[2].split()[:4]
            yield int(stat.parent.name), state, int(session)


def _hear_ctrl_c() -> None:
    """Whoever runs the tests in the background may have had it ignored, which programs inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Shell:
    """Runs one line after the other in a directory; ``cd`` and an activated environment hold for the next ones."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self._directory = directory
        self._state = directory / ".state"
        self._state.write_text(f"cd {shlex.quote(str(directory))}\n")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if name not in OURS}
        self._variables = {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", **variables}
        self.terminals: list[Terminal] = []

    @property
    def cwd(self) -> Path:
        return Path(self.run("pwd").strip())

    def run(self, line: str) -> str:
        """What it printed. It has to end well."""
        script = f'. "$0"\n{line}\ncode=$?\n{{ echo "cd $(printf %q "$PWD")"; export -p; }} > "$0"\nexit $code'
        done = subprocess.run(["bash", "-c", script, self._state], **self._options(), timeout=300)
        assert done.returncode == 0, f"$ {line}\n{done.stdout}"
        return str(done.stdout)

    def open(self, line: str) -> Terminal:
        """The program in another terminal, in the same directory and environment."""
        printed = self._directory / f"terminal{len(self.terminals)}"
        with printed.open("w") as file:
            options = {**self._options(), "stdout": file}
            command = ["bash", "-c", f'. "$0"\nexec {line}', self._state]
            process = subprocess.Popen(command, **options, start_new_session=True, preexec_fn=_hear_ctrl_c)
        self.terminals.append(Terminal(process, printed))
        return self.terminals[-1]

    def close(self) -> None:
        """Ends what is still running, the last one first, so that workers still have their server."""
        for terminal in reversed(self.terminals):
            terminal.close()

    def _options(self) -> dict[str, object]:
        return {
            "cwd": self._directory,
            "env": self._variables,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
