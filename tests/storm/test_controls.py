"""What the storm asks for besides the observer can fail, and does not where nothing is wrong."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from dataclasses import replace

import pytest

from tests.factories import another_process, running_job, tenant_queue
from tests.faults.observer import Event, ticks_of
from tests.storm import pauses
from tests.storm.deeds import AWAY, ENDED, KILLED, LOCKED, STOPPED, Deed, Deeds
from tests.storm.pauses import Pauses
from tests.storm.probe import Probe


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("while_paused", [True, False])
def test_a_start_while_its_tenant_is_paused_is_a_breach(monkeypatch: pytest.MonkeyPatch, while_paused: bool) -> None:
    monkeypatch.setattr(pauses, "UNDER_WAY", pauses.UNDER_WAY * 0)
    row, seen = tenant_queue(max_job=3), Pauses()
    running_job(row, another_process())
    seen.began("acme")
    if while_paused:
        running_job(row, another_process())
    running_job(tenant_queue("another"), another_process())
    seen.is_to_end("acme")
    running_job(row, another_process())
    seen.is_to_end("acme")
    assert len(seen.breaches) == while_paused


def start(name: str, moment: float) -> Event:
    return Event(int(moment * 1e9), 1, 1, "start", "tenant", name)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("seconds", "others", "is_away", "breaches"),
    [(21, 21, False, 1), (19, 21, False, 0), (21, 19, False, 0), (21, 21, True, 0)],
    ids=["late", "soon", "others no sooner", "an outage"],
)
def test_a_newcomer_that_others_go_before_for_long_is_a_breach(
    seconds: float, others: int, is_away: bool, breaches: int
) -> None:
    probe = Probe()
    with probe.outage() if is_away else nullcontext():
        probe.enqueue("/dev/null")
    ((name, asked),) = probe.asked.items()
    before = [start(f"other{n}", asked + 1) for n in range(others)]
    again = start(name, asked + 1000)
    assert len(list(probe.breaches([*before, start(name, asked + seconds), again]))) == breaches


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("held", "breaches"), [(0.1, 1), (5, 0)], ids=["free at once", "held by a killed run"])
def test_a_newcomer_waits_from_the_last_end_of_the_one_before(held: float, breaches: int) -> None:
    probe = Probe()
    for _ in range(2):
        probe.enqueue("/dev/null")
    (first, asked), (second, _) = probe.asked.items()
    others = [start(f"other{n}", asked + 10) for n in range(21)]
    ended = replace(start(first, asked + held), kind="end")
    assert len(list(probe.breaches([start(first, asked), ended, *others, start(second, asked + 22)]))) == breaches


# --- what the storm has not done itself -----------------------------------------------------------------------------

NAMES = {"horse": 20, "worker": 10, "another": 99, "tenant": "tenant", "database": ""}

GONE = 2**22
"""No process has a number as high as this one."""


def line(moment: float, kind: str, name: str = "job", horse: int = 20) -> Event:
    return Event(int(moment * 1e9), horse, GONE, kind, "tenant", name)


def run(start: float, end: float | None, name: str = "job", horse: int = 20) -> list[Event]:
    lines = [line(start, "under-10", name, horse), line(start, "start", name, horse)]
    return lines if end is None else [*lines, line(end, "end", name, horse)]


Done = tuple[str, str, float, float]
"""What the storm did, to whom, from when to when."""


def deeds(*done: Done, **how: bool) -> Deeds:
    """Of a storm that did this to processes whose lease is 2 seconds."""
    storm = Deeds(2, **how)
    storm._done += [Deed(what, NAMES[whom], began, ended) for what, whom, began, ended in done]
    return storm


EXCUSED: dict[str, list[Done]] = {
    "its horse killed as it ended": [(KILLED, "horse", 0.9, 1.1)],
    "its worker killed soon after": [(KILLED, "worker", 2, 2)],
    "its worker killed in an outage": [(AWAY, "database", 0.5, 7), (KILLED, "worker", 6, 6)],
    "its worker killed while the row was locked": [(LOCKED, "tenant", 0.5, 7), (KILLED, "worker", 6, 6)],
    "its worker stopped past a lease": [(STOPPED, "worker", 0.5, 4)],
}

UNEXCUSED: dict[str, list[Done]] = {
    "nothing": [],
    "an outage alone": [(AWAY, "database", 0.5, 7)],
    "another worker killed": [(KILLED, "another", 2, 2)],
    "its worker killed before": [(KILLED, "worker", 0.1, 0.2)],
    "its worker killed when it was recorded": [(KILLED, "worker", 6, 6)],
    "its worker killed afterwards": [(KILLED, "worker", 9, 9)],
    "its worker stopped when it was recorded": [(STOPPED, "worker", 5, 8)],
    "its worker stopped for a moment": [(STOPPED, "worker", 1, 2)],
    "its horse stopped, for which the worker sends heartbeats": [(STOPPED, "horse", 0.5, 4)],
}


@pytest.mark.parametrize("done", UNEXCUSED.values(), ids=UNEXCUSED)
def test_a_start_after_an_end_that_is_not_the_storms_doing_is_a_breach(done: list[Done]) -> None:
    again = [*run(0, 1), *run(8, 8.1)]
    assert len(list(deeds(*done).breaches(again))) == 1
    assert not list(deeds(*done).breaches([*run(0, 1), *run(8, 8.1, "another job")]))


@pytest.mark.parametrize("done", EXCUSED.values(), ids=EXCUSED)
def test_a_start_after_an_end_is_no_breach_where_the_storm_kept_it_from_being_recorded(done: list[Done]) -> None:
    assert not list(deeds(*done).breaches([*run(0, 1), *run(8, 8.1)]))


def test_an_end_is_recorded_when_its_horse_has_turned_to_another_job() -> None:
    killed = deeds((KILLED, "horse", 2, 2))
    assert list(killed.breaches([*run(0, 1), *run(1.5, 1.8, "next"), *run(8, 8.1)]))
    assert not list(killed.breaches([*run(0, 1), *run(7, 7.1, "next"), *run(8, 8.1)]))


def test_a_worker_without_horses_keeps_an_end_while_it_runs_other_jobs_in_an_outage() -> None:
    outage, killed = (AWAY, "database", 0.5, 7.0), (KILLED, "horse", 6.0, 6.0)
    again = [*run(0, 1), *run(1.5, 1.8, "next"), *run(8, 8.1)]
    assert not list(deeds(outage, killed, is_simple=True).breaches(again))
    assert list(deeds(killed, is_simple=True).breaches(again)), "it was recorded before, as nothing was in the way"
    assert list(deeds(outage, killed).breaches(again)), "of a work-horse the worker keeps it"


def test_only_a_horse_that_sends_its_own_heartbeats_is_fenced_off_where_it_stood_still() -> None:
    again, stopped = [*run(0, 1), *run(8, 8.1)], (STOPPED, "horse", 0.5, 4)
    assert not list(deeds(stopped, horses_beat=True).breaches(again))


@pytest.mark.parametrize(("seconds", "is_stock", "breaches"), [(40, True, 0), (20, True, 1), (40, False, 1)])
def test_only_a_stock_horse_gives_up_its_end_in_a_long_outage(seconds: float, is_stock: bool, breaches: int) -> None:
    storm = deeds((AWAY, "database", 0.5, seconds), is_stock=is_stock)
    assert len(list(storm.breaches([*run(0, 1), *run(60, 61)]))) == breaches


def test_an_end_of_a_run_that_another_one_has_taken_the_place_of_is_not_meant() -> None:
    """The first was fenced off and went on; the second died."""
    fenced, second, third = run(0, 6), run(5, None, horse=99), run(8, 8.1)
    events = sorted([*fenced, *second, *third], key=lambda event: event.nanoseconds)
    assert not list(deeds((KILLED, "another", 7, 7)).breaches(events))


@pytest.mark.parametrize(
    ("done", "breaches"),
    [
        ([], 1),
        ([(KILLED, "another", 1, 1), (AWAY, "database", 1, 9), (STOPPED, "worker", 1, 2)], 1),
        ([(KILLED, "horse", 1, 1)], 0),
        ([(KILLED, "worker", 1, 1)], 0),
        ([(ENDED, "worker", 1, 1)], 0),
        ([(STOPPED, "worker", 1, 4)], 0),
    ],
    ids=["nothing", "nothing to it", "killed", "its worker killed", "its worker ended", "its worker stopped"],
)
def test_a_horse_that_died_in_a_job_and_not_by_the_storm_is_a_breach(done: list[Done], breaches: int) -> None:
    assert len(list(deeds(*done).breaches(run(0, None)))) == breaches


def test_a_horse_that_runs_or_has_ended_its_job_is_none() -> None:
    pid, (_, ticks) = os.getpid(), ticks_of("self")
    mine = Event(0, pid, ticks, "start", "tenant", "job")
    assert not list(deeds().breaches([mine]))
    assert not list(deeds().breaches(run(0, 1)))
    assert list(deeds().breaches([replace(mine, ticks=ticks + 1)])), "control: the process before of that number"


@pytest.mark.parametrize(
    ("done", "status", "breaches"),
    [
        ([], -signal.SIGKILL, 1),
        ([], 1, 0),
        ([(KILLED, "worker", 1, 1)], -signal.SIGKILL, 0),
        ([(STOPPED, "worker", 1, 4)], -signal.SIGKILL, 0),
        ([(STOPPED, "worker", 1, 2)], -signal.SIGKILL, 1),
    ],
    ids=["killed by somebody", "ended", "by the storm", "stopped past a lease", "stopped for a moment"],
)
def test_a_worker_that_somebody_else_has_killed_is_a_breach(done: list[Done], status: int, breaches: int) -> None:
    storm = deeds(*done)
    storm.note_end_of_worker(10, status)
    assert len(list(storm.breaches([]))) == breaches
