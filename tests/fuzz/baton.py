"""Threads of which one goes on at a time, and a seed says which."""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from enum import Enum

PACES = (3, 8, 25, 80)
"""It is another actor's turn after about so many steps: some races need many changes, others a single long one."""

SECONDS_TO_STEP = 60
"""For which one step may take at most, on a machine that is busy with much else."""

SECONDS_BETWEEN_LOOKS = 0.005
"""At who waits for a lock, while a step takes long."""


class State(Enum):
    READY = "ready"
    RUNNING = "running"
    LOCKED_OUT = "locked out"
    DONE = "done"


class Actor(threading.Thread):
    def __init__(self, name: str, action: Callable[[], object], baton: Baton) -> None:
        super().__init__(name=name, daemon=True)
        self._action, self.baton = action, baton
        self.goes_on = threading.Event()
        self.state = State.READY
        self.rank = 0.0
        self.session = 0
        """The number of the database session that it has used last."""
        self.error: BaseException | None = None

    def run(self) -> None:
        _here.actor = self
        self.goes_on.wait()
        try:
            self._action()
        except BaseException as error:
            self.error = error
        finally:
            self.baton.is_now(self, State.DONE)

    def step(self, towards: str) -> None:
        """Let others go on, if it is their turn.

        Args:
            towards: what it does next.
        """
        self.goes_on.clear()
        self.baton.is_now(self, State.READY)
        self.goes_on.wait()
        self.note(towards)

    def rest(self) -> None:
        """Let all others go on first."""
        self.baton.falls_behind(self)
        self.step("goes on")

    def note(self, what: str) -> None:
        self.baton.log.append(f"{self.name}: {what}")


_here = threading.local()


def actor_here() -> Actor | None:
    """None in a thread that no baton knows, which just goes on."""
    return getattr(_here, "actor", None)


class Baton:
    """Runs actors to their ends, one step of one actor at a time.

    Of those that can go on the one with the highest rank does. Now and then it falls behind all others, so that it
    stands still between any two of its steps for as long as these have something to do.

    An actor that waits for a lock in the database is passed over. As soon as it has that it ends its step, before
    anybody else has one.

    Args:
        seed: what decides.
        is_locked_out: whether the database session with this number waits for a lock.
    """

    def __init__(self, seed: int, is_locked_out: Callable[[int], bool]) -> None:
        self._chance = random.Random(seed)
        self._pace = self._chance.choice(PACES)
        self._is_locked_out = is_locked_out
        self._changed = threading.Condition()
        self._lowest = 0.0
        self._actors: list[Actor] = []
        self.log: list[str] = []
        """Who did what, in its order."""

    def run(self, actions: Mapping[str, Callable[[], object]]) -> None:
        """
        Raises:
            BaseException: the first one of an action.
        """
        self._actors = [Actor(name, action, self) for name, action in actions.items()]
        for one in self._actors:
            one.rank = self._chance.random()
            one.start()
        while (actor := self._next()) is not None:
            self._let_go_on(actor)
            if self._chance.random() < 1 / self._pace:
                self.falls_behind(actor)
        for error in [actor.error for actor in self._actors if actor.error]:
            raise error

    def falls_behind(self, actor: Actor) -> None:
        self._lowest -= 1
        actor.rank = self._lowest

    def is_now(self, actor: Actor, state: State) -> None:
        with self._changed:
            actor.state = state
            self._changed.notify_all()

    def _next(self) -> Actor | None:
        """None when all have ended."""
        deadline = time.monotonic() + SECONDS_TO_STEP
        while True:
            if ready := self._those_that_are(State.READY):
                return max(ready, key=lambda actor: actor.rank)
            locked_out = self._those_that_are(State.LOCKED_OUT)
            if not locked_out:
                return None
            self._has_soon_stopped(locked_out[0])
            self._require_before(deadline)

    def _those_that_are(self, state: State) -> list[Actor]:
        return [actor for actor in self._actors if actor.state is state]

    def _let_go_on(self, actor: Actor) -> None:
        actor.state = State.RUNNING
        actor.goes_on.set()
        self._wait_for_step(actor)
        for other in self._those_that_are(State.LOCKED_OUT):
            if other is not actor and not self._is_locked_out(other.session):
                self._wait_for_step(other)

    def _wait_for_step(self, actor: Actor) -> None:
        deadline = time.monotonic() + SECONDS_TO_STEP
        while not self._has_soon_stopped(actor):
            if self._is_locked_out(actor.session):
                self._note_locked_out(actor)
                return
            self._require_before(deadline)

    def _has_soon_stopped(self, actor: Actor) -> bool:
        with self._changed:
            stopped = (State.READY, State.DONE)
            return self._changed.wait_for(lambda: actor.state in stopped, SECONDS_BETWEEN_LOOKS)

    def _note_locked_out(self, actor: Actor) -> None:
        with self._changed:
            if actor.state is State.RUNNING:
                actor.state = State.LOCKED_OUT

    def _require_before(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            frames = sys._current_frames()
            places = [
                f"{actor.name} is {actor.state.value}:\n{''.join(traceback.format_stack(frames.get(actor.ident or 0)))}"
                for actor in self._actors
            ]
            raise AssertionError("\n".join(["nobody goes on:", *places]))
