"""I10 and I11: a job begins again after its end, or a process dies, only for what the storm itself has done.

What is promised of an end: a run that a work-horse has left the end of is not run again while its worker lives. So the
work-horse or the worker must have been killed while the end may have been recorded nowhere, or whoever sends the
heartbeats must have stood still past a lease. A stock worker's work-horse, which nobody keeps an end for, gives up in a
long outage as well.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tenant_slots.running import recording
from tests.faults.observer import Event, ticks_of

KILLED, STOPPED, ENDED, LOCKED, AWAY = "killed", "stopped", "ended", "locked", "away"
"""A process by the storm; one by SIGSTOP; one by itself, as what supervises it sees; a tenant's row; the database."""

SOON = 3.0
"""Seconds in which an end is recorded where nothing is in the way, on a machine that is busy with a storm."""

GIVES_UP_AFTER = sum(recording.PAUSES)
"""Seconds of an outage after which a stock worker's work-horse does without its end."""


@dataclass(frozen=True)
class Deed:
    what: str
    whom: int | str
    """A process, or a tenant; nobody in particular is empty."""
    began: float
    ended: float


@dataclass
class Run:
    """A run as its own lines tell it; moments are seconds."""

    name: str
    tenant: str
    pid: int
    ticks: int
    worker: int
    """The parent of the process, which is the worker where that has work-horses."""
    start: float
    end: float | None = None
    next: float = field(default=float("inf"))
    """When the same process began with something else: its worker knew of the end then."""


def runs_in(events: Iterable[Event]) -> list[Run]:
    """In the order of their starts."""
    found: list[Run] = []
    workers: dict[tuple[int, int], int] = {}
    latest: dict[tuple[int, int], Run] = {}
    for event in events:
        process, moment = (event.pid, event.ticks), event.nanoseconds / 1e9
        if event.kind.startswith("under-"):
            workers[process] = int(event.kind.removeprefix("under-"))
        elif event.kind == "start":
            if process in latest:
                latest[process].next = moment
            run = Run(event.name, event.tenant, *process, workers.get(process, 0), moment)
            latest[process] = run
            found.append(run)
        elif event.kind == "end":
            latest[process].end = moment
    return found


class Deeds:
    """What the storm does to whom, and when.

    Args:
        lease: seconds without a heartbeat, at most, that nobody is fenced off for.
        is_stock: whether the workers are of RQ's own classes.
        horses_beat: whether the process that runs a job also sends its heartbeats.
        is_simple: whether it is the worker itself. An end that it keeps is not recorded when it begins the next job.
    """

    def __init__(
        self, lease: float, *, is_stock: bool = False, horses_beat: bool = False, is_simple: bool = False
    ) -> None:
        self._lease, self._is_stock, self._horses_beat = lease, is_stock, horses_beat
        self._is_simple = is_simple
        self._done: list[Deed] = []
        self._killed_workers: list[int] = []

    @contextmanager
    def doing(self, what: str, whom: int | str = "") -> Iterator[None]:
        began = time.time()
        try:
            yield
        finally:
            self._done.append(Deed(what, whom, began, time.time()))

    def note_end_of_worker(self, pid: int, status: int) -> None:
        """One that the storm has not replaced was found to have ended."""
        if status == -signal.SIGKILL:
            self._killed_workers.append(pid)
        with self.doing(ENDED, pid):
            pass

    def breaches(self, events: list[Event]) -> Iterator[str]:
        """Once all jobs have ended, while the workers live."""
        runs = runs_in(events)
        yield from self._runs_after_an_end(runs)
        yield from self._killed_healthy(runs)

    def _runs_after_an_end(self, runs: list[Run]) -> Iterator[str]:
        latest: dict[str, Run] = {}
        for run in runs:
            before = latest.get(run.name)
            latest[run.name] = run
            if before is None or before.end is None or before.end > run.start:
                continue
            if not self._may_run_again(before, run.start):
                later = run.start - before.end
                yield f"I10: {run.name} ended under worker {before.worker} and began again {later:.1f} s later"

    def _may_run_again(self, run: Run, again: float) -> bool:
        return (
            self._was_killed_before_it_was_recorded(run, again)
            or self._stood_still(run, again)
            or (self._is_stock and self._gave_up(run, again))
        )

    def _was_killed_before_it_was_recorded(self, run: Run, again: float) -> bool:
        assert run.end is not None
        until = min(again, self._recorded_by(run))
        kills = self._of(KILLED, {run.worker}, run.end, until)
        kills += self._of(KILLED, {run.pid}, run.end, until if self._is_simple else min(until, run.next))
        return bool(kills)

    def _recorded_by(self, run: Run) -> float:
        """The last moment at which its end may have been recorded nowhere."""
        assert run.end is not None
        moment = run.end + SOON
        for deed in sorted(self._done, key=lambda deed: deed.began):
            is_in_the_way = deed.what in (AWAY, STOPPED) or (deed.what, deed.whom) == (LOCKED, run.tenant)
            if is_in_the_way and deed.began <= moment and deed.ended >= run.end:
                moment = max(moment, deed.ended + SOON)
        return moment

    def _stood_still(self, run: Run, again: float) -> bool:
        """Who sends its heartbeats, for so long that the run may be taken for lost, its end not being recorded."""
        who = {run.worker, run.pid} if self._horses_beat else {run.worker}
        until = min(again, self._recorded_by(run))
        return any(deed.ended - deed.began >= self._lease for deed in self._of(STOPPED, who, run.start, until))

    def _gave_up(self, run: Run, again: float) -> bool:
        assert run.end is not None
        return any(deed.ended - run.end >= GIVES_UP_AFTER for deed in self._of(AWAY, {""}, run.end, again))

    def _killed_healthy(self, runs: list[Run]) -> Iterator[str]:
        for run in runs:
            has_died = run.end is None and run.next == float("inf") and _is_gone(run.pid, run.ticks)
            if has_died and not self._may_be_dead({run.pid, run.worker}, run.start):
                yield f"I11: process {run.pid} of worker {run.worker} died in {run.name}, and the storm did not kill it"
        for pid in self._killed_workers:
            if not self._may_be_dead({pid}):
                yield f"I11: worker {pid} was killed, and not by the storm"

    def _may_be_dead(self, who: set[int], since: float = 0.0) -> bool:
        """A work-horse dies with its worker. A worker that ended by itself has a status for what supervises it."""
        ended = [deed for deed in self._of(ENDED, who, since) if deed.whom not in self._killed_workers]
        stopped = [deed for deed in self._of(STOPPED, who, since) if deed.ended - deed.began >= self._lease]
        return bool(self._of(KILLED, who, since) or ended or stopped)

    def _of(self, what: str, who: set[int] | set[str], since: float, until: float = float("inf")) -> list[Deed]:
        return [
            deed
            for deed in self._done
            if deed.what == what and deed.whom in who and deed.ended >= since and deed.began <= until
        ]


def _is_gone(pid: int, ticks: int) -> bool:
    state, began = ticks_of(pid)
    return state in "ZX" or began != ticks
