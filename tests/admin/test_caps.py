"""The limit per concurrency key, the largest backlog and priorities in the admin."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from tenant_slots.admin import reasons
from tenant_slots.exceptions import InvalidLimit, StaleVersion
from tenant_slots.models import State, TenantQueue
from tests.admin.site import JOBS, change_page, loaded, messages_of, run_action, signed_in
from tests.factories import admit, another_process, fresh, running_job, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db


def save(client: Client, row: TenantQueue, **values: Any) -> Any:
    return client.post(change_page(row), {**loaded(client, row), **values})


def test_caps_are_set_and_taken_away_on_the_change_form_with_old_and_new_in_the_history(boss: Client) -> None:
    row = tenant_queue(max_job=3)
    save(boss, row, max_job_per_key="2", max_waiting="100", reason="one user took all")
    assert (fresh(row).max_job_per_key, row.max_waiting, row.max_job, row.version) == (2, 100, 3, 2)
    save(boss, row, max_job_per_key="", max_waiting="0")
    assert (fresh(row).max_job_per_key, row.max_waiting) == (None, 0)
    page = boss.get(change_page(row)).content.decode()
    assert "<td>limit per concurrency key</td><td>no limit</td><td>2</td><td>one user took all</td>" in page
    assert "<td>largest backlog</td><td>100</td><td>0</td>" in page
    assert LogEntry.objects.count() == 2


@pytest.mark.parametrize("values", [{"max_job_per_key": "0"}, {"max_job_per_key": "10001"}, {"max_waiting": "-1"}])
def test_an_invalid_limit_per_key_or_backlog_is_an_error_in_the_form(boss: Client, values: dict[str, str]) -> None:
    row = tenant_queue()
    assert save(boss, row, **values).status_code == 200
    assert (fresh(row).max_job_per_key, row.max_waiting) == (None, None)


def test_a_cap_of_somebody_else_is_not_overwritten(boss: Client) -> None:
    row = tenant_queue()
    form = loaded(boss, row)
    row.set_max_waiting(5)
    assert boss.post(change_page(row), {**form, "max_waiting": "9"}).status_code == 409
    assert fresh(row).max_waiting == 5
    with pytest.raises(StaleVersion):
        row.set_max_job_per_key(1, version=0)


@pytest.mark.parametrize("value", [0, 10_001, True, "2", 1.5])
def test_the_limit_per_key_is_a_positive_number_or_none(value: Any) -> None:
    row = tenant_queue()
    with pytest.raises(InvalidLimit, match="from 1 to 10000"):
        row.set_max_job_per_key(value)


def test_raising_the_limit_per_key_in_the_admin_lets_waiting_jobs_in(django_capture_on_commit_callbacks: Any) -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    for _ in range(3):
        waiting_job(row, key="user-7")
    admit(row)
    assert fresh(row).current_job == 1
    with django_capture_on_commit_callbacks(execute=True):
        row.set_max_job_per_key(2)
    assert fresh(row).current_job == 2


def test_a_change_reads_the_rest_of_the_row_in_one_query(django_assert_max_num_queries: Any) -> None:
    row = tenant_queue()
    with django_assert_max_num_queries(8):  # savepoint, lock, rest, UPDATE, version, history, release, and the rules
        row.set_limit(4)


# --- jobs ----------------------------------------------------------------------------------------------------------


def test_a_job_that_is_passed_over_says_whose_jobs_hold_the_slots_of_its_key() -> None:
    row = tenant_queue(max_job=3, max_job_per_key=1)
    holding = running_job(row, another_process(), key="user-7")
    job, other = waiting_job(row, key="user-7"), waiting_job(row, key="user-8")
    row.refresh_from_db()
    text = " ".join(reasons.why_waiting(job))
    assert (
        f"the limit per concurrency key is 1, and they hold slots with the same concurrency key, user-7: {holding}."
        in text
    )
    assert "passed over" not in " ".join(reasons.why_waiting(other))


def test_a_job_that_comes_back_later_says_until_when_it_is_scheduled() -> None:
    job = waiting_job(tenant_queue(), state=State.SCHEDULED, run_after=timezone.now() + timedelta(hours=1))
    assert reasons.why_waiting(job)[0].startswith("It is scheduled for ")


def test_list_and_page_of_a_job_show_key_overflow_queue_object_and_priority(viewer: Client) -> None:
    job = waiting_job(
        tenant_queue(), key="user-7", priority=42, rq_queue="imports_bulk", object_model="shop.catalogue", object_pk="9"
    )
    for url in (JOBS, change_page(job)):
        page = viewer.get(url).content.decode()
        for text in ("user-7", "42", "imports → imports_bulk", "shop.catalogue 9"):
            assert text in page, (url, text)


def test_the_priority_of_waiting_jobs_is_changed_with_a_reason(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    running = running_job(row, another_process())
    first, second = waiting_job(row), waiting_job(row)
    asked = run_action(boss, JOBS, "set_priority", second, running)
    assert "jobs with a higher priority go first" in asked.content.decode()
    answer = run_action(boss, JOBS, "set_priority", second, running, confirm="yes", priority="5", reason="big client")
    assert messages_of(answer) == [
        "The priority of 1 job was changed.",
        "1 job was left unchanged: it is no longer waiting.",
    ]
    assert list(row.jobs.backlog()) == [second, first]
    assert LogEntry.objects.get().get_change_message().endswith("priority: 0 → 5 (big client).")


@pytest.mark.parametrize("priority", ["", "high", "1000001"])
def test_an_invalid_priority_is_an_error_in_the_form(boss: Client, priority: str) -> None:
    job = waiting_job(tenant_queue())
    answer = run_action(boss, JOBS, "set_priority", job, confirm="yes", priority=priority)
    assert "errorlist" in answer.content.decode()
    assert fresh(job).priority == 0


# --- errors --------------------------------------------------------------------------------------------------------

TRACEBACK = 'Traceback (most recent call last):\n  File "feeds.py", in load("s3cret")\nValueError: no such feed\n'


def test_a_traceback_needs_the_permission_for_arguments(viewer: Client, boss: Client) -> None:
    job = waiting_job(tenant_queue(), state=State.FAILED, error=TRACEBACK, error_class="ValueError")
    page = viewer.get(change_page(job)).content.decode()
    assert "ValueError" in page
    assert "no such feed" not in page
    assert "s3cret" not in page
    trusted = signed_in("view_tenantjob", "view_job_arguments")
    assert "s3cret" in trusted.get(change_page(job)).content.decode()


def test_nobody_can_guess_a_traceback_through_the_address(boss: Client) -> None:
    assert boss.get(JOBS, {"error__contains": "s3"}).status_code in (302, 400)
