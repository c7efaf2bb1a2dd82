"""A double click on the button of a form: what is done is done once, and the answer is that of what was done."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest
from django.test import Client
from playwright.sync_api import expect

from tests.admin.site import QUEUES, change_page
from tests.factories import fresh, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)

BETWEEN = 40
"""Milliseconds of each click: of two at the same moment a browser sends one only."""


def sent(page: Any) -> list[str]:
    """The addresses to which the page sends forms from now on."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if request.method == "POST" else None)
    return found


def click_twice(page: Any, button: str) -> None:
    """Forms are held until both clicks are done: a quick answer would take the page away from the second one."""
    held: list[Any] = []
    clicked = Event()

    def hold_forms(route: Any) -> None:
        if route.request.method == "POST" and not clicked.is_set():
            held.append(route)
        else:
            route.continue_()

    page.route("**/*", hold_forms)
    page.dblclick(button, delay=BETWEEN)
    clicked.set()
    for route in held:
        route.continue_()


def test_an_action_does_not_say_that_somebody_else_was_quicker(boss: Client, open_page: Any) -> None:
    tenant_queue("acme")
    page = open_page(boss, QUEUES)
    page.check(".action-select")
    page.select_option("select[name=action]", "set_limit")
    page.click("button[name=index]")
    page.fill("input[name=max_job]", "7")
    forms = sent(page)
    click_twice(page, ".slots-form input[type=submit]")
    expect(page.locator(".messagelist")).to_have_text("The limit of 1 tenant queue was set.")
    assert len(forms) == 1


@pytest.mark.parametrize("view", ["change", "limit"])
def test_a_change_is_not_said_to_be_refused(view: str, boss: Client, open_page: Any) -> None:
    row = tenant_queue("acme")
    page = open_page(boss, change_page(row, view))
    page.fill("input[name=max_job]", "7")
    forms = sent(page)
    click_twice(page, "input[type=submit].default")
    expect(page.locator(".messagelist")).to_contain_text("limit 7")
    assert len(forms) == 1
    assert fresh(row).max_job == 7


def test_control_without_a_script_it_is_sent_twice(boss: Client, open_page: Any) -> None:
    page = open_page(boss, change_page(tenant_queue("acme"), "limit"), java_script_enabled=False)
    forms = sent(page)
    click_twice(page, "input[type=submit].default")
    page.wait_for_url("**/tenantqueue/")
    assert len(forms) == 2


def test_a_page_that_somebody_comes_back_to_can_be_sent_again(boss: Client, open_page: Any) -> None:
    row = tenant_queue("acme")
    page = open_page(boss, change_page(row, "limit"))
    forms = sent(page)
    for number in (1, 2):
        page.fill("input[name=max_job]", "7")
        page.click("input[type=submit].default")
        expect(page.locator(".messagelist, .errorlist").first).to_be_visible()
        assert len(forms) == number
        page.go_back()
    assert fresh(row).max_job == 7
