"""Every page, looked at in every way: nothing is cut, nothing lies over something else, and axe has nothing against it.

``--pictures DIRECTORY`` keeps what is looked at.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.test import Client
from playwright.sync_api import expect

from tenant_slots.db import clock
from tenant_slots.models import State
from tests.admin.site import JOBS, QUEUES, change_page
from tests.browser.every_page import VARIANTS, filled
from tests.factories import tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

HIGHEST_PICTURE = 2600

TOO_WIDE = """() => {
    const root = document.documentElement;
    const lists = [...document.querySelectorAll("#changelist .results")];
    const cut = lists.filter((one) => one.scrollWidth > one.clientWidth);
    return [
        ...(root.scrollWidth > root.clientWidth ? [`the page by ${root.scrollWidth - root.clientWidth} px`] : []),
        ...cut.map((one) => `the list by ${one.scrollWidth - one.clientWidth} px`),
    ];
}"""

OVERLAPS = """() => {
    const seen = [...document.querySelectorAll(
        "#content :is(h1, h2, a, button, input, select, label, summary, dt, dd, th, td > *, figcaption, #slots-updated)"
    )].filter((one) => one.checkVisibility({ visibilityProperty: true }) && one.type !== "hidden"
        && !one.closest("#toolbar, #changelist-filter, .visually-hidden"));
    const shown = (one) => {
        const area = one.getBoundingClientRect();
        let [left, right, top, bottom] = [area.left, area.right, area.top, area.bottom];
        for (let above = one.parentElement; above; above = above.parentElement) {
            if (getComputedStyle(above).overflow !== "visible") {
                const edge = above.getBoundingClientRect();
                [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
                [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
            }
        }
        return { left, right, top, bottom };
    };
    const areas = seen.map(shown);
    const found = [];
    seen.forEach((one, at) => seen.slice(at + 1).forEach((other, after) => {
        const [a, b] = [areas[at], areas[at + 1 + after]];
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 2 && high > 2 && !one.contains(other) && !other.contains(one)) {
            found.push(`${one.outerHTML.slice(0, 80)} and ${other.outerHTML.slice(0, 80)}`);
        }
    }));
    return found;
}"""

LOOKS = """(one) => {
    const style = getComputedStyle(one);
    return [style.outlineStyle, style.outlineWidth, style.boxShadow, style.borderColor, style.backgroundColor].join();
}"""

CONTROLS = f"""() => document.activeElement.blur() || [...document.querySelectorAll(
    "#content :is(a[href], button, input, select, textarea, summary, [tabindex='0'])"
)].filter((one) => one.checkVisibility() && !one.disabled && one.type !== "hidden").slice(0, 60).map((one, at) => {{
    one.dataset.at = at;
    return [at, ({LOOKS})(one), one.outerHTML.slice(0, 120)];
}})"""

FOCUSED = f"() => [Number(document.activeElement.dataset.at), ({LOOKS})(document.activeElement)]"

FIELDS_OF_TIMES = 16
"""Presses of the tab key within the inputs of times, which have a day, a month and so on."""

WAY_BACK = """() => {
    const looks = getComputedStyle(document.querySelector(".breadcrumbs"));
    const link = getComputedStyle(document.querySelector(".breadcrumbs a"));
    return [looks.backgroundColor, looks.color, looks.padding, link.color];
}"""

BRANDED = """{% extends "admin/base.html" %}{% load static %}
{% block extrastyle %}{{ block.super }}<link rel="stylesheet" href="{% static 'tests/branded.css' %}">{% endblock %}
"""

SAME_NAMES = """() => {
    const places = {};
    for (const link of document.querySelectorAll("#content a[href]")) {
        const name = (link.getAttribute("aria-label") || link.textContent).trim();
        (places[name] ||= new Set()).add(link.href);
    }
    return Object.entries(places).filter(([, all]) => all.size > 1).map(([name, all]) => `${name}: ${[...all]}`);
}"""


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_page_can_be_read(boss: Client, open_page: Any, pictures: Path | None, variant: str) -> None:
    pages = filled(boss)
    shown = open_page(boss, pages["queues"], **VARIANTS[variant])
    if variant == "print":
        shown.emulate_media(media="print")
    found: list[str] = []
    for name, path in pages.items():
        shown.goto(path)
        if pictures:
            take(shown, pictures / variant / f"{name}.png")
        found += [f"{name}: {problem}" for problem in problems(shown)]
        if variant != "no-javascript":  # which axe is
            found += [f"{name}: {problem}" for problem in serious(shown)]
    assert not found, "\n".join(found)


def test_what_is_cut_lies_over_something_or_has_the_name_of_another_place_is_found(
    boss: Client, open_page: Any
) -> None:
    tenant_queue("acme"), tenant_queue("other")
    page = open_page(boss, QUEUES, **VARIANTS["1440"])
    assert not problems(page)
    page.evaluate("""() => {
        document.querySelector(".slots-bar").style.marginTop = "-40px";
        document.querySelector("#result_list").style.width = "3000px";
        document.querySelectorAll("a[data-slots-edit]").forEach((link) => link.removeAttribute("aria-label"));
    }""")
    found = "\n".join(problems(page))
    for problem in ("one over the other", "too wide: the list", "one name, several places: Set limit"):
        assert problem in found


def problems(page: Any) -> list[str]:
    wide = [f"too wide: {one}" for one in page.evaluate(TOO_WIDE)]
    over = [f"one over the other: {one}" for one in page.evaluate(OVERLAPS)]
    names = [f"one name, several places: {one}" for one in page.evaluate(SAME_NAMES)]
    return [*wide, *over, *names]


def serious(page: Any) -> list[str]:
    """What axe has against ours; the rest of the page is Django's."""
    violations = page.evaluate("window.violations")
    places = {"include": [["#content"]], "exclude": [["#changelist-search"], ["#changelist-filter"]]}
    found = Axe().run(page, context=places)
    page.evaluate("before => { window.violations = before; }", violations)  # axe tries a style of its own
    return [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in found.response["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def take(page: Any, path: Path) -> None:
    size = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], HIGHEST_PICTURE)}
    page.screenshot(path=path, full_page=True, clip=clip)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_dialog(boss: Client, open_page: Any, scheme: str) -> None:
    tenant_queue("acme")
    page = open_page(boss, QUEUES, color_scheme=scheme)
    page.locator("a[data-slots-edit]").click()
    assert not serious(page)


@pytest.mark.parametrize("path", [QUEUES, JOBS])
def test_on_a_phone_the_state_is_in_sight_and_the_filters_are_above_the_list(
    boss: Client, open_page: Any, path: str
) -> None:
    waiting_job(tenant_queue("a-customer-with-a-rather-long-name.example.org"))
    page = open_page(boss, path, **VARIANTS["390"])
    state = page.locator("#result_list :is(.field-state, .field-state_shown)").bounding_box()
    assert state["x"] + state["width"] <= 390
    filters = page.locator("#changelist-filter").bounding_box()
    assert filters["y"] + filters["height"] <= page.locator("#result_list").bounding_box()["y"]


@pytest.mark.parametrize("name", ["queues", "jobs"])
def test_a_list_is_cut_at_no_width_of_a_screen(boss: Client, open_page: Any, name: str) -> None:
    page = open_page(boss, filled(boss)[name])
    cut = {}
    for width in range(390, 1921, 10):
        page.set_viewport_size({"width": width, "height": 900})
        cut[width] = page.evaluate(TOO_WIDE)
    assert not {width: problems for width, problems in cut.items() if problems}


def test_nor_is_their_page_where_words_are_longer(boss: Client, open_page: Any) -> None:
    pages = filled(boss)
    for name in ("queues", "jobs"):
        page = open_page(boss, pages[name], locale="de")
        cut = {}
        for width in range(390, 1921, 30):
            page.set_viewport_size({"width": width, "height": 900})
            cut[width] = [problem for problem in page.evaluate(TOO_WIDE) if problem.startswith("the page")]
        assert not {width: problems for width, problems in cut.items() if problems}, name


def test_beside_the_navigation_of_a_tablet_the_number_and_the_button_of_a_group_of_failures_are_in_sight(
    boss: Client, open_page: Any
) -> None:
    page = open_page(boss, filled(boss)["failures"], **VARIANTS["768"])
    expect(page.locator("#nav-sidebar")).to_be_visible()
    button = page.locator("td.slots-to-click input[type=submit]").first.bounding_box()
    edge = page.locator(".slots-scroll").first.bounding_box()
    assert button["x"] + button["width"] <= edge["x"] + edge["width"]


@pytest.mark.parametrize(
    "reason", ["HTTP 429, as on any day on which the books are closed", f"https://shop.example/{'a' * 60}"]
)
def test_why_a_tenant_queue_rests_fits_a_phone(boss: Client, open_page: Any, reason: str) -> None:
    row = tenant_queue(rests_until=clock.now() + timedelta(hours=1), rest_reason=reason)
    page = open_page(boss, change_page(row), **VARIANTS["390"])
    expect(page.locator(".slots-heading .slots-pill")).to_contain_text(reason[:20])
    assert page.evaluate(TOO_WIDE) == []


def test_the_state_of_a_job_stays_on_one_line(boss: Client, open_page: Any) -> None:
    waiting_job(tenant_queue("a-customer-with-a-rather-long-name.example.org"), state=State.FINISHED)
    page = open_page(boss, JOBS)
    for width in (390, 768, 1024, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        lines = page.locator("#result_list .slots-pill").evaluate("one => one.getClientRects()[0].height")
        assert lines < 30, width


def test_paper_has_the_figures_and_nothing_to_click(boss: Client, open_page: Any) -> None:
    pages = filled(boss)
    page = open_page(boss, pages["queues"], **VARIANTS["print"])
    page.emulate_media(media="print")
    for path in pages.values():
        page.goto(path)
        for selector in (
            "#header",
            "#nav-sidebar",
            ".breadcrumbs",
            ".object-tools",
            "#slots-every",
            "#changelist-filter",
        ):
            for one in page.locator(selector).all():
                expect(one).to_be_hidden()
    page.goto(pages["queues"])
    expect(page.locator(".slots-tiles")).to_be_visible()
    expect(page.locator("#result_list :is(.field-state, .field-state_shown)").first).to_be_visible()


@pytest.mark.parametrize("variant", ["390", "768", "1440", "dark", "right-to-left-390"])
def test_the_way_back_looks_the_same_on_each_page(boss: Client, open_page: Any, variant: str) -> None:
    pages = filled(boss)
    page = open_page(boss, pages["queues"], **VARIANTS[variant])
    looks = {name: page.goto(path) and page.evaluate(WAY_BACK) for name, path in pages.items()}
    assert looks == dict.fromkeys(pages, looks["queues"])


def test_the_way_back_has_the_colours_that_a_project_gives_it(
    boss: Client, open_page: Any, settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "admin").mkdir()
    (tmp_path / "admin" / "base_site.html").write_text(BRANDED)
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    pages = filled(boss)
    page = open_page(boss, pages["queues"], **VARIANTS["1440"])
    colours = {name: page.goto(path) and page.evaluate(WAY_BACK)[0] for name, path in pages.items()}
    assert colours == dict.fromkeys(pages, "rgb(17, 34, 51)")


def test_no_navigation_is_within_another(boss: Client, open_page: Any) -> None:
    pages = filled(boss)
    page = open_page(boss, pages["queues"])
    for path in pages.values():
        page.goto(path)
        assert page.locator("nav nav").count() == 0, path


def test_each_control_is_reached_by_the_tab_key_and_shows_it(boss: Client, open_page: Any) -> None:
    pages = filled(boss)
    page = open_page(boss, pages["queues"], **VARIANTS["1440"])
    for name, path in pages.items():
        page.goto(path)
        missed = page.evaluate(CONTROLS)
        page.locator("#content-start").focus()
        for _ in range(len(missed) + FIELDS_OF_TIMES):
            page.keyboard.press("Tab")
            number, looks = page.evaluate(FOCUSED)
            assert all(looks != before for at, before, _ in missed if at == number), f"{name}: {number} shows no focus"
            missed = [one for one in missed if one[0] != number]
        assert not missed, f"{name}: {[html for _, _, html in missed]}"
