"""The live list as staff see it: it updates by itself, limits are edited in it, and it breaks in no browser setting."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from tenant_slots.admin import TenantQueueAdmin
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.admin.site import QUEUES, change_page, signed_in
from tests.factories import another_process, fresh, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

HOSTILE = ["<script>alert(1)</script>", "a\r\nb", "\u202egnp.exe", "x" * 200, "שלום עולם"]


@pytest.fixture(autouse=True)
def _two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants to wait for five seconds in a test."""
    from tenant_slots.admin.snapshots import shared_tiles

    monkeypatch.setattr(shared_tiles, "seconds", 1)


def fast(page: Any) -> Any:
    page.select_option("#slots-every", "2")
    return page


def busy() -> TenantQueue:
    row = tenant_queue("acme", max_job=3)
    for number in range(3):
        running_job(row, another_process(f"worker-{number}"))
    waiting_job(row), waiting_job(row)
    tenant_queue("paused", paused=True), tenant_queue("over", max_job=1, current_job=2), tenant_queue("idle")
    return fresh(row)


def place(page: Any, row: TenantQueue, name: str) -> Any:
    return page.locator(f'[data-slots="{row.pk}.{name}"]')


def test_the_list_updates_without_a_reload(boss: Client, open_page: Any) -> None:
    row = busy()
    page = fast(open_page(boss, QUEUES))
    page.evaluate("window.notReloaded = true")
    expect(place(page, row, "usage")).to_have_text("3 / 3")
    order = page.locator(".slots-name").all_text_contents()

    row.set_limit(5)
    waiting_job(TenantQueue.objects.get(tenant="idle"))

    expect(place(page, row, "usage")).to_have_text("3 / 5")
    expect(place(page, row, "state")).to_have_text("Waits for a worker")
    expect(place(page, row, "meter")).to_have_attribute("max", "5")
    expect(page.locator('[data-slots="tile.running"]')).to_have_text("3 / 0")
    assert page.locator(".slots-name").all_text_contents() == order
    assert page.evaluate("window.notReloaded")


def test_an_update_leaves_checked_boxes_focus_and_an_open_dialog_alone(boss: Client, open_page: Any) -> None:
    row = busy()
    page = fast(open_page(boss, QUEUES))
    page.locator("input.action-select").first.check()
    place(page, row, "edit").click()
    page.fill("#slots-reason", "half writ")
    TenantQueue.objects.get(tenant="idle").pause()

    expect(place(page, TenantQueue.objects.get(tenant="idle"), "state")).to_have_text("Paused")

    expect(page.locator("#slots-dialog")).to_be_visible()
    expect(page.locator("#slots-reason")).to_be_focused()
    expect(page.locator("#slots-reason")).to_have_value("half writ")
    expect(page.locator("input.action-select").first).to_be_checked()


def test_a_limit_is_edited_in_place_and_waiting_jobs_start(boss: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES)
    place(page, row, "edit").click()
    page.fill("#slots-max-job", "1")
    expect(page.locator("#slots-effect")).to_contain_text("Running 3, limit 1: 2 too many. None is stopped")
    page.fill("#slots-max-job", "4")
    page.fill("#slots-reason", "big import")
    page.keyboard.press("Enter")
    expect(page.locator("#slots-dialog")).to_be_hidden()
    expect(place(page, row, "usage")).to_have_text("3 / 4")
    expect(place(page, row, "edit")).to_be_focused()
    assert row.jobs.filter(state=State.QUEUED).count() == 1


def test_the_dialog_says_that_a_limit_is_temporary_and_ok_alone_changes_nothing(boss: Client, open_page: Any) -> None:
    row = busy()
    row.set_override(9, timezone.now() + timedelta(hours=3, seconds=17), by="night shift")
    before = (fresh(row).override_until, row.version)
    page = open_page(boss, QUEUES)
    place(page, row, "edit").click()
    expect(page.locator("#slots-override")).to_contain_text("then 3 (night shift)")
    expect(page.locator("#slots-until")).to_have_value(f"{timezone.localtime(row.override_until):%Y-%m-%dT%H:%M}")
    page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog")).to_be_hidden()
    assert (fresh(row).override_until, row.version) == before

    place(page, row, "edit").click()
    page.fill("#slots-until", "")
    page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog")).to_be_hidden()
    assert (fresh(row).max_job, row.override_until) == (9, None)

    place(page, row, "edit").click()
    expect(page.locator("#slots-override")).to_be_hidden()
    expect(page.locator("#slots-until")).to_have_value("")


def test_a_conflict_shows_both_values_and_is_decided_by_a_second_click(boss: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES)
    place(page, row, "edit").click()
    row.set_limit(7)
    page.fill("#slots-max-job", "4")
    page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog-error")).to_contain_text("Their limit: 7. Yours: 4.")
    assert fresh(row).max_job == 7
    page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog")).to_be_hidden()
    assert fresh(row).max_job == 4


def test_after_a_conflict_the_dialog_knows_of_the_others_override(boss: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES)
    place(page, row, "edit").click()
    row.set_override(7, timezone.now() + timedelta(hours=1), by="night shift")
    page.fill("#slots-max-job", "7")
    page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog-error")).to_contain_text("Their limit: 7 (override until")
    expect(page.locator("#slots-until")).to_have_value("")
    shown = timezone.localtime(fresh(row).override_until)
    expect(page.locator("#slots-shown-until")).to_have_value(f"{shown:%Y-%m-%dT%H:%M}")
    page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog")).to_be_hidden()
    assert (fresh(row).max_job, row.override_until) == (7, None)


def test_two_clicks_save_once_and_are_no_conflict(boss: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES)
    held: list[Any] = []
    page.route("**/limit/", lambda route: held.append(route))
    place(page, row, "edit").click()
    page.fill("#slots-max-job", "4")
    for _ in range(3):
        page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog")).to_be_visible()
    held[0].continue_()
    expect(page.locator("#slots-dialog")).to_be_hidden()
    assert len(held) == 1
    assert (fresh(row).max_job, row.version) == (4, 1)


def test_a_server_that_hangs_while_a_limit_is_saved_is_given_up(boss: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES)
    page.clock.install()
    page.route("**/limit/", lambda route: None)
    place(page, row, "edit").click()
    page.fill("#slots-max-job", "4")
    page.locator("#slots-limit-form input[type=submit]").click()
    page.clock.run_for(11_000)
    expect(page.locator("#slots-dialog-error")).to_contain_text("No answer. It may be saved all the same")
    page.unroute("**/limit/")
    page.locator("#slots-limit-form input[type=submit]").click()
    expect(page.locator("#slots-dialog")).to_be_hidden()
    assert fresh(row).max_job == 4


def test_a_hidden_tab_does_not_poll(boss: Client, open_page: Any) -> None:
    tenant_queue()
    page = fast(open_page(boss, QUEUES))
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if "/live/" in request.url else None)
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.wait_for_timeout(500)  # what was on its way has arrived
    polls.clear()
    page.wait_for_timeout(3000)
    assert polls == []
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(1000)
    assert polls


def test_a_server_that_fails_makes_the_page_outdated_and_is_asked_less_often(boss: Client, open_page: Any) -> None:
    tenant_queue()
    page = open_page(boss, QUEUES)
    asked: list[str] = []
    page.route("**/live/**", lambda route: (asked.append("x"), route.fulfill(status=500))[1])
    fast(page)
    expect(page.locator("#slots-outdated")).to_contain_text("Outdated since")
    page.wait_for_timeout(5000)
    assert len(asked) <= 2
    page.unroute("**/live/**")
    expect(page.locator("#slots-outdated")).to_have_text("", timeout=20_000)


def test_a_server_that_hangs_is_given_up_and_asked_once_at_a_time(boss: Client, open_page: Any) -> None:
    tenant_queue()
    page = open_page(boss, QUEUES)
    asked: list[Any] = []
    page.route("**/live/**", lambda route: asked.append(route))
    fast(page)
    for _ in range(7):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_timeout(100)
    assert len(asked) == 1
    expect(page.locator("#slots-outdated")).to_contain_text("Outdated since", timeout=20_000)
    page.unroute("**/live/**")
    expect(page.locator("#slots-outdated")).to_have_text("", timeout=20_000)


def test_a_row_that_was_deleted_is_struck_out(boss: Client, open_page: Any) -> None:
    row = tenant_queue()
    page = fast(open_page(boss, QUEUES))
    row.delete()
    expect(page.locator(".field-state .slots-pill")).to_have_text("Deleted", timeout=10_000)


def test_every_row_of_a_long_list_is_followed(boss: Client, open_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project may show more rows on a page than one poll may ask for."""
    monkeypatch.setattr(TenantQueueAdmin, "list_per_page", 1000)
    TenantQueue.objects.bulk_create([TenantQueue(tenant=f"tenant {at}", queue="imports") for at in range(502)])
    page = open_page(boss, QUEUES)
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if "/live/?" in request.url else None)
    states = page.locator(".field-state .slots-pill")
    rows = [int(place.split(".")[0]) for place in states.evaluate_all("all => all.map((one) => one.dataset.slots)")]
    TenantQueue.objects.filter(pk__in=[rows[0], rows[-1]]).update(paused=True)
    fast(page)
    for at in (0, 501):
        expect(states.nth(at)).to_have_text("Paused")
    assert page.locator('[data-state="deleted"]').count() == 0
    TenantQueue.objects.get(pk=rows[-1]).delete()
    expect(states.nth(501)).to_have_text("Deleted")
    assert page.locator('[data-state="deleted"]').count() == 1
    assert max(map(len, polls)) < 4000, "a server may refuse longer addresses"


@pytest.mark.parametrize("loss", ["session", "permission", "row"])
def test_a_dialog_that_is_refused_says_why(open_page: Any, loss: str) -> None:
    operator = signed_in("view_tenantqueue", "set_limit_tenantqueue")
    row = busy()
    page = open_page(operator, QUEUES)
    place(page, row, "edit").click()
    page.fill("#slots-max-job", "4")
    if loss == "session":
        Session.objects.all().delete()
    elif loss == "permission":
        User.objects.get().user_permissions.remove(Permission.objects.get(codename="set_limit_tenantqueue"))
    else:
        TenantJob.objects.all().delete()
        row.delete()
    page.locator("#slots-limit-form input[type=submit]").click()
    text = "signed out" if loss == "session" else "may not change this tenant queue, or it was deleted"
    expect(page.locator("#slots-dialog-error")).to_contain_text(text)
    expect(page.locator("#slots-dialog-error")).to_contain_text("Reload the page")


@pytest.mark.parametrize("width", [390, 768, 1024])
def test_no_field_of_the_change_form_is_hidden_on_a_narrow_screen(boss: Client, open_page: Any, width: int) -> None:
    page = open_page(boss, change_page(tenant_queue()))
    page.set_viewport_size({"width": width, "height": 900})
    hidden = page.evaluate(
        "[...document.querySelectorAll('.form-row:not(.hidden)')]"
        ".filter((row) => !row.offsetParent).map((row) => row.className)"
    )
    assert [name for name in hidden if "seen_version" not in name] == []


def test_a_viewer_who_is_signed_out_is_told_and_polls_no_more(boss: Client, open_page: Any) -> None:
    tenant_queue()
    page = open_page(boss, QUEUES)
    polls: list[str] = []
    page.on("request", lambda request: polls.append(request.url) if "/live/?" in request.url else None)
    Session.objects.all().delete()
    fast(page)
    expect(page.locator("#slots-outdated")).to_contain_text("you are signed out")
    page.wait_for_timeout(3000)
    assert len(polls) == 1


def test_off_is_off_and_is_remembered(boss: Client, open_page: Any) -> None:
    tenant_queue()
    page = open_page(boss, QUEUES)
    page.select_option("#slots-every", "0")
    expect(page.locator("#slots-updated")).to_have_text("not updating")
    page.reload()
    expect(page.locator("#slots-every")).to_have_value("0")


def test_a_viewer_has_nothing_to_edit(viewer: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(viewer, QUEUES)
    expect(place(page, row, "state")).to_be_visible()
    assert place(page, row, "edit").count() == 0
    assert page.locator("select[name=action]").count() == 0


def test_a_pause_asks_first_and_shows_in_the_list(open_page: Any) -> None:
    operator = signed_in("view_tenantqueue", "pause_tenantqueue")
    row = tenant_queue("acme")
    page = open_page(operator, QUEUES)
    page.locator("input.action-select").first.check()
    page.select_option("select[name=action]", "pause")
    page.locator("button[name=index]").click()
    expect(page.locator("#content")).to_contain_text("acme on imports: running 0, limit 1, waiting 0")
    page.fill("input[name=reason]", "feeds are broken")
    page.locator(".submit-row input[type=submit]").click()
    expect(place(page, row, "state")).to_have_text("Paused")


def test_without_javascript_the_link_leads_to_a_form(boss: Client, open_page: Any) -> None:
    row = tenant_queue("acme")
    page = open_page(boss, QUEUES, java_script_enabled=False)
    place(page, row, "edit").click()
    page.fill("input[name=max_job]", "4")
    page.locator(".submit-row input[type=submit]").click()
    expect(page.locator(".messagelist")).to_contain_text("Limit of acme on imports: 4.")
    assert fresh(row).max_job == 4


@pytest.mark.parametrize("path", ["list", "detail", "job", "overview"])
def test_a_narrow_screen_does_not_scroll_sideways(boss: Client, open_page: Any, path: str) -> None:
    row = tenant_queue("x" * 200, max_job=0)
    job = waiting_job(row, key="k" * 200)
    row.set_limit(0, reason="y" * 200)
    paths = {"list": QUEUES, "detail": change_page(row), "job": change_page(job), "overview": f"{QUEUES}overview/"}
    page = open_page(boss, paths[path], viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_hostile_names_are_text_and_keep_the_layout(boss: Client, open_page: Any) -> None:
    for name in HOSTILE:
        tenant_queue(name)
    page = open_page(boss, QUEUES, viewport={"width": 1600, "height": 900})
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    assert "<script>alert(1)</script>" in page.locator(".slots-name").all_text_contents()
    widths = page.locator(".slots-name").evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")
    assert max(widths) < 400
    assert page.evaluate("document.documentElement.scrollWidth") <= 1600


def test_a_right_to_left_page_is_laid_out_from_the_right(boss: Client, open_page: Any) -> None:
    busy()
    page = open_page(boss, QUEUES, locale="he-IL")
    assert page.locator("html").get_attribute("dir") == "rtl"
    tiles = page.locator(".slots-tile").evaluate_all("all => all.map(one => one.getBoundingClientRect().left)")
    assert tiles[0] > tiles[1]


@pytest.mark.parametrize("options", [{"forced_colors": "active"}, {"reduced_motion": "reduce"}])
def test_states_can_be_told_apart_without_colour(boss: Client, open_page: Any, options: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES, **options)
    expect(place(page, row, "state")).to_have_text("At its limit")
    icons = page.locator(".slots-pill").evaluate_all("all => all.map(one => getComputedStyle(one, '::before').content)")
    assert len(set(icons)) == 4
    assert place(page, row, "state").evaluate("one => getComputedStyle(one).borderTopWidth") == "1px"


def test_the_focus_can_be_seen(boss: Client, open_page: Any) -> None:
    row = busy()
    page = open_page(boss, QUEUES)
    place(page, row, "edit").focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert place(page, row, "edit").evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
