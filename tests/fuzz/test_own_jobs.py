"""Jobs of ours run once, in the slots that their tenants have, whoever does what meanwhile."""

from __future__ import annotations

import pytest
from django.db import connection
from django.utils import timezone

from tenant_slots import slots, statements
from tenant_slots.db.compiled import Statement
from tenant_slots.models import State, TenantJob
from tests.fuzz.game import play, seeds
from tests.fuzz.own import Person

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]


@pytest.mark.parametrize("seed", seeds(4))
def test_jobs_of_ours_run_as_often_as_they_should(seed: int) -> None:
    played = play(seed, Person)
    assert not played.breaches, "\n".join([*played.breaches, *played.log])


def cancel_as_it_was(job: TenantJob) -> bool:
    """Instead of asking for the state of the row while nobody can change it."""
    if job.state in (State.WAITING, State.SCHEDULED):
        TenantJob.objects.filter(pk=job.pk).update(state=State.CANCELED, ended_at=timezone.now())
    return False


START_ANYWAY = Statement(
    lambda: TenantJob.objects.filter(pk=statements.PK), statements._STARTED, returning=statements.BY_START
)
"""Whatever has become of the job since it was admitted."""


def test_control_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TenantJob, "cancel", cancel_as_it_was)
    monkeypatch.setattr(slots, "START_RESERVATION", START_ANYWAY)
    monkeypatch.setattr(slots, "START_IF_DUE", START_ANYWAY)
    assert any(play(seed, Person).breaches for seed in range(40))
