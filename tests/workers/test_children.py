"""Children of a worker: none is left that nobody knows of, and each is waited for, whatever the system offers."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

from tenant_slots.workers.children import Child
from tests.processes import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a system without descriptors of processes")


@pytest.fixture(params=[errno.ENOSYS, errno.EPERM, errno.EMFILE])
def _no_descriptors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pid: int) -> int:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "pidfd_open", fail)


@pytest.mark.usefixtures("_no_descriptors")
def test_a_child_without_a_descriptor_is_waited_for_all_the_same() -> None:
    child = Child(lambda: time.sleep(0.2))
    child.wait(30)
    assert child.has_ended()
    assert child.status == 0, "it had no time to end by itself"


@pytest.mark.usefixtures("_no_descriptors")
def test_the_wait_for_a_child_without_a_descriptor_ends_in_time_and_when_there_is_something_to_read() -> None:
    child = Child(signal.pause)
    end, other = os.pipe()
    try:
        assert child.wait(0.05, end) == []
        os.write(other, b"news")
        assert child.wait(30, end) == [end]
    finally:
        child.end()
        os.close(end)
        os.close(other)


@pytest.mark.parametrize("has_descriptor", [True, False])
def test_nobody_waits_for_a_child_that_is_known_to_have_ended(
    has_descriptor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptor is closed by then."""
    if not has_descriptor:
        monkeypatch.setattr("tenant_slots.workers.children._descriptor_of", lambda pid: None)
    child, (end, other) = Child(lambda: None), os.pipe()
    wait_until(child.has_ended)
    monkeypatch.setattr("tenant_slots.workers.children.POLL_SECONDS", 10)
    began = time.monotonic()
    assert child.wait(10, end) == []
    assert time.monotonic() - began < 9
    os.write(other, b"what it has said before")
    assert child.wait(10, end) == [end]
    os.close(end)
    os.close(other)


def test_a_signal_whose_handler_raises_right_after_the_fork_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    forked: list[int] = []

    def interrupted(pid: int) -> int:
        forked.append(pid)
        raise SystemExit

    monkeypatch.setattr(os, "pidfd_open", interrupted)
    with pytest.raises(SystemExit):
        Child(signal.pause)
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)


def test_control_a_child_that_was_not_ended_can_be_waited_for() -> None:
    child = Child(signal.pause)
    assert os.waitpid(child.pid, os.WNOHANG) == (0, 0)
    child.end()
    wait_until(child.has_ended)
