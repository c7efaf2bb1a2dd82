"""What is chosen with everything else does not stop what carries out bulk changes: there is a way back."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tenant_slots.admin import actions
from tenant_slots.admin.bulk.run import run_bulk_change
from tenant_slots.models import State, TenantQueue
from tenant_slots.tenants import ADMIN_TENANT
from tests.admin.bulk_changes import came_of, carried_out, many_queues, started, text_of
from tests.admin.site import JOBS, QUEUES, asked, confirmed, messages_of
from tests.factories import fresh, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

SAID = "1 other belongs to bulk changes and is left alone. To change it, choose it alone."


@pytest.mark.parametrize(
    ("stop", "typed", "back", "typed_then"),
    [("pause", {}, "resume", {}), ("set_limit", {"max_job": "0"}, "set_limit", {"max_job": "3"})],
)
def test_who_has_stopped_everything_can_start_everything_again(
    stop: str, typed: Any, back: str, typed_then: Any, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 1)
    rows, own = many_queues(3), tenant_queue(ADMIN_TENANT, max_job=2)
    page, _ = asked(boss, QUEUES, stop, *rows, own)
    assert "This affects 3 objects." in text_of(page)
    assert SAID in text_of(page)
    assert came_of(carried_out(started(boss, QUEUES, stop, [*rows, own], **typed))) == {"done": 3}
    assert (fresh(own).paused, own.max_job) == (False, 2)
    carried_out(started(boss, QUEUES, back, [*rows, own], **typed_then))
    assert not TenantQueue.objects.filter(paused=True).exists()
    assert not TenantQueue.objects.filter(max_job=0).exists()


def test_by_itself_it_can_be_paused(boss: Client) -> None:
    own = [tenant_queue(ADMIN_TENANT), tenant_queue(ADMIN_TENANT, queue="reports")]
    assert messages_of(confirmed(boss, QUEUES, "pause", own[0])) == ["1 tenant queue was paused."]
    assert messages_of(confirmed(boss, QUEUES, "pause", *own)) == [
        "1 tenant queue was paused.",
        "1 tenant queue needed no change.",
    ]


def test_what_a_form_names_is_left_alone_as_well(boss: Client) -> None:
    row, own = tenant_queue(), tenant_queue(ADMIN_TENANT)
    data = {"action": "pause", "_selected_action": [row.pk, own.pk], "confirm": "yes"}
    assert messages_of(boss.post(QUEUES, data, follow=True)) == ["1 tenant queue was paused."]
    assert (fresh(row).paused, fresh(own).paused) == (True, False)


def test_bulk_changes_that_wait_are_not_canceled_with_all_other_jobs(boss: Client) -> None:
    own, row = tenant_queue(ADMIN_TENANT, max_job=0), tenant_queue(max_job=0)
    job, bulk = waiting_job(row), run_bulk_change.using(queue="imports").enqueue(7)
    page, _ = asked(boss, JOBS, "cancel", job, bulk)
    assert SAID in text_of(page)
    confirmed(boss, JOBS, "cancel", job, bulk)
    assert (fresh(job).state, fresh(bulk).state) == (State.CANCELED, State.WAITING)
    another = waiting_job(row)
    confirmed(boss, QUEUES, "cancel_waiting", row, own, typed="1")
    assert (fresh(another).state, fresh(bulk).state) == (State.CANCELED, State.WAITING)
    confirmed(boss, JOBS, "cancel", bulk)
    assert fresh(bulk).state == State.CANCELED
