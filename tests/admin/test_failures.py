"""The page of failed jobs, by function and class of error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

import tests.jobs  # noqa: F401  the task is known once its module is imported
from tenant_slots.admin import TenantJobAdmin, actions
from tenant_slots.models import BulkChange, Kind, State, TenantJob, TenantQueue
from tenant_slots.stats import failures
from tests.admin.site import HOSTILE, JOBS, Form, messages_of, signed_in
from tests.admin.test_overview import OVERVIEW
from tests.factories import TASK, fresh, many_waiting, tenant_queue, waiting_job
from tests.plans import explained

pytestmark = pytest.mark.django_db

FAILURES = reverse("admin:tenant_slots_tenantjob_failures")

SECRET = "card 4111"


def failed(row: TenantQueue, error_class: str = "ValueError", *, back: float = 60, **values: Any) -> TenantJob:
    task = values.pop("task", TASK)
    facts = {"state": State.FAILED, "error": f"Traceback\n{error_class}: {SECRET}\n", "attempt": 1, **values}
    job = waiting_job(row, error_class=error_class, **facts)
    TenantJob.objects.filter(pk=job.pk).update(task=task, ended_at=timezone.now() - timedelta(seconds=back))
    return fresh(job)


def shown(client: Client, **query: str) -> list[tuple[str, int]]:
    """Class of error and number of jobs of each group."""
    groups = client.get(FAILURES, query).context["groups"]
    return [(group.error_class, group.jobs) for group, _, _ in groups]


def listed(client: Client, **query: str) -> list[TenantJob]:
    return list(client.get(FAILURES, query).context["jobs"])


def sent_for(client: Client, url: str = FAILURES, error_class: str = "ValueError") -> Any:
    """The page in between for the group, and what its form would send back."""
    data = {"action": "retry", "task": TASK, "error_class": error_class}
    page = client.post(url, data)
    return page, Form(page.content.decode()).values


@pytest.fixture
def retrier() -> Client:
    return signed_in("view_tenantjob", "retry_tenantjob")


def test_failed_jobs_are_grouped_by_task_and_class_the_largest_group_first(viewer: Client) -> None:
    acme, beta = tenant_queue("acme"), tenant_queue("beta")
    first = failed(acme, "KeyError", back=500)
    for _ in range(2):
        failed(beta, "KeyError", back=100)
    last = failed(acme, "KeyError", back=10)
    failed(acme, "ValueError")
    waiting_job(acme, state=State.FINISHED, ended_at=timezone.now())
    response = viewer.get(FAILURES)
    (largest, rows, _), (other, _, _) = response.context["groups"]
    assert (largest.error_class, largest.jobs, largest.tenant_queues) == ("KeyError", 4, 2)
    assert (largest.first, largest.last) == (first.ended_at, last.ended_at)
    assert rows == [(acme, 2), (beta, 2)]
    assert (other.error_class, other.jobs) == ("ValueError", 1)


def test_a_job_that_failed_without_an_exception_has_a_group(viewer: Client) -> None:
    row = tenant_queue()
    failed(row, "")
    by_sql = failed(row)
    TenantJob.objects.filter(pk=by_sql.pk).update(error_class=None)
    assert shown(viewer) == [("", 2)]
    assert "without an exception" in viewer.get(FAILURES).content.decode()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {"KeyError", "ValueError", "shop.Broken"}),
        ({"time": "1h"}, {"ValueError", "shop.Broken"}),
        ({"time": "all"}, {"KeyError", "ValueError", "shop.Broken", "OSError"}),
        ({"time": "unheard of"}, {"KeyError", "ValueError", "shop.Broken"}),
        ({"error": "broken"}, {"shop.Broken"}),
        ({"task": "import_f"}, {"shop.Broken"}),
        ({"key": "api"}, {"ValueError"}),
        ({"key": "ap"}, set()),
        ({"tenant": "beta", "time": "all"}, {"OSError"}),
        ({"tenant": "nobody"}, set()),
        ({"tenant": "\0"}, set()),
        ({"error": "\0"}, set()),
    ],
)
def test_the_filters(viewer: Client, query: dict[str, str], expected: set[str]) -> None:
    acme, beta = tenant_queue("acme"), tenant_queue("beta")
    failed(acme, "KeyError", back=7200)
    failed(acme, "ValueError", key="api")
    failed(acme, "shop.Broken", task="shop.jobs.import_feed")
    failed(beta, "OSError", back=30 * 86400)
    assert {name for name, _ in shown(viewer, **query)} == expected
    assert {job.error_class for job in listed(viewer, **query)} == expected


def test_the_text_of_an_error_is_no_filter(viewer: Client) -> None:
    failed(tenant_queue())
    assert shown(viewer, error="4111") == []


def test_only_those_who_may_see_arguments_see_the_last_line_of_an_error(viewer: Client) -> None:
    failed(tenant_queue())
    page = viewer.get(FAILURES).content.decode()
    assert SECRET not in page
    assert "ValueError" in page
    trusted = signed_in("view_tenantjob", "view_job_arguments")
    assert [job.last_line for job in listed(trusted)] == [f"ValueError: {SECRET}"]


def test_what_tenants_and_errors_are_called_is_text(boss: Client) -> None:
    failed(tenant_queue(HOSTILE), HOSTILE, key=HOSTILE, error=HOSTILE)
    assert HOSTILE not in boss.get(FAILURES).content.decode()


def test_the_page_needs_the_permission_to_see_jobs() -> None:
    assert signed_in("view_tenantqueue").get(FAILURES).status_code == 403


def test_the_list_and_the_overview_lead_here(viewer: Client) -> None:
    assert FAILURES in viewer.get(JOBS).content.decode()
    assert FAILURES in viewer.get(OVERVIEW).content.decode()
    assert FAILURES not in signed_in("view_tenantqueue").get(OVERVIEW).content.decode()


def test_a_restricted_viewer_sees_and_retries_only_their_own(retrier: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    own, foreign = failed(tenant_queue("own")), failed(tenant_queue("foreign"))
    rows = TenantQueue.objects.filter(tenant="own")
    monkeypatch.setattr(TenantJobAdmin, "tenant_queues_for", lambda self, request: rows)
    assert shown(retrier) == [("ValueError", 1)]
    assert "foreign" not in retrier.get(FAILURES).content.decode()
    _, sent = sent_for(retrier)
    retrier.post(FAILURES, {**sent, "reason": "mended"})
    assert (fresh(own).state, fresh(foreign).state) == (State.WAITING, State.FAILED)


def test_a_group_is_retried_after_a_page_that_says_how_many(retrier: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs = [failed(row) for _ in range(3)]
    other = failed(row, "KeyError")
    page, sent = sent_for(retrier)
    assert "This affects 3 objects." in page.content.decode()
    assert {fresh(job).state for job in jobs} == {State.FAILED}, "nothing happens before it was confirmed"
    later = failed(row)
    response = retrier.post(FAILURES, {**sent, "reason": "the feed is back"}, follow=True)
    assert messages_of(response) == ["3 jobs will run again."]
    assert {fresh(job).state for job in jobs} == {State.WAITING}
    assert {fresh(job).state for job in (other, later)} == {State.FAILED}
    assert shown(retrier) == [("KeyError", 1), ("ValueError", 1)]


def test_only_what_the_filters_show_is_retried(retrier: Client) -> None:
    row = tenant_queue(max_job=0)
    old, recent = failed(row, back=7200), failed(row)
    _, sent = sent_for(retrier, f"{FAILURES}?time=1h")
    retrier.post(f"{FAILURES}?time=1h", {**sent, "reason": "mended"})
    assert (fresh(old).state, fresh(recent).state) == (State.FAILED, State.WAITING)


def test_what_cannot_run_again_is_not_in_the_set(retrier: Client) -> None:
    row = tenant_queue(max_job=0)
    failed(row)
    failed(row, kind=Kind.RESERVATION)
    failed(row, rq_job_id="theirs")
    page, _ = sent_for(retrier)
    assert "This affects 1 object." in page.content.decode()


def test_a_large_group_is_left_to_a_background_job(retrier: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 1)
    row = tenant_queue(max_job=0)
    jobs = [failed(row) for _ in range(2)]
    _, sent = sent_for(retrier)
    response = retrier.post(FAILURES, {**sent, "reason": "mended"})
    change = BulkChange.objects.get()
    assert (change.action, change.total, change.reason) == ("retry", 2, "mended")
    assert response.url.endswith(f"/bulk/{change.pk}/")
    assert {fresh(job).state for job in jobs} == {State.FAILED}


def test_retrying_needs_the_permission_and_names_a_group_that_can_be(viewer: Client, retrier: Client) -> None:
    failed(tenant_queue())
    data = {"action": "retry", "task": "\0", "error_class": "ValueError"}
    assert viewer.post(FAILURES, data).status_code == 403
    assert 'value="retry"' not in viewer.get(FAILURES).content.decode()
    assert "This affects 0 objects." in retrier.post(FAILURES, data).content.decode()


def test_no_more_than_the_latest_are_counted_and_the_page_says_so(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "MOST_COUNTED", 2)
    row = tenant_queue()
    for back in (300, 200, 100):
        failed(row, back=back)
    assert shown(viewer) == [("ValueError", 2)]
    assert "Only the latest 2 failed jobs are counted." in viewer.get(FAILURES).content.decode()
    monkeypatch.setattr(failures, "MOST_COUNTED", 3)
    assert "Only the latest" not in viewer.get(FAILURES).content.decode()


def test_the_largest_groups_are_shown(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST_GROUPS", 1)
    row = tenant_queue()
    for name in ("KeyError", "ValueError", "ValueError"):
        failed(row, name)
    assert shown(viewer) == [("ValueError", 2)]
    assert "These are the largest groups" in viewer.get(FAILURES).content.decode()


def test_the_page_takes_as_many_queries_for_many_groups_as_for_one() -> None:
    client = signed_in("view_tenantjob", "view_tenantqueue", "view_job_arguments", "retry_tenantjob")
    row = tenant_queue()
    failed(row)

    def queries() -> int:
        client.get(FAILURES)
        with CaptureQueriesContext(connection) as captured:
            client.get(FAILURES)
        return len(captured)

    before = queries()
    for number in range(20):
        failed(tenant_queue(f"tenant {number}"), f"Error{number}")
    assert queries() == before <= 12


@pytest.mark.skipif(connection.vendor != "postgresql", reason="how PostgreSQL plans")
def test_figures_are_read_from_the_index_of_failed_jobs_alone() -> None:
    rows = [tenant_queue(tenant) for tenant in ("acme", "beta")]
    for row in rows:
        many_waiting(row, 2000)
    TenantJob.objects.update(state=State.FINISHED, ended_at=timezone.now())
    for row in rows * 5:
        failed(row)

    def plan(**asked: Any) -> str:
        found = failures.Asked(3600, task="import", error="broken", key="api", tenant_queues=tuple(r.pk for r in rows))
        return explained(found.of(TenantJob.objects.filter(**asked)).order_by("-ended_at").values_list("pk"))

    assert "Index Only Scan Backward using tenant_slots_failed" in plan()
    assert "Index Only Scan" not in plan(attempt=1), "the control: a column that the index does not have"


def test_a_form_that_names_no_action_or_another_one_retries(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    failed(tenant_queue())
    data = {"task": TASK, "error_class": "ValueError"}
    for named in ({}, {"action": "cancel"}):
        assert Form(boss.post(FAILURES, {**data, **named}).content.decode()).values["action"] == "retry"
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 0)
    _, sent = sent_for(boss)
    boss.post(FAILURES, {**sent, "action": "cancel"})
    assert BulkChange.objects.get().action == "retry"
