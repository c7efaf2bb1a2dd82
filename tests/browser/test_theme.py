"""The pages in a theme without Django's style sheets and their variables."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.admin.test_theme import with_theme
from tests.factories import another_process, fresh, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

QUEUES = "/ours_first/tenant_slots/tenantqueue/"


@pytest.fixture(autouse=True)
def _theme(settings: Any) -> None:
    settings.TEMPLATES = with_theme()


def busy() -> Any:
    row = tenant_queue("acme", max_job=1)
    running_job(row, another_process())
    waiting_job(row)
    return fresh(row)


def style(page: Any, selector: str, name: str) -> str:
    value: str = page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{name}")
    return value


def test_charts_and_states_are_drawn(boss: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES)
    assert style(page, ".slots-ran", "stroke") != "none"
    assert style(page, ".slots-pill", "borderTopWidth") == "1px"
    assert style(page, ".slots-tile", "borderTopWidth") == "1px"
    page.goto(f"{QUEUES}{row.pk}/change/")
    assert style(page, ".slots-charts polyline", "stroke") != "none"
    assert style(page, ".slots-table td", "borderBottomWidth") == "1px"


def test_what_one_types_into_can_be_seen(boss: Client, open_page: Any) -> None:
    row = busy()
    for path, field in (("change", "reason"), ("limit", "max_job"), ("limit", "until")):
        page = open_page(boss, f"{QUEUES}{row.pk}/{path}/")
        assert style(page, f"[name={field}]", "borderTopWidth") == "1px"


def test_the_dialog_is_in_the_middle_and_covers_what_is_below(boss: Client, open_page: Any) -> None:
    busy()
    page = open_page(boss, QUEUES, viewport={"width": 1000, "height": 800})
    page.locator("a[data-slots-edit]").click()
    box = page.locator("#slots-dialog").bounding_box()
    assert abs(box["x"] + box["width"] / 2 - 500) < 20
    assert style(page, "#slots-dialog", "backgroundColor") not in ("rgba(0, 0, 0, 0)", "transparent")
    assert style(page, "#slots-dialog", "color") != style(page, "#slots-dialog", "backgroundColor")
