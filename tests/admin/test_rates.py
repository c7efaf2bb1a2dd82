"""The rate of a tenant queue in the admin: set on the change form, with the tokens left and when the next one comes."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from tenant_slots import rates
from tenant_slots.admin import reasons, words
from tenant_slots.db import clock
from tenant_slots.models import TenantQueue
from tests.admin.site import LIVE, QUEUES, Form, change_page, loaded, run_action
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def save(client: Client, row: TenantQueue, **values: Any) -> Any:
    return client.post(change_page(row), {**loaded(client, row), **values})


def limited(number: int, per: timedelta, burst: int, used: int = 0) -> TenantQueue:
    row = tenant_queue(**rates.fields_of(rates.Rate(number, per, burst)))
    TenantQueue.objects.filter(pk=row.pk).update(**rates.taken(used))
    return fresh(row)


def test_a_rate_is_set_and_taken_away_on_the_change_form_with_old_and_new_in_the_history(boss: Client) -> None:
    row = tenant_queue()
    save(boss, row, rate="100 / minute", burst="10", reason="partner API")
    assert (str(fresh(row).rate), row.max_job, row.version) == ("100/m, burst 10", 1, 1)
    assert {name: loaded(boss, row)[name] for name in ("rate", "burst")} == {"rate": "100/m", "burst": "10"}
    save(boss, row, rate="")
    assert fresh(row).rate is None
    page = boss.get(change_page(row)).content.decode()
    assert "<td>rate</td><td>no limit</td><td>100/m, burst 10</td><td>partner API</td>" in page
    assert "<td>rate</td><td>100/m, burst 10</td><td>no limit</td>" in page
    assert LogEntry.objects.count() == 2


def test_an_empty_burst_is_what_a_second_brings(boss: Client) -> None:
    row = tenant_queue()
    save(boss, row, rate="600/m")
    assert str(fresh(row).rate) == "600/m, burst 10"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"rate": "100"}, "rate"), ({"rate": "100/month"}, "rate"), ({"rate": "0/m"}, "rate"),
        ({"rate": "5/m", "burst": "0"}, "burst"), ({"rate": "5/d", "burst": "999999"}, "burst"),
        ({"burst": "5"}, "rate"),
    ],
)  # fmt: skip
def test_a_wrong_rate_is_an_error_in_the_form(boss: Client, values: dict[str, str], field: str) -> None:
    row = tenant_queue()
    response = save(boss, row, **values)
    assert list(response.context["adminform"].form.errors) == [field]
    assert (fresh(row).rate, row.version) == (None, 0)


def test_a_rate_of_somebody_else_is_not_overwritten(boss: Client) -> None:
    row = tenant_queue()
    form = loaded(boss, row)
    row.set_rate(5, per=DAY)
    assert boss.post(change_page(row), {**form, "rate": "9/d"}).status_code == 409
    assert str(fresh(row).rate) == "5/d, burst 1"


def test_saving_something_else_leaves_the_rate_and_what_was_used_of_it(boss: Client) -> None:
    row = limited(3, 1.5 * DAY, 4, used=4)
    save(boss, row, max_job="7")
    assert (fresh(row).max_job, str(row.rate)) == (7, "3/36h, burst 4")
    assert "0 of 4 left" in boss.get(change_page(row)).content.decode()


def test_a_row_is_added_with_a_rate(boss: Client) -> None:
    url = f"{QUEUES}add/"
    form = Form(boss.get(url).content.decode()).values
    boss.post(url, {**form, "tenant": "acme", "queue": "imports", "rate": "5/d", "burst": "3"})
    assert str(TenantQueue.objects.get().rate) == "5/d, burst 3"


def test_the_page_shows_the_tokens_left_and_when_the_next_one_comes(boss: Client, viewer: Client) -> None:
    row = limited(1, DAY, 5, used=2)
    bucket = rates.bucket(row, clock.now())
    assert bucket is not None
    assert bucket.next_at is not None
    assert abs(clock.now() + DAY - bucket.next_at) < timedelta(minutes=1)
    for client in (boss, viewer):
        page = client.get(change_page(row)).content.decode()
        assert f"3 of 5 left, the next one comes at {words.second(bucket.next_at)}" in page
    assert "1/d, burst 5" in viewer.get(change_page(row)).content.decode()
    full = tenant_queue("full", **rates.fields_of(rates.Rate(1, DAY, 5)))
    assert "5 of 5 left</div>" in viewer.get(change_page(full)).content.decode()


def test_the_list_says_when_the_next_token_comes(viewer: Client) -> None:
    row = limited(2, 20 * DAY, 1, used=1)
    waiting_job(row)
    cell = viewer.get(LIVE, {"rows": row.pk}).json()["cells"][f"{row.pk}.state"]
    assert cell["attrs"]["data-state"] == "rate"
    assert cell["text"] in ("Rate: next token in 10 days", "Rate: next token in 9 days")
    assert "Rate: next token in" in viewer.get(QUEUES, {"state": "rate"}).content.decode()
    assert "Rate: next token in" not in viewer.get(QUEUES, {"state": "waits_for_worker"}).content.decode()


def test_a_waiting_job_says_that_the_rate_is_used_up() -> None:
    row = limited(2, 20 * DAY, 1, used=1)
    text = " ".join(reasons.why_waiting(waiting_job(row)))
    assert "The rate of 2/20d, burst 1 is used up: the next job may start at " in text
    row.set_rate(None)
    assert "used up" not in " ".join(reasons.why_waiting(waiting_job(fresh(row))))


def test_the_export_has_the_rate(boss: Client) -> None:
    rows = [limited(100, timedelta(minutes=1), 10), tenant_queue("beta")]
    response: Any = run_action(boss, QUEUES, "export", *rows)
    head, *lines = csv.reader(io.StringIO(b"".join(response.streaming_content).decode()))
    assert [dict(zip(head, line, strict=True))["rate"] for line in lines] == ["100/m, burst 10", ""]
