"""What a work-horse has started is killed when it is dead, and not before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NamedTuple
from uuid import uuid4

import pytest

from tenant_slots import owners
from tenant_slots.conf import app_settings
from tenant_slots.db import clock
from tenant_slots.models import TenantJob
from tests.factories import another_process, dead_process
from tests.faults.observer import is_gone, ticks_of
from tests.processes import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.skipif(not owners.this_host(), reason="needs /proc")]

LEASE = app_settings.LEASE_TTL

LIFE = """
import subprocess, sys
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
sys.stdin.read()
"""


NAMELESS = """
import sys
print(flush=True)
sys.stdin.readline()
open("/proc/self/comm", "wb").write("größe".encode()[:3])
print(flush=True)
sys.stdin.read()
"""


class Horse(NamedTuple):
    process: subprocess.Popen[str]
    child: int

    def die_unnoticed(self) -> None:
        """Nobody waits for it, so the system keeps its number."""
        assert self.process.stdin
        self.process.stdin.close()
        wait_until(lambda: is_gone(self.process.pid))


@contextmanager
def living(**variables: str) -> Iterator[Horse]:
    command = [sys.executable, "-c", LIFE]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,
        text=True,
        env={**os.environ, **variables},
    ) as process:
        assert process.stdout
        yield Horse(process, int(process.stdout.readline()))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def horse() -> Iterator[Horse]:
    with living() as one:
        yield one


def job_in(horse: Horse, owner: owners.Owner, heard_ago: float = 0) -> TenantJob:
    fields = owner.as_fields() | {"horse": horse.process.pid}
    return TenantJob(**fields, beat_at=clock.now() - timedelta(seconds=heard_ago))


def test_what_a_dead_work_horse_has_started_is_killed_although_nobody_has_waited_for_it(horse: Horse) -> None:
    horse.die_unnoticed()
    owners.end_leftovers(job_in(horse, dead_process()))
    wait_until(lambda: is_gone(horse.child))


@pytest.mark.parametrize(("heard_ago", "is_spared"), [(LEASE - 5, False), (LEASE + 60, True)])
def test_a_group_that_began_long_after_a_run_was_last_heard_of_is_a_strangers(
    horse: Horse, heard_ago: float, is_spared: bool
) -> None:
    """All that the work-horse had started had ended, and the system has given its number to another process since."""
    horse.die_unnoticed()
    owners.end_leftovers(job_in(horse, dead_process(), heard_ago))
    if is_spared:
        assert not is_gone(horse.child)
    else:
        wait_until(lambda: is_gone(horse.child))


@pytest.mark.parametrize("is_named", [True, False])
def test_unless_one_has_the_name_of_the_job_in_its_environment(is_named: bool) -> None:
    """As what a job starts long after its last heartbeat, where these are kept out."""
    uuid = uuid4()
    with living(RQ_JOB_ID=f"{uuid if is_named else uuid4()}-1") as horse:
        job = job_in(horse, dead_process(), LEASE + 60)
        job.uuid = uuid
        horse.die_unnoticed()
        owners.end_leftovers(job)
        if is_named:
            wait_until(lambda: is_gone(horse.child))
        assert is_gone(horse.child) == is_named


def test_nor_is_anything_killed_for_a_run_that_was_never_heard_of(horse: Horse) -> None:
    job = job_in(horse, dead_process())
    job.beat_at = None
    horse.die_unnoticed()
    owners.end_leftovers(job)
    assert not is_gone(horse.child)
    job.started_at = clock.now()
    owners.end_leftovers(job)
    wait_until(lambda: is_gone(horse.child))


@pytest.mark.parametrize("host", ["", "another host"])
def test_a_number_of_another_host_is_left_alone(horse: Horse, host: str) -> None:
    horse.die_unnoticed()
    owners.end_leftovers(job_in(horse, dead_process(host=host)))
    assert not is_gone(horse.child)


def test_a_work_horse_that_lives_is_left_alone(horse: Horse) -> None:
    owners.end_leftovers(job_in(horse, another_process()))
    assert horse.process.poll() is None
    assert not is_gone(horse.child)


def test_a_process_that_calls_itself_something_that_is_no_text_is_alive() -> None:
    """By a title of other letters than ASCII, which the kernel has cut in the middle of one."""
    command = [sys.executable, "-c", NAMELESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        job = TenantJob(**another_process(pid=process.pid, pid_started=ticks_of(process.pid)[1]).as_fields())
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert owners.liveness(job) is owners.Liveness.ALIVE
        process.kill()
        process.wait()
        assert owners.liveness(job) is owners.Liveness.DEAD
