"""The plan of a tenant, which only the project knows: shown where somebody wonders about a limit."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from typing import Any

import pytest
from django.test import Client

from tenant_slots.admin import TenantQueueAdmin
from tests.admin.site import HOSTILE, QUEUES, change_page, run_action
from tests.factories import tenant_queue

pytestmark = pytest.mark.django_db

PLANS = {"acme": "Pro", "beta": HOSTILE}


def plans_of(self: Any, tenants: Collection[str]) -> dict[str, str]:
    return {tenant: PLANS[tenant] for tenant in tenants if tenant in PLANS}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TenantQueueAdmin, "plans_of", plans_of)


def exported(client: Client, *rows: Any) -> list[str]:
    answer = run_action(client, QUEUES, "export", *rows)
    lines = csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode()))
    return [line["plan"] for line in lines]


@pytest.mark.usefixtures("plans")
def test_it_is_shown_in_the_list_on_the_page_and_in_the_export(boss: Client) -> None:
    row, without = tenant_queue("acme"), tenant_queue("gamma")
    assert boss.get(QUEUES).content.decode().count('<bdi class="slots-plan">Pro</bdi>') == 1
    assert "plan <bdi>Pro</bdi>" in boss.get(change_page(row)).content.decode()
    assert "plan <bdi>" not in boss.get(change_page(without)).content.decode()
    assert exported(boss, row, without) == ["Pro", ""]


@pytest.mark.usefixtures("plans")
def test_what_it_is_called_is_text(boss: Client) -> None:
    row = tenant_queue("beta")
    for page in (QUEUES, change_page(row)):
        assert HOSTILE not in boss.get(page).content.decode()


def test_all_tenants_of_a_page_are_asked_for_at_once(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []
    monkeypatch.setattr(TenantQueueAdmin, "plans_of", lambda self, tenants: asked.append({*tenants}) or {})
    tenant_queue("acme"), tenant_queue("beta"), tenant_queue("beta", queue="reports")
    boss.get(QUEUES)
    assert asked == [{"acme", "beta"}]


def test_who_names_no_plans_sees_none(boss: Client) -> None:
    row = tenant_queue("acme")
    assert "slots-plan" not in boss.get(QUEUES).content.decode()
    assert exported(boss, row) == [""]
