"""What the storm asks for besides the observer can fail, and does not where nothing is wrong."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.factories import another_process, running_job, tenant_queue
from tests.faults.observer import Event
from tests.storm import pauses
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
