"""No time without its zone, which need not be the reader's."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client, override_settings

from tenant_slots.admin.words import rest
from tenant_slots.models import BulkChange, State
from tests.admin.bulk_changes import page_of
from tests.admin.site import JOBS, QUEUES, asked, change_page
from tests.admin.test_limits import limit_page
from tests.factories import tenant_queue, waiting_job

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_tokyo")]

ZONE = "Time zone: Asia/Tokyo."
LATER = datetime(2090, 1, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def _tokyo() -> Any:
    with override_settings(TIME_ZONE="Asia/Tokyo"):
        yield


def help_of(page: str, name: str) -> str:
    """What the browser reads out with an input."""
    (described_by,) = re.findall(rf'<input[^>]*name="{name}"[^>]*aria-describedby="(\w+)|$', page)[:1]
    return page.partition(f'id="{described_by}"')[2].partition("</div>")[0]


def test_each_input_of_a_time_says_its_zone(boss: Client) -> None:
    row = tenant_queue()
    form = boss.get(change_page(row)).content.decode()
    assert ZONE in help_of(form, "override_until")
    assert ZONE in help_of(form, "resume_at")
    assert ZONE in help_of(boss.get(limit_page(row)).content.decode(), "until")
    for action in ("pause", "set_limit"):
        page, _ = asked(boss, QUEUES, action, row)
        assert ZONE in help_of(page.content.decode(), "until"), action
    assert ZONE in boss.get(QUEUES).content.decode(), "the dialog of the list"


def test_the_zone_of_an_input_is_that_of_its_reader(boss: Client) -> None:
    with override_settings(TIME_ZONE="Europe/Berlin"):
        assert "Time zone: Europe/Berlin." in boss.get(limit_page(tenant_queue())).content.decode()


def test_the_charts_of_a_tenant_queue_say_theirs(boss: Client) -> None:
    page = boss.get(change_page(tenant_queue())).content.decode()
    charts = page.partition('id="slots-charts-title"')[2].partition("</section>")[0]
    assert ZONE in charts


def test_the_list_of_jobs_has_it_with_each_time(boss: Client) -> None:
    waiting_job(tenant_queue(), state=State.FINISHED, enqueued_at=LATER, started_at=LATER, ended_at=LATER)
    page = boss.get(JOBS).content.decode()
    assert page.count("9 p.m. JST") == 3


def test_the_end_of_a_rest_has_it() -> None:
    assert rest(tenant_queue(rests_until=LATER)) == "Rests until 21:00:00 JST"


def test_what_a_bulk_change_was_told_has_it(boss: Client) -> None:
    told = {"until": {"time": LATER.isoformat()}}
    change = BulkChange.objects.create(
        model="tenant_slots.tenantqueue", site="admin", action="pause", values=told, total=1, job=uuid4()
    )
    assert dict(boss.get(page_of(change)).context["values"])["Resume at"] == "01/01/2090 9 p.m. JST"


def test_the_times_that_a_viewer_reads_have_it(viewer: Client) -> None:
    row = tenant_queue(override_until=LATER, limit_before_override=1, paused=True, resume_at=LATER)
    page = viewer.get(change_page(row)).content.decode()
    fields = {name: page.partition(f"field-{name}")[2].partition('class="form-row')[0] for name in FIELDS}
    assert {name for name, text in fields.items() if " JST" not in text} == set()
    assert {name for name, text in fields.items() if "01/01/2090 9 p.m. JST" in text} == {"override_end", "pause_end"}


FIELDS = ("override_end", "pause_end", "created")
