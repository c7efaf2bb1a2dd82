"""Real worker processes, and waiting for what they do."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import django_rq
from django.conf import settings
from django.db import connection
from rq import Worker
from rq.job import JobStatus

from tenant_slots import queue_directory
from tenant_slots.models import TenantJob
from tests import warm_start
from tests.warm_start import MANAGE, ROOT, Process


def wait_until(condition: Callable[[], object], timeout: float = 30.0, message: str = "") -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(message or f"not true within {timeout} s: {condition}")
        time.sleep(0.01)


def threads_of_reservations() -> list[threading.Thread]:
    """One whose caller has left may insert its job yet."""
    return [thread for thread in threading.enumerate() if thread.name == "tenant_slots reservation"]


LOCK_WAITS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE wait_event_type = 'Lock' AND backend_type = 'client backend' AND datname = current_database()"
)
WAITS_FOR_THIS = (
    "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
)


def somebody_waits_for_a_lock() -> bool:
    """In this test's database, for others may be on the server; autovacuum is nobody. Also seen from inside a
    transaction, which otherwise keeps its first look at the sessions.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(LOCK_WAITS)
        return bool(cursor.fetchone()[0])


def somebody_waits_for_this_session() -> bool:
    """For a lock that the caller's transaction holds."""
    with connection.cursor() as cursor:
        cursor.execute(WAITS_FOR_THIS)
        return bool(cursor.fetchone()[0])


class Workers:
    """The worker processes of one test; `variables` are added to their environment."""

    def __init__(self, **variables: str) -> None:
        self.processes: list[Process] = []
        self.variables = variables

    def start(
        self,
        count: int = 1,
        *arguments: str,
        queues: tuple[str, ...] = ("imports",),
        worker_class: str | None = None,
    ) -> list[Process]:
        """Start `count` processes and return when RQ knows them, or they have ended well by then.

        `worker_class` "" means no setting at all.
        """
        before = self._registered()
        new = [self._begin("rqworker", *queues, *arguments, worker_class=worker_class) for _ in range(count)]
        self.processes += new

        def are_known() -> bool:
            return self._registered() >= before + count or all(one.poll() == 0 for one in new)

        wait_until(are_known, message=f"{count} workers did not start")
        return new

    def run(self, *arguments: str, queues: tuple[str, ...] = ("imports",), worker_class: str | None = None) -> Process:
        """One process that ends by itself, as with ``--burst``; returns when it has."""
        process = self._begin("rqworker", *queues, *arguments, worker_class=worker_class)
        try:
            process.wait(60)
        finally:
            process.kill()
        return process

    def _begin(self, command: str, *arguments: str, worker_class: str | None = None) -> Process:
        """Without Django's checks, which take as long as all else until a worker is there, and have their own tests."""
        variables = {**environment(worker_class), **self.variables}
        return warm_start.start([command, "--skip-checks", *arguments], variables)

    def run_pool(self, *arguments: str, worker_class: str) -> subprocess.CompletedProcess[bytes]:
        """RQ's pool, with one worker, which ends by itself."""
        command = [*MANAGE, "rqworker-pool", "imports", "--num-workers", "1"]
        command += ["--worker-class", worker_class, *arguments]
        return subprocess.run(command, cwd=ROOT, env={**environment(), **self.variables}, timeout=60)

    def start_cron(self, config: Path) -> subprocess.Popen[bytes]:
        """RQ's own process that enqueues what is due."""
        command = [*MANAGE, "rqcron", str(config)]
        process = subprocess.Popen(command, cwd=ROOT, env={**environment(), **self.variables})
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """Kills them, in whatever state the test has left them: to end politely takes RQ a second or two."""
        for process in self.processes:
            offspring = _offspring(process.pid)  # RQ's scheduler among it, which outlives a worker, also a pool's
            process.kill()
            process.wait()
            for pid in offspring:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda offspring=offspring: not any(map(_is_alive, offspring)))  # with their database sessions

    @staticmethod
    def _registered() -> int:
        return Worker.count(connection=django_rq.get_connection("default"))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _offspring(pid: int) -> list[int]:
    """Children, and theirs."""
    children = _children(pid)
    return [*children, *(one for child in children for one in _offspring(child))]


def environment(worker_class: str | None = None) -> dict[str, str]:
    """The environment of a process that shall see the test database, not the one it was cloned from."""
    values = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": test_database_url()}
    values["REDIS_URL"] = settings.RQ_QUEUES["default"]["URL"]
    if worker_class is not None:
        values["TEST_WORKER_CLASS"] = worker_class
    return values


def test_database_url() -> str:
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    scheme, _, rest = os.environ["DATABASE_URL"].partition("://")
    server, _, database = rest.partition("/")
    _, _, query = database.partition("?")
    return f"{scheme}://{server}/{name}?{query}"


test_database_url.__test__ = False  # type: ignore[attr-defined]


def last_rq_id(job: TenantJob) -> str:
    """The id in RQ of the job's last attempt, as the database has it, also while the job waits for another one."""
    job.refresh_from_db()
    return job.last_rq_id


def is_announced(job: TenantJob) -> bool:
    """Whether RQ has been told that the job runs; workers of ours tell so when it has lasted for a moment."""
    rq_job = queue_directory.queue_named(job.rq_queue_name).fetch_job(last_rq_id(job))
    return rq_job is not None and rq_job.get_status() == JobStatus.STARTED
