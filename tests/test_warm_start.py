"""A fork of a template is in every respect the process that ``manage.py`` would have been."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests import warm_start
from tests.processes import environment, wait_until

LOOK = """
import json, os, pathlib, signal, sys, threading, warnings
import __main__
from django.conf import settings
pathlib.Path(os.environ["LOOKED"]).write_text(json.dumps({
    "arguments": sys.argv[:2], "path": sys.path, "main": os.path.abspath(__main__.__file__),
    "environment": dict(os.environ), "directory": os.getcwd(), "group": os.getpgrp(), "session": os.getsid(0),
    "signals": {name: str(signal.getsignal(name)) for name in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "descriptors": sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
    "filters": [str(one) for one in warnings.filters], "threads": threading.active_count(),
    "worker class": settings.RQ["WORKER_CLASS"], "slots": getattr(settings, "TENANT_SLOTS", None),
    "modules": sorted(name for name in sys.modules if name.startswith("tests")),
    "streams": [sys.stdout.line_buffering, sys.stdout.encoding, sys.stdin.closed],
}))
print("to standard output")
print("to standard error", file=sys.stderr)
"""

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(not warm_start.CAN_FORK, reason="a system without descriptors of processes"),
]


def looked(values: dict[str, str]) -> dict[str, Any]:
    file = Path(values["LOOKED"])
    file.unlink(missing_ok=True)
    assert warm_start.start(["shell", "-c", LOOK], values).wait(60) == 0
    seen: dict[str, Any] = json.loads(file.read_text())
    return seen


@pytest.fixture
def values(tmp_path: Path) -> dict[str, str]:
    """An environment that no test has had before."""
    return {**environment(), "LOOKED": str(tmp_path / "looked")}


def test_a_fork_finds_what_a_process_of_its_own_finds(values: dict[str, str], capfd: Any) -> None:
    by_itself = looked(values)
    assert not has_template(values)
    fork = looked(values)
    assert has_template(values)
    assert fork == by_itself
    assert "tests.contrib.jobs" not in fork["modules"], "which reads some of what is read later as it is imported"
    output = capfd.readouterr()
    assert output.out.count("to standard output") == output.err.count("to standard error") == 2


def test_forks_of_one_template_differ_in_what_is_read_later(values: dict[str, str]) -> None:
    looked(values)
    other = {
        "TEST_WORKER_CLASS": "rq.SimpleWorker",
        "TEST_SABOTAGE_FILE": "armed",
        "TEST_TENANT_SLOTS": '{"LEASE_TTL": 7}',
    }
    seen = looked({**values, **other})
    assert has_template(values)
    assert seen["environment"]["TEST_SABOTAGE_FILE"] == "armed"
    assert (seen["worker class"], seen["slots"]) == ("rq.SimpleWorker", {"LEASE_TTL": 7})
    after = looked(values)
    assert (after["worker class"], after["slots"]) == ("tenant_slots.workers.TenantWorker", None)


def test_the_second_fork_has_nothing_of_the_first_one(values: dict[str, str]) -> None:
    looked(values)
    waiting = warm_start.start(["shell", "-c", "import time; time.sleep(60)"], values)
    assert looked(values) == looked(values)
    waiting.kill()
    assert waiting.wait(10) == -signal.SIGKILL


def test_it_is_told_how_each_of_them_ended(values: dict[str, str]) -> None:
    looked(values)
    refused = warm_start.start(["shell", "-c", "raise SystemExit(3)"], values)
    stopped = warm_start.start(["shell", "-c", "import time; time.sleep(60)"], values)
    assert refused.wait(60) == refused.returncode == refused.poll() == 3
    assert stopped.poll() is None
    stopped.terminate()
    wait_until(lambda: stopped.poll() is not None)
    assert stopped.returncode == -signal.SIGTERM


def test_one_thread_may_poll_while_another_one_waits(values: dict[str, str]) -> None:
    """The observer of a test asks who lives, twenty times a second."""
    looked(values)
    fork = warm_start.start(["shell", "-c", "import time; time.sleep(60)"], values)
    told: list[int] = []
    waiting = Thread(target=lambda: told.append(fork.wait(60)))
    waiting.start()
    wait_until(fork._listens.locked)  # type: ignore[attr-defined]
    assert fork.poll() is None
    os.kill(fork.pid, signal.SIGKILL)
    wait_until(lambda: fork.poll() is not None)
    waiting.join(10)
    assert told == [-signal.SIGKILL]


def test_a_template_ends_once_its_forks_have(values: dict[str, str]) -> None:
    looked(values)
    fork = warm_start.start(["shell", "-c", "import time; time.sleep(60)"], values)
    template = warm_start._templates.pop(warm_start.key_of(values))
    template.end()
    assert template.process.poll() is None, "somebody has yet to be told"
    fork.kill()
    assert (fork.wait(10), template.process.wait(10)) == (-signal.SIGKILL, 0)


def has_template(values: dict[str, str]) -> bool:
    return warm_start.key_of(values) in warm_start._templates
