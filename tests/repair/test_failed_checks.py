"""A check of the doctor that fails keeps no other from telling what it finds, nor a sweep from repairing it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db import DataError
from django.test import Client, override_settings
from django.urls import reverse

from tenant_slots.repair import doctor
from tenant_slots.repair import findings as found
from tenant_slots.repair.finding import Finding
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def _refused() -> Iterator[Finding]:
    raise DataError("integer out of range")


def _wrong() -> Iterator[Finding]:
    raise LookupError("no such thing\nwith what is in the row")


@pytest.fixture
def _fails_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"counters": (_refused, _wrong, *doctor.CHECKS["counters"])})


@pytest.mark.usefixtures("_fails_first")
def test_the_others_tell_what_they_find_and_a_sweep_repairs_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = tenant_queue(current_job=1)
    with pytest.raises(SystemExit) as ended:
        call_command("slots_doctor", "--fix", "--json")
    assert ended.value.code == 1
    document = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in document["findings"]] == ["check failed", "check failed", "counter"]
    assert document["left"][1]["meaning"] == "wrong: LookupError: no such thing"
    assert [one["kind"] for one in document["left"]] == ["check failed"] * 2
    assert fresh(row).current_job == 0


@pytest.mark.usefixtures("_fails_first")
@override_settings(TENANT_SLOTS={"MAY_VIEW_HEALTH": "tests.test_views.from_our_probe"})
def test_health_counts_it(client: Client) -> None:
    answer = client.get(reverse("health"), {"check": "counters"}, headers={"X-Probe": "ours"})
    assert answer.json()["findings"] == {"check failed": 2}


def test_a_tenant_queue_that_was_deleted_meanwhile_is_not_stranded(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, there = (waiting_job(tenant_queue(tenant)).tenant_queue for tenant in ("gone", "there"))
    stranded = found.stranded

    def then_deleted() -> Iterator[tuple[str, int]]:
        rows = list(stranded())
        gone.jobs.all().delete()
        gone.delete()
        yield from rows

    monkeypatch.setattr(found, "stranded", then_deleted)
    kinds = {(one.kind, one.tenant) for one in doctor.findings("backlog")}
    assert kinds == {("stranded", there.tenant)}
