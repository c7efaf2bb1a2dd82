"""The admin pages, through the views as a browser would use them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from tenant_slots import slots
from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.admin.site import (
    HOSTILE,
    JOBS,
    QUEUES,
    actions_offered,
    change_page,
    confirmed,
    in_use,
    loaded,
    messages_of,
    run_action,
    running_job,
    signed_in,
)
from tests.factories import fresh, in_rq, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True)

ADD_QUEUE = reverse("admin:tenant_slots_tenantqueue_add")


# --- the list of tenant queues -------------------------------------------------------------------------------------


def test_the_list_shows_usage_and_the_backlog_of_each_tenant_queue(boss: Client) -> None:
    row = in_use(tenant_queue("acme", max_job=5), 3)
    waiting_job(row), waiting_job(row)
    page = boss.get(QUEUES).content.decode()
    assert "acme" in page
    assert "3 / 5" in page
    assert re.search(r'\.waiting">2<', page)


def test_the_largest_backlog_is_on_top(boss: Client) -> None:
    tenant_queue("idle"), waiting_job(tenant_queue("behind"))
    assert [row.tenant for row in boss.get(QUEUES).context["cl"].result_list] == ["behind", "idle"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=cme", {"acme"}),
        ("queue=reports", {"beta"}),
        ("paused__exact=1", {"gamma"}),
        ("o=6.-4.3", {"acme", "beta", "gamma"}),
    ],
)
def test_the_list_can_be_searched_filtered_and_sorted(boss: Client, query: str, found: set[str]) -> None:
    tenant_queue("acme"), tenant_queue("beta", queue="reports"), tenant_queue("gamma", paused=True)
    assert {row.tenant for row in boss.get(f"{QUEUES}?{query}").context["cl"].result_list} == found


@pytest.mark.parametrize("url", [QUEUES, JOBS])
def test_the_number_of_queries_does_not_grow_with_the_rows(boss: Client, url: str) -> None:
    def queries(rows: int) -> int:
        while TenantQueue.objects.count() < rows:
            waiting_job(tenant_queue(f"tenant {TenantQueue.objects.count()}"))
        with CaptureQueriesContext(connection) as captured:
            assert len(boss.get(url).context["cl"].result_list) == rows
        return len(captured)

    queries(1)  # fills caches of content types
    few, many = queries(10), queries(60)
    assert few == many
    assert many <= 8


def test_a_tenants_name_is_shown_as_text_on_every_page(boss: Client) -> None:
    row = tenant_queue(HOSTILE)
    job = waiting_job(row)
    pages = [QUEUES, JOBS, f"{JOBS}?tenant={HOSTILE}", change_page(row), change_page(job), change_page(row, "delete")]
    for url in pages:
        page = boss.get(url).content.decode()
        assert HOSTILE not in page, url
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page, url


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (" ", "&#x27; &#x27;"),
        ("\u200b\t", "&#x27;\\u200b\\t&#x27;"),
        ("\u3164\u2800\ufe0f", "&#x27;\\u3164\\u2800\\ufe0f&#x27;"),  # to Python a letter, a sign and a mark
        ("a b", "a b"),
    ],
)
def test_a_tenant_of_whose_name_nothing_can_be_seen_is_quoted(boss: Client, name: str, shown: str) -> None:
    """Or the link to it would have nothing to click."""
    waiting_job(tenant_queue(name))
    assert f'<bdi class="slots-name">{shown}</bdi>' in boss.get(QUEUES).content.decode()
    assert f'<td class="field-for_whom">{shown}</td>' in boss.get(JOBS).content.decode()


@committing
def test_a_tenants_name_is_shown_as_text_in_messages(boss: Client) -> None:
    row = tenant_queue(HOSTILE)
    page = boss.post(change_page(row), loaded(boss, row), follow=True).content.decode()
    assert "was changed successfully" in page
    assert HOSTILE not in page


@pytest.mark.parametrize("url", [QUEUES, JOBS])
def test_the_pages_have_no_inline_script_or_style_of_ours(boss: Client, url: str) -> None:
    job = waiting_job(tenant_queue())
    for page in (boss.get(url), boss.get(change_page(job)), boss.get(change_page(job.tenant_queue))):
        text = page.content.decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
        assert not re.search(r"<script(?![^>]*(src=|application/json))", text)


# --- editing a limit -----------------------------------------------------------------------------------------------


@committing
def test_raising_a_limit_lets_waiting_jobs_in_when_it_commits(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row) for _ in range(3)]

    response = boss.post(change_page(row), {**loaded(boss, row), "max_job": "2"})

    assert response.status_code == 302
    assert [fresh(job).state for job in jobs] == [State.QUEUED, State.QUEUED, State.WAITING]
    assert in_rq() == 2
    assert fresh(row).current_job == 2
    assert LogEntry.objects.get().get_change_message() == "Changed limit: 0 → 2."


@committing
def test_lowering_a_limit_stops_no_job(boss: Client) -> None:
    row = tenant_queue(max_job=5)
    jobs = [running_job(fresh(row)) for _ in range(3)]

    boss.post(change_page(row), {**loaded(boss, row), "max_job": "1"})

    assert (fresh(row).max_job, row.current_job) == (1, 3)
    assert {fresh(job).state for job in jobs} == {State.RUNNING}


@committing
def test_what_another_admin_changed_since_the_form_was_loaded_stays_and_the_second_one_learns_of_it(
    boss: Client,
) -> None:
    row = tenant_queue(max_job=1)
    form_of_a = loaded(boss, row)
    colleague = signed_in(superuser=True)
    colleague.post(change_page(row), {**loaded(colleague, row), "max_job": "7"})

    response = boss.post(change_page(row), {**form_of_a, "max_job": "3", "paused": "on"})

    assert response.status_code == 409
    assert "Their limit: 7. Yours: 3. Nothing was saved." in response.content.decode()
    assert (fresh(row).max_job, row.paused) == (7, False)


@committing
def test_a_pause_by_another_admin_is_not_undone_by_a_form_that_does_not_show_it(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    form_of_a = loaded(boss, row)
    TenantQueue.objects.filter(pk=row.pk).update(paused=True, current_job=1)

    boss.post(change_page(row), {**form_of_a, "max_job": "3"})

    assert (fresh(row).max_job, row.paused, row.current_job) == (3, True, 1)


@committing
def test_a_pause_can_be_lifted_in_the_form(boss: Client) -> None:
    row = tenant_queue(paused=True)
    job = waiting_job(row)
    form = loaded(boss, row)
    del form["paused"]

    boss.post(change_page(row), form)

    assert fresh(row).paused is False
    assert fresh(job).state == State.QUEUED


@committing
def test_a_time_to_resume_at_without_a_pause_is_an_error_in_the_form(boss: Client) -> None:
    row = tenant_queue()
    soon = f"{timezone.localtime(timezone.now() + timedelta(hours=2)):%Y-%m-%dT%H:%M}"
    sent = {**loaded(boss, row), "resume_at": soon}
    page = boss.post(change_page(row), sent)
    assert page.status_code == 200, "it was saved"
    assert page.context["errors"] == [["Only a pause ends by itself: choose paused as well."]]
    boss.post(change_page(row), {**sent, "paused": "on"})
    assert fresh(row).paused
    sent = loaded(boss, row)
    del sent["paused"]
    boss.post(change_page(row), sent)
    assert not fresh(row).paused, "whoever leaves the time alone may lift the pause"
    assert fresh(row).resume_at is None


def test_a_script_that_posts_without_loading_the_form_sets_what_it_sends(boss: Client) -> None:
    row = tenant_queue(max_job=1, paused=True)
    boss.post(change_page(row), {"max_job": "4"})
    assert (fresh(row).max_job, row.paused) == (4, False)


def test_saving_an_unchanged_form_writes_nothing(boss: Client) -> None:
    row = tenant_queue()
    form = loaded(boss, row)
    with CaptureQueriesContext(connection) as captured:
        boss.post(change_page(row), form)
    assert not [query for query in captured if query["sql"].startswith('UPDATE "tenant_slots')]


def test_neither_tenant_nor_queue_nor_the_counter_can_be_edited(boss: Client) -> None:
    row = tenant_queue(current_job=0)
    forged = {"tenant": "other", "queue": "reports", "current_job": "-5", "created_at": "2000-01-01"}
    boss.post(change_page(row), {**loaded(boss, row), "max_job": "3", **forged})
    assert (fresh(row).tenant, row.queue, row.current_job, row.max_job) == ("acme", "imports", 0, 3)


def test_the_list_itself_is_not_editable(boss: Client) -> None:
    row = tenant_queue()
    boss.post(QUEUES, {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": row.pk, "form-0-max_job": 9})
    assert fresh(row).max_job == 1
    assert not TenantQueueAdmin.list_editable


@pytest.mark.parametrize("limit", ["-1", "10001", "abc", "", "1.5", "9" * 30])
def test_an_invalid_limit_is_an_error_in_the_form(boss: Client, limit: str) -> None:
    row = tenant_queue(max_job=2)
    response = boss.post(change_page(row), {**loaded(boss, row), "max_job": limit})
    assert "max_job" in response.context["adminform"].form.errors
    assert fresh(row).max_job == 2


def test_a_row_whose_queue_was_removed_from_the_settings_can_still_be_edited(boss: Client) -> None:
    row = tenant_queue(queue="gone")
    boss.post(change_page(row), {**loaded(boss, row), "max_job": "0"})
    assert fresh(row).max_job == 0


# --- adding a row --------------------------------------------------------------------------------------------------


def test_a_row_can_be_added_by_hand(boss: Client) -> None:
    response = boss.post(ADD_QUEUE, {"tenant": "acme", "queue": "reports", "max_job": "3"})
    assert response.status_code == 302
    row = TenantQueue.objects.get()
    assert (row.tenant, row.queue, row.max_job, row.current_job, row.paused) == ("acme", "reports", 3, 0, False)


def test_a_row_is_added_by_somebody_whose_name_is_longer_than_is_kept(boss: Client, monkeypatch: Any) -> None:
    """A user model of the project may have e-mail addresses for names."""
    monkeypatch.setattr(User, "get_username", lambda self: f"{'x' * 200}@example.org")
    assert boss.post(ADD_QUEUE, {"tenant": "acme", "queue": "reports", "max_job": "3"}).status_code == 302
    assert TenantQueue.objects.get().limit_set_by == "x" * 150


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"queue": "nonsense"}, "queue"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "x" * 256}, "tenant"),
        ({"tenant": "a\0b"}, "tenant"),
        ({"max_job": "10001"}, "max_job"),
        ({"tenant": "taken"}, "__all__"),
    ],
)
def test_an_invalid_row_is_an_error_in_the_form(boss: Client, data: dict[str, str], field: str) -> None:
    tenant_queue("taken")
    response = boss.post(ADD_QUEUE, {"tenant": "acme", "queue": "imports", "max_job": "1", **data})
    assert list(response.context["adminform"].form.errors) == [field]
    assert TenantQueue.objects.count() == 1


# --- pause and resume ----------------------------------------------------------------------------------------------


@committing
def test_pausing_keeps_running_jobs_and_lets_no_other_start(boss: Client) -> None:
    row, other = tenant_queue(max_job=3), tenant_queue("paused before", paused=True)
    job = running_job(row)

    response = run_action(boss, QUEUES, "pause", row, other, confirm="yes")

    assert messages_of(response) == ["1 tenant queue was paused.", "1 tenant queue needed no change."]
    assert fresh(row).paused
    assert fresh(job).state == State.RUNNING
    assert [entry.object_repr for entry in LogEntry.objects.all()] == [str(row)]


@committing
def test_resuming_lets_waiting_jobs_in(boss: Client) -> None:
    rows = [tenant_queue("acme", paused=True), tenant_queue("beta", paused=True)]
    jobs = [waiting_job(row) for row in rows]

    response = run_action(boss, QUEUES, "resume", *rows, confirm="yes")

    assert messages_of(response) == ["2 tenant queues were resumed."]
    assert {fresh(job).state for job in jobs} == {State.QUEUED}
    assert in_rq() == 2
    assert LogEntry.objects.count() == 2


def test_a_get_runs_no_action(boss: Client) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    boss.get(QUEUES, {"action": "pause", "_selected_action": row.pk})
    boss.get(JOBS, {"action": "cancel", "_selected_action": job.pk})
    assert not fresh(row).paused
    assert fresh(job).state == State.WAITING


# --- jobs ----------------------------------------------------------------------------------------------------------


def found(client: Client, query: str) -> set[Any]:
    return set(client.get(f"{JOBS}?{query}").context["cl"].result_list)


def test_jobs_can_be_filtered_by_state_queue_and_tenant(boss: Client) -> None:
    imported = waiting_job(tenant_queue("acme"))
    ended = waiting_job(tenant_queue("beta"), state=State.FAILED)
    report = waiting_job(tenant_queue("acme", queue="reports"))

    assert found(boss, "state__exact=failed") == {ended}
    assert found(boss, "tenant_queue__queue=reports") == {report}
    assert found(boss, "tenant=acme") == {imported, report}
    assert found(boss, "tenant=acme&tenant_queue__queue=imports") == {imported}
    assert found(boss, "tenant=") == {imported, ended, report}
    assert found(boss, "tenant=acm") == found(boss, "tenant=%00") == set()


def test_jobs_are_found_by_id_tenant_and_task(boss: Client) -> None:
    of_acme = waiting_job(tenant_queue("acme"))
    identifier = str(uuid4())
    of_uuid_tenant = waiting_job(tenant_queue(identifier))

    assert found(boss, f"q={of_acme.uuid}") == {of_acme}
    assert found(boss, "q=%20ACM%20") == {of_acme}
    assert found(boss, f"q={identifier}") == {of_uuid_tenant}
    assert found(boss, "q=jobs.add") == {of_acme, of_uuid_tenant}
    assert found(boss, "q=nothing") == set()


def test_the_tenant_filter_keeps_the_other_filters_and_lists_no_tenants(boss: Client) -> None:
    for number in range(30):
        waiting_job(tenant_queue(f"tenant-{number}"), state=State.FAILED)
    page = boss.get(f"{JOBS}?state__exact=failed&tenant=tenant-7&q=add").content.decode()
    assert '<input type="hidden" name="state__exact" value="failed">' in page
    assert '<input type="hidden" name="q" value="add">' in page
    assert 'name="tenant" value="tenant-7"' in page
    assert "tenant-8" not in page


def test_the_list_counts_no_further_than_anybody_pages(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenant_slots.admin.lists.MOST_COUNTED", 3)
    row = tenant_queue()
    for _ in range(5):
        waiting_job(row)
    assert boss.get(JOBS).context["cl"].result_count == 3


def test_a_job_shows_its_state_and_position_in_the_backlog(boss: Client) -> None:
    row = tenant_queue()
    waiting_job(row)
    page = boss.get(change_page(waiting_job(row, error="it <b>broke</b>"))).content.decode()
    assert '<strong class="slots-pill" data-state="waiting">waiting</strong>' in page
    assert "It is number 2 in the backlog of acme on imports." in page
    assert "it &lt;b&gt;broke&lt;/b&gt;" in page


def test_jobs_cannot_be_added_changed_or_deleted(boss: Client) -> None:
    job = waiting_job(tenant_queue())
    assert boss.get(reverse("admin:tenant_slots_tenantjob_add")).status_code == 403
    assert boss.post(change_page(job), {"state": "finished", "priority": "9"}).status_code == 403
    assert boss.post(change_page(job, "delete"), {"post": "yes"}).status_code == 403
    assert (fresh(job).state, job.priority) == (State.WAITING, 0)


@committing
def test_canceling_asks_first_then_frees_slots_asks_running_jobs_to_stop_and_tells_who_had_ended(boss: Client) -> None:
    row = tenant_queue(max_job=3)
    running = running_job(row)
    waiting, scheduled = waiting_job(row), waiting_job(row, state=State.SCHEDULED)
    ended = waiting_job(row, state=State.FINISHED)

    page = run_action(boss, JOBS, "cancel", running, waiting, scheduled, ended)
    assert "This affects 4 objects." in page.content.decode()
    assert fresh(waiting).state == State.WAITING

    response = confirmed(boss, JOBS, "cancel", running, waiting, scheduled, ended, reason="wrong feed")

    assert messages_of(response) == [
        "2 jobs were canceled.",
        "1 running job is being stopped.",
        "1 job had already ended.",
    ]
    assert {fresh(waiting).state, fresh(scheduled).state} == {State.CANCELED}
    assert fresh(running).cancel_requested_at is not None
    assert fresh(ended).state == State.FINISHED
    changes = {entry.object_id: entry.get_change_message() for entry in LogEntry.objects.all()}
    assert changes == {
        str(running.pk): "Changed stop requested (wrong feed).",
        str(waiting.pk): "Changed state: waiting → canceled (wrong feed).",
        str(scheduled.pk): "Changed state: scheduled → canceled (wrong feed).",
    }


@committing
def test_running_jobs_are_stopped_by_those_only_who_may_stop_jobs() -> None:
    operator = signed_in("view_tenantjob", "change_tenantjob")
    row = tenant_queue(max_job=3)
    running, waiting, queued = running_job(row), waiting_job(row), waiting_job(row, state=State.QUEUED)
    TenantQueue.objects.update(current_job=2)

    response = confirmed(operator, JOBS, "cancel", running, waiting, queued)

    assert messages_of(response) == [
        "2 jobs were canceled.",
        "1 running job was left alone: stopping needs a permission of its own.",
    ]
    assert (fresh(running).state, running.cancel_requested_at) == (State.RUNNING, None)
    assert {fresh(waiting).state, fresh(queued).state} == {State.CANCELED}


@committing
def test_a_job_that_starts_while_it_is_canceled_is_left_to_those_who_may_stop_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = signed_in("view_tenantjob", "change_tenantjob")
    job = waiting_job(tenant_queue())
    withdraw = slots.withdraw

    def started_meanwhile(job: TenantJob, error: str = "") -> bool:
        TenantQueue.objects.update(current_job=1)
        TenantJob.objects.update(state=State.RUNNING, attempt=1)
        return withdraw(job, error)

    monkeypatch.setattr(slots, "withdraw", started_meanwhile)
    response = confirmed(operator, JOBS, "cancel", job)
    assert messages_of(response) == ["1 running job was left alone: stopping needs a permission of its own."]
    assert (fresh(job).state, job.cancel_requested_at) == (State.RUNNING, None)


# --- who may do what -----------------------------------------------------------------------------------------------


def test_staff_without_permission_sees_nothing() -> None:
    nobody = signed_in()
    job = waiting_job(tenant_queue())
    pages = [QUEUES, JOBS, ADD_QUEUE, change_page(job), change_page(job.tenant_queue)]
    assert {nobody.get(url).status_code for url in pages} == {403}
    assert "Tenant slots" not in nobody.get(reverse("admin:index")).content.decode()


def test_a_viewer_sees_the_pages_but_no_action(viewer: Client) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    pages = [QUEUES, JOBS, change_page(row), change_page(job)]
    assert {viewer.get(url).status_code for url in pages} == {200}
    assert actions_offered(viewer, QUEUES) == actions_offered(viewer, JOBS) == set()


def test_a_viewer_changes_nothing(viewer: Client) -> None:
    row = tenant_queue()
    job = waiting_job(row)
    for action in ("pause", "resume", "delete_selected"):
        run_action(viewer, QUEUES, action, row, post="yes", confirm="yes")
    run_action(viewer, JOBS, "cancel", job)
    assert viewer.post(change_page(row), {"max_job": "9"}).status_code == 403
    assert viewer.post(change_page(row, "delete"), {"post": "yes"}).status_code == 403
    assert (fresh(row).paused, row.max_job, fresh(job).state) == (False, 1, State.WAITING)


def test_the_change_permission_allows_the_actions() -> None:
    operator = signed_in("view_tenantqueue", "change_tenantqueue", "view_tenantjob", "change_tenantjob")
    waiting_job(tenant_queue())
    assert actions_offered(operator, QUEUES) == {"pause", "resume", "set_limit", "set_share"}
    assert actions_offered(operator, JOBS) == {"cancel"}


def test_the_handlers_check_the_permission_themselves() -> None:
    request = RequestFactory().post("/")
    request.user = User.objects.create(username="nobody", is_staff=True)
    queues, jobs = TenantQueueAdmin(TenantQueue, admin.site), TenantJobAdmin(TenantJob, admin.site)
    for handler, rows in [
        (queues.pause, TenantQueue.objects.all()),
        (queues.resume, TenantQueue.objects.all()),
        (jobs.cancel, TenantJob.objects.all()),
    ]:
        with pytest.raises(PermissionDenied):
            handler(request, rows)


def test_a_project_can_register_a_subclass_again() -> None:
    site = admin.AdminSite(name="custom")
    site.register(TenantQueue, type("Themed", (TenantQueueAdmin,), {"list_per_page": 5}))
    site.register(TenantJob, type("ThemedJobs", (TenantJobAdmin,), {}))
    assert site.get_model_admin(TenantQueue).list_per_page == 5
    assert not [error for model_admin in site._registry.values() for error in model_admin.check()]
