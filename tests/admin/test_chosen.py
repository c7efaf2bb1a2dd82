"""What an action touches: what its page has shown, exactly, whatever matches by the time it is confirmed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tenant_slots.admin import chosen
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.admin.site import JOBS, QUEUES, Form, messages_of
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)


def all_asked(client: Client, url: str, action: str) -> tuple[str, dict[str, Any]]:
    """The page after "Select all", and what its form would send back."""
    some = client.get(url).context["cl"].result_list[0]
    page = client.post(url, {"action": action, "_selected_action": [some.pk], "select_across": "1"}).content.decode()
    return page, Form(page).values


@pytest.mark.parametrize(
    ("action", "data"), [("set_limit", {"max_job": "9"}), ("pause", {}), ("set_share", {"share": "9"})]
)
def test_a_tenant_queue_that_comes_to_match_after_the_page_was_shown_is_left(
    boss: Client, action: str, data: dict[str, str]
) -> None:
    shown, changed = tenant_queue("shown"), tenant_queue("changed", paused=False)
    page, sent = all_asked(boss, f"{QUEUES}?paused__exact=0", action)
    assert "This affects 2 objects." in page
    later = tenant_queue("later")

    boss.post(f"{QUEUES}?paused__exact=0", {**sent, **data})

    assert (fresh(shown).version, fresh(changed).version, fresh(later).version) == (1, 1, 0)


@pytest.mark.parametrize("action", ["cancel", "retry"])
def test_a_job_that_comes_to_match_after_the_page_was_shown_is_left(boss: Client, action: str) -> None:
    row = tenant_queue(max_job=0)
    before, after = (State.WAITING, State.CANCELED) if action == "cancel" else (State.FAILED, State.WAITING)
    shown = waiting_job(row, state=before)
    url = f"{JOBS}?state__exact={before}"
    page, sent = all_asked(boss, url, action)
    assert "This affects 1 object." in page
    later = waiting_job(row, state=before)

    boss.post(url, {**sent, "reason": "x"})

    assert (fresh(shown).state, fresh(later).state) == (after, before)


def test_what_matches_no_longer_and_what_is_gone_is_counted_in_the_report(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    stays, ends, goes = (waiting_job(row) for _ in range(3))
    url = f"{JOBS}?state__exact=waiting"
    _, sent = all_asked(boss, url, "cancel")
    TenantJob.objects.filter(pk=ends.pk).update(state=State.FINISHED, ended_at=timezone.now())
    TenantJob.objects.filter(pk=goes.pk).update(state=State.FINISHED, ended_at=timezone.now())
    TenantJob.objects.filter(pk=goes.pk).delete()

    response = boss.post(url, sent, follow=True)

    assert messages_of(response) == ["1 job was canceled.", "1 job had already ended.", "1 object is gone."]
    assert fresh(stays).state == State.CANCELED


def test_the_set_survives_a_form_with_an_error(boss: Client) -> None:
    shown = tenant_queue("shown")
    _, sent = all_asked(boss, QUEUES, "set_limit")
    again = Form(boss.post(QUEUES, {**sent, "max_job": "-1"}).content.decode()).values
    later = tenant_queue("later")
    boss.post(QUEUES, {**again, "max_job": "4"})
    assert (fresh(shown).max_job, fresh(later).max_job) == (4, 1)


def test_all_of_them_are_never_changed_without_the_page(boss: Client) -> None:
    row = tenant_queue()
    forged = {"action": "pause", "select_across": "1", "_selected_action": [row.pk], "confirm": "yes"}
    assert "This affects 1 object." in boss.post(QUEUES, forged).content.decode()
    assert not fresh(row).paused


@pytest.mark.parametrize("text", ["x", "1x", "x1", "1 -1", "1x99999999999", "9" * 5000, "1 1 \0"])
def test_a_set_that_nobody_has_shown_is_no_error_of_the_server(boss: Client, text: str) -> None:
    row = tenant_queue()
    sent = {"action": "pause", "select_across": "1", "_selected_action": [row.pk], "confirm": "yes", "chosen": text}
    assert boss.post(QUEUES, sent).status_code == 200
    assert not fresh(row).paused


@pytest.mark.parametrize("seed", range(20))
def test_a_set_is_read_as_it_was_written(seed: int) -> None:
    pks = random.Random(seed).sample(range(1, 400), 150)
    assert chosen.from_text(chosen.as_text(pks)) == sorted(pks)


def test_a_large_set_makes_a_small_page() -> None:
    assert len(chosen.as_text(range(500_000, 600_000))) < 20
    scattered = random.Random(1).sample(range(1_000_000), 100_000)
    assert len(chosen.as_text(scattered)) < 400_000


def test_the_page_reads_no_more_rows_than_it_lists(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    for _ in range(130):
        waiting_job(row)
    with CaptureQueriesContext(connection) as captured:
        page, _ = all_asked(boss, JOBS, "cancel")
    assert "This affects 130 objects." in page
    assert "and 30 more" in page
    assert len(captured) <= 20


def test_too_many_objects_are_refused_with_the_number(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "MOST", 2)
    rows = [tenant_queue(name) for name in "abc"]
    some = {"action": "pause", "_selected_action": [rows[0].pk], "select_across": "1"}
    response = boss.post(QUEUES, some, follow=True)
    assert messages_of(response) == ["No more than 2 objects can be changed at once; filter the list."]
    assert not TenantQueue.objects.filter(paused=True).exists()
