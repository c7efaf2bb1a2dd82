"""What a witness says to other processes, and never says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tenant_slots import witness
from tenant_slots.witness import LAYOUT, Phase, Seen, Witness, seen_in
from tests.sleeping import replace_sleep

A = Seen(0x0101010101010101, 0x0101010101010101, 0x0101010101010101, Phase.TAKING)
B = Seen(0x0202020202020202, 0x0202020202020202, 0x0202020202020202, Phase.HOLDING)

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

ANOTHER_PROCESS = """
from tenant_slots.witness import Witness
one = Witness.shared()
print(flush=True)
while words := input().split():
    getattr(one, words[0])(*map(int, words[1:]))
    print(flush=True)
"""


class Elsewhere:
    """A process that does with its witness what it is told."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", ANOTHER_PROCESS]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._wait()

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    one = Elsewhere()
    yield one
    one.end()


@contextmanager
def forked(writes: Witness) -> Iterator[None]:
    """A child that writes the one and the other in turn, as quickly as it can."""
    child = os.fork()
    if not child:
        while True:
            writes._write(A)
            writes._write(B)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def readings(shared: Witness, seconds: float) -> set[Seen]:
    seen = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with suppress(ValueError):  # a mix may name no phase
            seen.add(shared.read())
    return seen


def test_one_starts_with_nothing_to_say() -> None:
    for one in (Witness(), Witness.shared()):
        assert one.read() == Seen(0, 0, 0, Phase.IDLE)


@linux_only
def test_another_process_sees_what_it_says(elsewhere: Elsewhere) -> None:
    pid = elsewhere.process.pid
    seen = [list(seen_in(pid))]
    for words in ("taking 1 2 3", "holding", "ending", "idle"):
        elsewhere.tell(words)
        seen.append(list(seen_in(pid)))
    assert seen == [
        [Seen(0, 0, 0, Phase.IDLE)],
        [Seen(1, 2, 3, Phase.TAKING)],
        [Seen(1, 2, 3, Phase.HOLDING)],
        [Seen(1, 2, 3, Phase.ENDING)],
        [Seen(0, 0, 0, Phase.IDLE)],
    ]


@linux_only
def test_a_process_without_a_witness_says_nothing_and_one_that_is_gone_cannot_be_looked_at(
    elsewhere: Elsewhere,
) -> None:
    with subprocess.Popen(["sleep", "60"]) as none:
        assert list(seen_in(none.pid)) == []
        none.kill()
    elsewhere.end()
    with pytest.raises(OSError, match="No such"):
        list(seen_in(elsewhere.process.pid))


def test_nobody_ever_reads_a_mix() -> None:
    shared = Witness.shared()
    with forked(shared):
        assert readings(shared, 1) <= {A, B, Seen(0, 0, 0, Phase.IDLE)}


@pytest.mark.parametrize("looks", [1, 2])
def test_control_one_look_reads_a_mix_and_so_do_two_that_agree(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(read: witness.Callable[[], bytes]) -> Seen:
        content = [read() for _ in range(looks)]
        while len(set(content)) > 1:
            content = [read() for _ in range(looks)]
        return Seen(*LAYOUT.unpack(content[0][: LAYOUT.size]))

    def halfway(self: Witness, seen: Seen) -> None:
        """As slow as a writer that the system stops after its first field."""
        content = LAYOUT.pack(*seen)
        self._memory[:8] = content[:8]
        time.sleep(0.001)
        self._memory[8 : LAYOUT.size] = content[8:]

    monkeypatch.setattr(witness, "_settled", unchecked)
    monkeypatch.setattr(Witness, "_write", halfway)
    shared = Witness.shared()
    with forked(shared):
        assert readings(shared, 1) - {A, B, Seen(0, 0, 0, Phase.IDLE)}


def test_a_writer_that_was_stopped_halfway_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was killed there too, but not for ever."""
    shared = Witness.shared()
    shared._write(A)
    whole = bytes(shared._memory[: witness.SIZE])
    shared._memory[:8] = b"\2" * 8
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            shared._memory[: witness.SIZE] = whole

    replace_sleep(monkeypatch, sleep)
    assert shared.read() == A
    assert len(pauses) == 20
    shared._memory[:8] = b"\2" * 8
    assert shared.read().token == A.token
    assert len(pauses) == 20 + len(witness.PAUSES)
