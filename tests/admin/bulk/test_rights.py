"""A bulk change does what was shown, and what whoever has confirmed it may do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.admin.bulk import chunks, start
from tenant_slots.models import BulkChange, Ending, State, TenantJob, TenantQueue
from tenant_slots.stats import rows as stats_rows
from tests.admin.bulk_changes import (
    came_of,
    carried_out,
    many_jobs,
    many_queues,
    page_of,
    report_of,
    started,
    text_of,
)
from tests.admin.site import JOBS, QUEUES, asked, confirmed, messages_of, signed_in
from tests.factories import fresh, tenant_queue
from tests.processes import somebody_waits_for_this_session, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_few_rows_are_changed_in_the_request(boss: Client) -> None:
    rows = many_queues(3)
    response = confirmed(boss, QUEUES, "set_limit", *rows, max_job="5")
    assert messages_of(response) == ["The limits of 3 tenant queues were set."]
    assert not BulkChange.objects.exists()


def test_the_page_says_that_a_background_job_will_do_it(boss: Client) -> None:
    rows = many_queues(4)
    page, _ = asked(boss, QUEUES, "pause", *rows)
    assert "A background job will do this" in text_of(page)
    page, _ = asked(boss, QUEUES, "pause", *rows[:3])
    assert "A background job" not in text_of(page)


def test_the_set_is_frozen_when_it_is_confirmed(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs = many_jobs(row, 5)
    change = started(boss, JOBS, "cancel", jobs)
    later = many_jobs(row, 2)
    carried_out(change)
    assert {fresh(job).state for job in later} == {State.WAITING}


def test_a_form_that_is_sent_twice_is_one_bulk_change(boss: Client) -> None:
    _, sent = asked(boss, QUEUES, "set_limit", *many_queues(5))
    first, second = (boss.post(QUEUES, {**sent, "max_job": "5"}) for _ in range(2))
    change = BulkChange.objects.get()
    assert first["Location"] == second["Location"] == page_of(change)
    assert TenantJob.objects.filter(task__contains="run_bulk_change").count() == 1
    carried_out(change)
    assert boss.post(QUEUES, {**sent, "max_job": "5"})["Location"] == page_of(change)


def test_a_form_that_is_sent_with_other_values_is_another_bulk_change(boss: Client) -> None:
    """As after the browser's button to go back."""
    rows = many_queues(5)
    _, sent = asked(boss, QUEUES, "set_share", *rows)
    for share in ("5", "7"):
        boss.post(QUEUES, {**sent, "share": share})
    assert [change.values["share"] for change in BulkChange.objects.order_by("pk")] == [5, 7]


def test_what_no_page_has_asked_for_is_done_each_time(boss: Client) -> None:
    """A script may send the same every night."""
    rows = many_queues(5)
    sent = {"action": "pause", "confirm": "yes", "_selected_action": [row.pk for row in rows]}
    for once in ({}, {"once": "no id"}):
        boss.post(QUEUES, {**sent, **once})
        boss.post(QUEUES, {**sent, **once})
    assert BulkChange.objects.count() == 4


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer")
def test_a_double_click_is_one_bulk_change_whichever_process_meets_it(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sent = asked(boss, QUEUES, "set_limit", *many_queues(5))
    enqueue, second = start.enqueue, ThreadPoolExecutor(1)
    answers: list[Future[Any]] = []

    def click_again(*args: Any) -> None:
        monkeypatch.setattr(start, "enqueue", enqueue)
        answers.append(second.submit(closed_after, lambda: boss.post(QUEUES, {**sent, "max_job": "5"})))
        wait_until(lambda: somebody_waits_for_this_session() or answers[0].done())
        enqueue(*args)

    monkeypatch.setattr(start, "enqueue", click_again)
    first = boss.post(QUEUES, {**sent, "max_job": "5"})
    assert answers[0].result()["Location"] == first["Location"] == page_of(BulkChange.objects.get())


def closed_after(request: Callable[[], Any]) -> Any:
    try:
        return request()
    finally:
        connections.close_all()


def test_confirming_costs_the_same_queries_for_many_and_for_few(boss: Client) -> None:
    row = tenant_queue(max_job=0)

    def queries(number: int) -> int:
        jobs = many_jobs(row, number)
        _, sent = asked(boss, JOBS, "cancel", *jobs)
        with CaptureQueriesContext(connection) as captured:
            boss.post(JOBS, sent)
        carried_out(BulkChange.objects.latest("pk"))
        return len(captured)

    chunks.JOBS_PER_CHUNK = 10
    queries(4)
    assert queries(5) == queries(90)


@pytest.mark.parametrize("action", ["set_limit", "set_share", "cancel_waiting", "retry_failed", "delete_selected"])
def test_what_the_page_in_between_asks_does_not_grow_with_the_rows(boss: Client, action: str) -> None:
    """Ten thousand parameters of a query take longer than the query."""
    asked_with: list[int] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        asked_with.append(len(params or ()))
        return execute(sql, params, many, context)

    def parameters_of_all(rows: list[TenantQueue]) -> int:
        asked_with.clear()
        data = {"action": action, "_selected_action": [rows[0].pk], "select_across": "1"}
        with connection.execute_wrapper(count):
            assert f"This affects {len(rows)} objects." in text_of(boss.post(QUEUES, data))
        return max(asked_with)

    rows = many_queues(5)
    parameters_of_all(rows)  # the tiles are at hand now
    assert parameters_of_all(rows) == parameters_of_all(rows + many_queues(200, queue="reports"))


def test_the_page_in_between_measures_no_list(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_queues(4)
    measured: list[Any] = []
    monkeypatch.setattr(stats_rows, "measured", lambda *asked: measured.append(asked) or {})
    boss.post(QUEUES, {"action": "set_limit", "_selected_action": [row.pk for row in rows]})
    assert measured == []


def test_rows_of_other_tenants_are_gone_for_those_who_do_not_see_them(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = many_queues(6)
    _, sent = asked(boss, QUEUES, "set_limit", *rows)
    monkeypatch.setattr(
        TenantQueueAdmin, "tenant_queues_for", lambda self, request: TenantQueue.objects.filter(pk__lte=rows[3].pk)
    )
    boss.post(QUEUES, {**sent, "max_job": "5"})
    change = BulkChange.objects.get()
    monkeypatch.setattr(
        TenantQueueAdmin, "tenant_queues_for", lambda self, request: TenantQueue.objects.filter(pk__lte=rows[1].pk)
    )
    carried_out(change)
    assert came_of(change) == {"done": 2, "gone": 4}
    assert [fresh(row).max_job for row in rows] == [5, 5, 1, 1, 1, 1]


def test_jobs_of_other_tenants_are_left_by_a_worker(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = tenant_queue("own", max_job=0), tenant_queue("other", max_job=0)
    change = started(boss, JOBS, "cancel", [*many_jobs(own, 2), *many_jobs(other, 3)])
    monkeypatch.setattr(
        TenantJobAdmin, "tenant_queues_for", lambda self, request: TenantQueue.objects.filter(pk=own.pk)
    )
    carried_out(change)
    assert came_of(change) == {"done": 2, "gone": 3}
    assert other.jobs.waiting().count() == 3


@pytest.mark.parametrize("loss", ["permission", "active", "staff", "user"])
def test_who_may_no_longer_do_it_changes_nothing_more(loss: str) -> None:
    client = signed_in("view_tenantqueue", "set_limit_tenantqueue")
    rows = many_queues(6)
    change = started(client, QUEUES, "set_limit", rows, max_job="5")
    user = User.objects.get(username=change.by)
    if loss == "permission":
        user.user_permissions.remove(Permission.objects.get(codename="set_limit_tenantqueue"))
    elif loss == "user":
        user.delete()
    else:
        User.objects.filter(pk=user.pk).update(**{f"is_{loss}": False})
    carried_out(change)
    assert (fresh(change).ending, {fresh(row).max_job for row in rows}) == (Ending.FORBIDDEN, {1})
    text = "It has ended early: whoever confirmed it may not do this any more."
    assert report_of(signed_in(superuser=True), change) == [text, "0 of 6", "6 were not looked at."]


def test_everybody_sees_their_own_and_those_of_others_with_a_permission(boss: Client) -> None:
    change = started(boss, QUEUES, "set_limit", many_queues(5), max_job="5")
    own, other, all_seeing = (
        boss,
        signed_in("view_tenantqueue", "set_limit_tenantqueue"),
        signed_in("view_tenantqueue", "view_bulkchange"),
    )
    pages = [page_of(change), page_of(change, "bulk_live")]
    assert [[client.get(page).status_code for page in pages] for client in (own, other, all_seeing)] == [
        [200, 200], [404, 404], [200, 200],
    ]  # fmt: skip
    listed = [page_of(change) in text_of(client.get(f"{QUEUES}bulk/")) for client in (own, other, all_seeing)]
    assert listed == [True, False, True]
    assert signed_in().get(f"{QUEUES}bulk/").status_code == 403
    assert all_seeing.post(page_of(change), {"stop": "x"}).status_code == 403
    assert fresh(change).cancel_requested_at is None


def test_who_is_restricted_to_tenants_sees_only_their_own_whatever_they_may(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others have changed names tenants that are none of theirs."""
    rows = many_queues(5)
    change = started(boss, QUEUES, "set_limit", rows, max_job="5")
    restricted = signed_in("view_tenantqueue", "view_bulkchange", "set_limit_tenantqueue")
    own = started(restricted, QUEUES, "set_limit", rows, max_job="7")
    theirs = TenantQueue.objects.filter(pk=rows[0].pk)
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: theirs)
    assert restricted.get(page_of(change)).status_code == 404
    assert restricted.get(page_of(change, "bulk_live")).status_code == 404
    listed = text_of(restricted.get(f"{QUEUES}bulk/"))
    assert (page_of(change) in listed, page_of(own) in listed) == (False, True)
