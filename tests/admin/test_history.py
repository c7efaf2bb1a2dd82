"""The history of a tenant queue: whoever has changed it, and why, in the reader's language and with a time zone."""

from __future__ import annotations

from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin import ModelAdmin, site
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.db import transaction
from django.test import Client, RequestFactory, override_settings
from django.utils import timezone, translation

from tenant_slots import limits
from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin, history
from tenant_slots.admin.charts import Chart, Series
from tenant_slots.models import KeptChange, TenantJob, TenantQueue
from tests.admin.site import JOBS, QUEUES, change_page, confirmed, loaded, signed_in
from tests.factories import fresh, in_thread, tenant_queue, waiting_job
from tests.repair.sweeps import sweep_now

pytestmark = pytest.mark.django_db(transaction=True)


def shown(client: Client, row: TenantQueue, **headers: str) -> list[tuple[str, ...]]:
    lines = client.get(change_page(row), headers=headers).context["slots_history"]
    return [(line.user, line.what, line.old, line.new, line.reason) for line in lines]


def test_changes_by_command_code_and_sweep_are_shown_with_their_reason(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    call_command("slots_limit", "acme", "imports", "4", "--by", "deploy", "--reason", "sale")
    fresh(row).set_share(3)
    fresh(row).set_override(9, timezone.now() + timedelta(hours=1), by="code", reason="rush")
    TenantQueue.objects.update(override_until=timezone.now() - timedelta(seconds=1))
    sweep_now()

    by_sweep, overridden, share, limit = shown(boss, row)

    assert limit == ("deploy", "limit", "1", "4", "sale")
    assert share == ("code", "share", "1", "3", "")
    assert (overridden[0], overridden[2], overridden[4]) == ("code", "4", "rush")
    assert overridden[3].startswith("9 until ")
    assert (by_sweep[0], by_sweep[2], by_sweep[3]) == ("sweep", "9", "4")


def test_a_change_in_the_admin_is_shown_once(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    boss.post(change_page(row), {**loaded(boss, row), "max_job": "2", "reason": "by form"})
    confirmed(boss, QUEUES, "pause", fresh(row), reason="by action")
    assert [line[4] for line in shown(boss, row)] == ["by action", "by form"]
    assert LogEntry.objects.count() == 2


def test_what_is_no_change_of_a_limit_stays_in_the_history(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    waiting_job(row)
    confirmed(boss, QUEUES, "cancel_waiting", row, typed="1", reason="wrong feed")
    fresh(row).set_limit(2, reason="later")
    assert [(line[1], line[4]) for line in shown(boss, row)] == [
        ("limit", "later"),
        ("waiting jobs canceled:", "wrong feed"),
    ]


def test_the_history_is_in_the_language_of_its_reader(boss: Client) -> None:
    row = tenant_queue()
    row.pause(reason="feeds are broken")
    row.set_rate(100, per=timedelta(minutes=1))
    boss.post(change_page(row), {**loaded(boss, row), "share": "2"}, headers={"Accept-Language": "de"})
    assert [line[1:4] for line in shown(boss, row)] == [
        ("share", "1", "2"), ("rate", "no limit", "100/m, burst 2"), ("pause", "not paused", "paused")
    ]  # fmt: skip
    assert [line[1:4] for line in shown(boss, row, **{"Accept-Language": "de"})] == [
        ("Anteil", "1", "2"), ("Rate", "unbegrenzt", "100/m, burst 2"), ("Pause", "nicht angehalten", "angehalten")
    ]  # fmt: skip


def test_a_change_that_is_rolled_back_is_not_in_the_history() -> None:
    row = tenant_queue()
    with transaction.atomic():
        row.set_limit(5)
        transaction.set_rollback(True)
    assert not KeptChange.objects.exists()


def test_two_changes_at_once_are_both_kept() -> None:
    row = tenant_queue()
    in_thread(lambda: TenantQueue.objects.get(pk=row.pk).set_limit(5))
    row.set_share(2)
    assert list(KeptChange.objects.order_by("pk").values_list("what", "new")) == [("limit", "5"), ("share", "2")]


def test_so_many_changes_are_kept_of_a_row_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANGES_KEPT", 3)
    monkeypatch.setattr(limits, "CHANGES_BETWEEN_CLEANUPS", 2)
    row, other = tenant_queue(), tenant_queue("other")
    other.set_limit(3)
    for number in range(2, 12):
        row.set_limit(number)
    assert list(row.kept_changes.order_by("pk").values_list("new", flat=True)) == ["9", "10", "11"]
    assert other.kept_changes.count() == 1


def test_text_that_no_column_takes_is_kept_as_far_as_it_goes() -> None:
    row = tenant_queue()
    row.set_limit(3, by="b" * 500, reason="a\0b" + "r" * 3000)
    kept = KeptChange.objects.get()
    assert len(kept.by) == 150
    assert "\0" not in kept.reason


def test_the_history_goes_with_its_row(boss: Client) -> None:
    row = tenant_queue()
    row.set_limit(3)
    confirmed(boss, QUEUES, "delete_selected", row)
    assert not TenantQueue.objects.exists()
    assert not KeptChange.objects.exists()


@override_settings(TIME_ZONE="Asia/Tokyo")
def test_times_say_their_zone(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    row.set_override(3, timezone.now() + timedelta(hours=1), reason="x")
    waiting_job(row)
    page = boss.get(change_page(row)).content.decode()
    [line] = shown(boss, row)
    assert line[3].endswith(" JST")
    tables = page[page.index("slots-holding-title") :]
    assert tables.count(" JST</td>") >= 2  # of the history and of the backlog


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(190.028, "190 s"), (12.5, "12 s"), (2.345, "2.3 s"), (0.1234, "0.12 s"), (1_234_567, "1234567 s")],
)
def test_a_chart_says_no_more_digits_than_anybody_reads(seconds: float, text: str) -> None:
    chart = Chart("x", ["then", "now"], [Series("p95", "x", [None, seconds])], unit="s")
    assert chart.top_label == text
    assert chart.table() == [("now", [text.removesuffix(" s")]), ("then", [""])]


@pytest.mark.parametrize("message", ['[{"changed": "x"}]', '[{"changed": ["x"]}]', "[" * 5000 + "]" * 5000, "9" * 5000])
def test_an_entry_that_is_none_of_ours_spoils_no_history(boss: Client, message: str) -> None:
    row = tenant_queue(max_job=1)
    confirmed(boss, QUEUES, "pause", row, reason="inventory")
    entry = LogEntry.objects.get()
    entry.pk, entry.change_message = None, message
    entry.save()
    assert "inventory" in [line[4] for line in shown(boss, row)]


# --- the page that Django's admin links to -------------------------------------------------------------------------


def history_page(client: Client, one: TenantQueue | TenantJob, **headers: str) -> str:
    return unescape(client.get(change_page(one, "history"), headers=headers).content.decode())


@override_settings(TIME_ZONE="Asia/Tokyo")
def test_it_has_changes_by_command_and_code_with_their_reason_and_zone(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    call_command("slots_limit", "acme", "imports", "4", "--by", "deploy", "--reason", "sale")
    boss.post(change_page(row), {**loaded(boss, fresh(row)), "share": "2", "reason": "by form"})
    page = history_page(boss, row)
    assert f'href="{change_page(row, "history")}"' in boss.get(change_page(row)).content.decode(), "it is linked"
    assert "<td>deploy</td><td>limit</td><td>1</td><td>4</td><td>sale</td>" in page
    assert page.count("by form") == 1
    assert page.count(" JST</td>") == 2


def test_it_is_in_the_language_of_its_reader(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row)
    boss.post(change_page(row), {**loaded(boss, row), "paused": "on"}, headers={"Accept-Language": "de"})
    translation.activate("de")
    confirmed(boss, JOBS, "cancel", job, reason="wrong feed")
    for one, german, english in ((row, "angehalten", "paused"), (job, "abgebrochen", "canceled")):
        assert german not in history_page(boss, one, **{"Accept-Language": "en"})
        assert english in history_page(boss, one, **{"Accept-Language": "en"})
        assert german in history_page(boss, one, **{"Accept-Language": "de"})
    assert "wrong feed" in history_page(boss, job)


def test_what_staff_changed_is_there_when_the_row_has_forgotten_it(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHANGES_KEPT", 3)
    monkeypatch.setattr(limits, "CHANGES_BETWEEN_CLEANUPS", 1)
    row = tenant_queue(max_job=1)
    for number in range(2, 7):
        boss.post(change_page(row), {**loaded(boss, fresh(row)), "max_job": str(number), "reason": f"no. {number}"})
    assert row.kept_changes.count() <= 4
    page = history_page(boss, row)
    assert [page.count(f"<td>no. {number}</td>") for number in range(2, 7)] == [1] * 5


@override_settings(TIME_ZONE="Asia/Tokyo")
def test_that_too_is_in_the_language_and_the_zone_of_its_reader(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANGES_KEPT", 1)
    monkeypatch.setattr(limits, "CHANGES_BETWEEN_CLEANUPS", 1)
    row = tenant_queue(max_job=1)
    changed = [{"paused": "on"}, {"rate": "5/s"}, {"max_job": "2", "override_until": "2090-12-24T12:00"}]
    for change in changed:
        german = {"Accept-Language": "de"}
        boss.post(change_page(row), {**loaded(boss, fresh(row)), **change, "reason": "by form"}, headers=german)
    row.set_share(2)
    assert row.kept_changes.get().what == "share"

    with timezone.override("Asia/Kolkata"):
        told = [line[1:4] for line in shown(boss, row) if line[4] == "by form"]

    assert told == [
        ("limit", "1", "2 until 12/24/2090 8:30 a.m. IST"),
        ("rate", "no limit", "5/s, burst 5"),
        ("pause", "not paused", "paused"),
    ]


def test_a_long_one_says_that_there_is_more(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MOST_LISTED", 2)
    row = tenant_queue(max_job=1)
    row.set_limit(2)
    assert "These are the latest" not in history_page(boss, row)
    row.set_limit(3)
    row.set_limit(4)
    page = history_page(boss, row)
    assert "These are the latest 2." in page
    assert page.count("<td>limit</td>") == 2


def test_it_is_for_those_who_may_see_the_row_and_survives_one_that_is_gone(boss: Client) -> None:
    row = tenant_queue()
    address = change_page(row, "history")
    assert signed_in("view_tenantjob").get(address).status_code == 403
    assert signed_in("view_tenantqueue").get(address).status_code == 200
    row.delete()
    assert boss.get(address).status_code == 302


def test_who_is_restricted_to_tenants_has_no_history_of_others(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tenant_queue(), tenant_queue("beta")
    theirs = TenantQueue.objects.filter(pk=own.pk)
    for model_admin in (TenantQueueAdmin, TenantJobAdmin):
        monkeypatch.setattr(model_admin, "tenant_queues_for", lambda self, request: theirs)
    shown = [boss.get(change_page(one, "history")).status_code for one in (own, waiting_job(own))]
    hidden = [boss.get(change_page(one, "history")).status_code for one in (other, waiting_job(other))]
    assert (shown, hidden) == ([200, 200], [302, 302])


def test_an_admin_of_the_project_for_a_model_of_ours_keeps_djangos_page(boss: Client) -> None:
    row = tenant_queue()
    confirmed(boss, QUEUES, "pause", row, reason="inventory")
    request = RequestFactory().get("/")
    request.user = LogEntry.objects.get().user
    for plain, text in ((ModelAdmin, "Changed pause: not paused"), (TenantQueueAdmin, "<td>not paused</td>")):
        page = plain(TenantQueue, site).history_view(request, str(row.pk))
        assert text in page.render().content.decode()  # type: ignore[attr-defined]
