"""The demo from its first process to its last."""

from __future__ import annotations

import logging
import secrets
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import django_rq
from django.core.management import call_command
from django.db import connection
from redis.exceptions import RedisError
from rich.console import Console
from rq import Worker

from example_project.demo import shops
from example_project.demo.environment import Place
from example_project.demo.errors import DemoFailed
from example_project.demo.figures import Figures, figures_of, percentile, unfinished, waits_first_in_first_out
from example_project.demo.processes import Child, Processes, StopRequest
from example_project.demo.screen import TOGETHER, Screen, counts_by_shop, summary
from tenant_slots.models import TenantJob

logger = logging.getLogger(__name__)

WORKERS = 4
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_WITHOUT_PROGRESS = 60.0
SERVED_IMPORTS = 12
"""How many imports the big shop adds under ``--serve`` whenever its backlog is shorter than that."""


class Demo:
    """One run. `run` ends everything it started, whatever happens."""

    def __init__(self, place: Place, console: Console, *, imports: int) -> None:
        self.place = place
        self.console = console
        self.imports = imports
        self.stop_request = StopRequest()
        self.processes = Processes(place.directory, self.stop_request)
        self.workers: list[Child] = []
        self.users: list[str] = []

    def run(self, *, serve: bool) -> None:
        """Raises DemoFailed or Stopped."""
        with self._ending_everything():
            self._start_servers()
            self._compare()
            if serve:
                self._serve()

    @contextmanager
    def _ending_everything(self) -> Iterator[None]:
        try:
            yield
        finally:
            valkey = [child for child in self.processes.children if child.name == "valkey"]
            self.processes.stop([child for child in self.processes.children if child not in valkey])
            try:
                if not self.place.is_throwaway:
                    shops.clean(*self.users)
            except Exception:
                logger.exception("The rows of the shops demo-* could not be removed; the next demo does it.")
            finally:
                connection.close()
                self.processes.stop(valkey)
                shutil.rmtree(self.place.directory, ignore_errors=True)

    def _start_servers(self) -> None:
        self.console.print(f"Database: {connection.vendor}, Redis: {self._redis_name()}, {WORKERS} workers")
        if self.place.valkey_port:
            data = str(self.place.directory / "data")
            self.processes.start("valkey", "-m", "example_project.demo.valkey", str(self.place.valkey_port), data)
        self.processes.wait_for(_redis_answers, "Redis did not answer")
        _require_unused_queue()
        call_command("migrate", verbosity=0)
        self.processes.start("web", "manage.py", "runserver", f"127.0.0.1:{self.place.web_port}", "--noreload")
        self.processes.wait_for(self._web_answers, "The web server did not answer")

    def _compare(self) -> None:
        limited = _figures(self._phase("With limits", limited=True))
        jobs = self._phase("The same load without limits: the fair order alone", limited=False)
        unlimited = _figures(jobs)
        self.console.print(summary(limited, unlimited))
        for line in verdict(limited, unlimited, _p95_first_in_first_out(jobs)):
            self.console.print(line)

    def _phase(self, title: str, *, limited: bool) -> list[TenantJob]:
        shops.make(limited=limited)
        self._start_workers()
        with Screen(self.console, title, limited=limited) as screen:
            self._enqueue_and_follow(screen)
        jobs = list(shops.jobs().select_related("tenant_queue").defer("args", "kwargs"))
        _require_finished(jobs)
        self._stop_workers()
        return jobs

    def _enqueue_and_follow(self, screen: Screen) -> None:
        arrivals = shops.arrivals(self.imports)
        began = moved = time.monotonic()
        before = None
        while True:
            self.processes.check()
            while arrivals and arrivals[0].seconds <= time.monotonic() - began:
                arrivals.pop(0).enqueue()
            counts = counts_by_shop()
            screen.show(counts)
            if not arrivals and not shops.unended().exists():
                return
            if counts != before:
                before, moved = counts, time.monotonic()
            if time.monotonic() - moved > SECONDS_WITHOUT_PROGRESS:
                raise DemoFailed(f"No job moved for {SECONDS_WITHOUT_PROGRESS:.0f} s.\n{self.workers[0].last_words()}")
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _start_workers(self) -> None:
        arguments = ("manage.py", "rqworker", shops.QUEUE, "--verbosity", "0")
        self.workers = [self.processes.start(f"worker-{number}", *arguments) for number in range(1, WORKERS + 1)]
        self.processes.wait_for(lambda: _worker_count() >= WORKERS, "The workers did not start")

    def _stop_workers(self) -> None:
        self.processes.stop(self.workers)
        self.workers = []

    def _serve(self) -> None:
        """Keep the shops busy until a signal comes."""
        admin, password = shops.free_admin_name(), secrets.token_urlsafe(9)
        shops.make(limited=True)
        shops.make_users(admin, password)
        self.users = [admin]
        self._start_workers()
        self._tell_how_to_sign_in(admin, password)
        while self.stop_request.number is None:
            self.processes.check()
            for shop in shops.SHOPS:
                count = SERVED_IMPORTS if shop is shops.BIG else 1
                if shops.unended().filter(tenant_queue__tenant=shop.slug).count() < count:
                    shops.Arrival(0, shop, count).enqueue()
            self._rest(3.0)
        self.console.print("Stopping.")

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.stop_request.number is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _tell_how_to_sign_in(self, admin: str, password: str) -> None:
        url = self._web_url()
        self.console.print()
        self.console.print(f"Admin: {url}admin/ (sign in as {admin})", soft_wrap=True)
        self.console.print(f"Shops: {url} (sign in as {', '.join(shops.SLUGS)})", soft_wrap=True)
        self.console.print(f"The password of each is {password}", highlight=False, markup=False)
        self.console.print("The shops keep importing: change a limit in the admin. Press Ctrl-C to end.")

    def _web_url(self) -> str:
        return f"http://127.0.0.1:{self.place.web_port}/"

    def _web_answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._web_url()}sign-in/", timeout=5):  # noqa: S310  our own address
                return True
        except OSError:
            return False

    def _redis_name(self) -> str:
        return "embedded Valkey" if self.place.valkey_port else "REDIS_URL"


def verdict(limited: dict[str, Figures], unlimited: dict[str, Figures], first_in_first_out: float) -> list[str]:
    """What the summary says, in sentences.

    Args:
        first_in_first_out: the p95 wait of the small shops' jobs if all jobs started in the order of enqueueing.

    Raises:
        DemoFailed: a shop ran more jobs at once than its limit allows.
    """
    for shop in shops.SHOPS:
        if limited[shop.slug].overlap > shop.max_job:
            raise DemoFailed(f"{shop.name} ran {limited[shop.slug].overlap} jobs at once; max_job is {shop.max_job}.")
    with_limits, without = limited[TOGETHER].p95, unlimited[TOGETHER].p95
    big, big_without = limited[shops.BIG.slug].overlap, unlimited[shops.BIG.slug].overlap
    return [
        "No shop ever ran more than its max_job at once.",
        f"95 % of the small shops' jobs started within {with_limits:.2f} s with limits, {without:.2f} s without;",
        f"{first_in_first_out:.2f} s first in, first out, as on plain django-rq (computed from these times).",
        "The fair order bounds how long a small shop waits, with limits and without them.",
        f"A limit bounds what one shop holds: the big one had {big} of {WORKERS} workers, {big_without} without it.",
    ]


def _figures(jobs: list[TenantJob]) -> dict[str, Figures]:
    by_shop = {slug: [job for job in jobs if job.tenant_queue.tenant == slug] for slug in shops.SLUGS}
    small = [job for shop in shops.SMALL for job in by_shop[shop.slug]]
    return {**{slug: figures_of(own) for slug, own in by_shop.items()}, TOGETHER: figures_of(small)}


def _p95_first_in_first_out(jobs: list[TenantJob]) -> float:
    waits = waits_first_in_first_out(jobs, WORKERS)
    return percentile([wait for job, wait in waits.items() if job.tenant_queue.tenant != shops.BIG.slug], 95)


def _require_finished(jobs: list[TenantJob]) -> None:
    if wrong := unfinished(jobs):
        raise DemoFailed(f"{len(wrong)} of {len(jobs)} jobs did not finish. The first one: {wrong[0].error}")


def _redis_answers() -> bool:
    with suppress(RedisError, OSError):
        return bool(django_rq.get_connection(shops.QUEUE).ping())
    return False


def _worker_count() -> int:
    return len(Worker.all(queue=django_rq.get_queue(shops.QUEUE)))


def _require_unused_queue() -> None:
    """The demo's workers would take the jobs of others, and other workers the demo's."""
    queue = django_rq.get_queue(shops.QUEUE)
    if queue.count or _worker_count():
        raise DemoFailed(
            f"The RQ queue {shops.QUEUE!r} at REDIS_URL holds {queue.count} jobs and has {_worker_count()} workers. "
            "Give the demo a Redis whose queue is unused, or unset REDIS_URL."
        )
