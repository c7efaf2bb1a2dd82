"""Each call that RQ is told of under one id runs as often as it should, whoever does what meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from tenant_slots import rq_copies
from tenant_slots.running import deliveries
from tests.fuzz.game import play, seeds
from tests.fuzz.plain import Person

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


@pytest.mark.parametrize("seed", seeds(4))
def test_each_call_of_a_plain_job_runs_as_often_as_it_should(seed: int) -> None:
    played = play(seed, Person)
    assert not played.breaches, "\n".join([*played.breaches, *played.log])


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(rq_copies, "keep_latest", id="a run writes over what was told"),
        pytest.param(deliveries, "_is_to_come_back", id="one that was told since is put off"),
    ],
)
def test_control_a_fault_is_found(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, name, lambda *_: True)
    assert any(play(seed, Person).breaches for seed in range(40))
