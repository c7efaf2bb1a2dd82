"""What cannot be changed: somebody keeps the row, or the database or the project refuses. Staff are told why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection, connections, transaction
from django.db.models import ProtectedError
from django.db.models.signals import pre_delete
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from tenant_slots.admin import TenantQueueAdmin, actions, at_once, limits
from tenant_slots.db import transactions
from tenant_slots.models import BulkChange, State, TenantJob, TenantQueue
from tenant_slots.signals import limit_changed
from tests import refusals
from tests.admin.bulk_changes import confirm, many_queues, page_of, started
from tests.admin.site import JOBS, QUEUES, Form, asked, change_page, confirmed, loaded, messages_of
from tests.factories import another_process, dead_process, fresh, in_thread, running_job, tenant_queue, waiting_job
from tests.races.test_callers_transactions import kept_open

pytestmark = pytest.mark.django_db(transaction=True)

on_postgres = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no locks on rows")

ADD = f"{QUEUES}add/"
JSON = {"Accept": "application/json"}
LOCKED = "Another transaction keeps the tenant queue locked, so that nothing was changed. Try again."


@pytest.fixture
def _impatient() -> Iterator[None]:
    token = transactions.patience.set(0.2)
    yield
    transactions.patience.reset(token)


@pytest.fixture
def _acme_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is signed in may see one tenant."""
    own = TenantQueue.objects.filter(tenant="acme")
    monkeypatch.setattr(TenantQueueAdmin, "tenant_queues_for", lambda self, request: own.all())


def keep(*rows: TenantQueue) -> None:
    assert list(TenantQueue.objects.select_for_update().filter(pk__in=[row.pk for row in rows]))


def kept(*rows: TenantQueue) -> Any:
    """Somebody has these rows locked meanwhile."""
    return kept_open(partial(keep, *rows))


def limits_of(*rows: TenantQueue) -> list[int]:
    return [fresh(row).max_job for row in rows]


def text_of(response: Any) -> str:
    return unescape(response.content.decode())


# --- a row that somebody keeps -------------------------------------------------------------------------------------


@on_postgres
@pytest.mark.usefixtures("_impatient")
def test_an_action_changes_the_rows_behind_a_locked_one_and_says_which_it_could_not_change(boss: Client) -> None:
    rows = many_queues(3)
    _, sent = asked(boss, QUEUES, "set_limit", *rows)
    with kept(rows[1]):
        response = boss.post(QUEUES, {**sent, "max_job": "7"}, follow=True)
    assert limits_of(*rows) == [7, 1, 7]
    assert messages_of(response) == [
        "The limits of 2 tenant queues were set.",
        f"1 could not be changed. tenant 001 on imports: {LOCKED}",
    ]


@on_postgres
def test_all_rows_of_an_action_wait_together_as_long_as_one_does(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many_queues(12)
    _, sent = asked(boss, QUEUES, "pause", *rows)
    patience, pause = [], TenantQueue.pause

    def seen(*args: Any, **facts: Any) -> Any:
        patience.append(transactions.patience.get())
        return pause(*args, **facts)

    monkeypatch.setattr(TenantQueue, "pause", seen)
    with transactions.waiting_at_most(0.3), kept(*rows):
        response = boss.post(QUEUES, sent, follow=True)
    assert patience[0] == pytest.approx(0.3, abs=0.1)
    assert patience[1:] == [at_once.LEAST_PATIENCE] * 11
    (message,) = messages_of(response)
    assert message.startswith("12 could not be changed. ")
    assert message.count(LOCKED) == actions.PROBLEMS_SHOWN


@on_postgres
@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("action", "job", "data"),
    [
        ("cancel", lambda row: waiting_job(row), {}),
        ("retry", lambda row: waiting_job(row, state=State.FAILED), {}),
        ("set_priority", lambda row: waiting_job(row), {"priority": "7"}),
        ("stop", lambda row: running_job(row, another_process()), {}),
        ("release", lambda row: running_job(row, dead_process()), {"force": "on", "reason": "it hangs"}),
    ],
)
def test_a_job_of_a_locked_row_is_left_as_it_is_with_the_reason(
    action: str, job: Callable[[TenantQueue], TenantJob], data: dict[str, str], boss: Client
) -> None:
    row = tenant_queue()
    one = job(row)
    before = TenantJob.objects.filter(pk=one.pk).values().get()
    _, sent = asked(boss, JOBS, action, one)
    with kept(row):
        response = boss.post(JOBS, {**sent, **data}, follow=True)
    assert messages_of(response) == [f"1 could not be changed. {one}: {LOCKED}"]
    assert TenantJob.objects.filter(pk=one.pk).values().get() == before
    assert not LogEntry.objects.exists()


@on_postgres
@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(("page", "data"), [("limit", {"max_job": "5", "share": "3"}), ("reset", {})])
def test_a_page_for_the_limit_of_a_locked_row_says_so(page: str, data: dict[str, str], boss: Client) -> None:
    row = tenant_queue(max_job=9)
    url, sent = f"{QUEUES}{row.pk}/{page}/", {"version": "0", **data}
    with kept(row):
        response = boss.post(url, sent)
    assert response.status_code == 503
    assert LOCKED in text_of(response)
    assert fresh(row).max_job == 9
    assert boss.post(url, {**Form(text_of(response)).values, **sent}).status_code == 302
    assert fresh(row).max_job != 9


@on_postgres
@pytest.mark.usefixtures("_impatient")
def test_the_dialog_for_the_limit_of_a_locked_row_gets_the_reason_as_an_error(boss: Client) -> None:
    row = tenant_queue()
    with kept(row):
        response = boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": "5", "version": "0"}, headers=JSON)
    assert (response.status_code, response.json()) == (503, {"errors": {"__all__": [LOCKED]}})


@on_postgres
@pytest.mark.usefixtures("_impatient")
def test_the_form_of_a_locked_row_comes_back_as_it_was_sent_and_can_be_sent_again(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    sent = {**loaded(boss, row), "max_job": "4", "share": "3"}
    with kept(row):
        response = boss.post(change_page(row), sent)
    assert (response.status_code, fresh(row).max_job) == (503, 1)
    assert LOCKED in text_of(response)
    again = Form(text_of(response)).values
    assert (again["max_job"], again["share"]) == ("4", "3")
    assert boss.post(change_page(row), again).status_code == 302
    assert (fresh(row).max_job, row.share) == (4, 3)


@on_postgres
@pytest.mark.usefixtures("_impatient")
def test_a_row_that_somebody_else_is_about_to_add_is_not_waited_for(boss: Client) -> None:
    sent = {**Form(boss.get(ADD).content.decode()).values, "tenant": "acme", "queue": "imports", "max_job": "3"}
    with kept_open(tenant_queue):
        response = boss.post(ADD, sent)
    assert response.status_code == 503
    assert LOCKED in text_of(response)
    assert fresh(TenantQueue.objects.get()).max_job == 1


@on_postgres
@pytest.mark.usefixtures("_impatient", "_acme_alone")
def test_nor_by_somebody_who_may_see_some_tenants_only(boss: Client) -> None:
    """Whether they may have it is asked with a row that is made for a moment."""
    sent = {**Form(boss.get(ADD).content.decode()).values, "tenant": "acme", "queue": "imports", "max_job": "3"}
    with kept_open(tenant_queue):
        response = boss.post(ADD, sent)
    assert response.status_code == 503
    assert LOCKED in text_of(response)
    assert fresh(TenantQueue.objects.get()).max_job == 1


@on_postgres
@pytest.mark.usefixtures("_impatient")
def test_a_locked_row_is_not_deleted_and_not_waited_for_without_an_end(boss: Client) -> None:
    rows = many_queues(2)
    _, sent = asked(boss, QUEUES, "delete_selected", *rows)
    with kept(rows[0]):
        response = boss.post(QUEUES, sent, follow=True)
    assert messages_of(response) == [
        "1 tenant queue was deleted.",
        f"1 could not be changed. tenant 000 on imports: {LOCKED}",
    ]
    assert TenantQueue.objects.get() == rows[0]
    assert LogEntry.objects.count() == 1


# --- a change that the database refuses ----------------------------------------------------------------------------

ERRORS = [refusals.RAISED, "check_violation", "query_canceled"]


@on_postgres
@pytest.mark.parametrize("as_error", ERRORS)
def test_an_action_leaves_out_the_row_that_a_trigger_refuses(as_error: str, boss: Client) -> None:
    rows = many_queues(3)
    with refusals.refused(f"NEW.id = {rows[1].pk} AND NEW.max_job = 7", as_error, TenantQueue):
        response = confirmed(boss, QUEUES, "set_limit", *rows, max_job="7")
    assert limits_of(*rows) == [7, 1, 7]
    assert messages_of(response) == [
        "The limits of 2 tenant queues were set.",
        "1 could not be changed. tenant 001 on imports: not this one",
    ]


@on_postgres
@pytest.mark.parametrize("as_error", ERRORS)
def test_a_trigger_of_the_project_is_quoted_on_the_pages_of_a_row(as_error: str, boss: Client) -> None:
    row = tenant_queue(max_job=2)
    form, url = loaded(boss, row), f"{QUEUES}{row.pk}/limit/"
    with refusals.refused("NEW.max_job <> 2", as_error, TenantQueue):
        in_place = boss.post(url, {"max_job": "5", "version": "0"}, headers=JSON)
        pages = [
            boss.post(url, {"max_job": "5", "version": "0"}),
            boss.post(f"{QUEUES}{row.pk}/reset/", {"version": "0"}),
            boss.post(change_page(row), {**form, "max_job": "4"}),
        ]
    assert (in_place.status_code, in_place.json()) == (409, {"errors": {"__all__": ["not this one"]}})
    assert [page.status_code for page in pages] == [409] * 3
    assert ["not this one" in text_of(page) for page in pages] == [True] * 3
    assert fresh(row).max_job == 2
    assert not LogEntry.objects.exists()


@on_postgres
def test_a_limit_is_not_set_where_the_share_that_was_sent_with_it_is_refused(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    url = f"{QUEUES}{row.pk}/limit/"
    with refusals.refused("NEW.share = 5", model=TenantQueue):
        response = boss.post(url, {"max_job": "3", "share": "5", "version": "0"})
    assert response.status_code == 409
    assert "The limit is 1 " in text_of(response)
    assert (fresh(row).max_job, row.version) == (1, 0)
    assert not row.kept_changes.exists()


@on_postgres
def test_an_added_row_that_a_trigger_refuses_is_an_error_of_the_form(boss: Client) -> None:
    sent = {**Form(boss.get(ADD).content.decode()).values, "tenant": "acme", "queue": "imports"}
    with refusals.refused("true", model=TenantQueue, events="INSERT"):
        response = boss.post(ADD, sent)
    assert response.status_code == 409
    assert "not this one" in text_of(response)


@on_postgres
@pytest.mark.usefixtures("_acme_alone")
@pytest.mark.parametrize("as_error", ERRORS)
def test_so_it_is_for_somebody_who_may_see_some_tenants_only(as_error: str, boss: Client) -> None:
    sent = {**Form(boss.get(ADD).content.decode()).values, "tenant": "acme", "queue": "imports"}
    with refusals.refused("true", as_error, model=TenantQueue, events="INSERT"):
        response = boss.post(ADD, sent)
    assert response.status_code == 409
    assert "not this one" in text_of(response)
    again = {**Form(text_of(response)).values, "tenant": "acme", "queue": "imports"}
    assert boss.post(ADD, {**again, "tenant": "foreign"}).status_code == 200
    assert boss.post(ADD, again).status_code == 302
    assert TenantQueue.objects.get().tenant == "acme"


def test_a_user_whose_name_is_longer_than_a_column_adds_a_row(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(User, "get_username", lambda self: "a" * 212)
    sent = {**Form(boss.get(ADD).content.decode()).values, "tenant": "acme", "queue": "imports"}
    assert boss.post(ADD, sent).status_code == 302
    assert TenantQueue.objects.get().limit_set_by == "a" * 150


@on_postgres
def test_jobs_before_one_that_is_refused_run_again_and_are_in_the_history(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    some = [waiting_job(row, state=State.FAILED) for _ in range(3)]
    _, sent = asked(boss, QUEUES, "retry_failed", row)
    with refusals.refused(refusals.any_change_of(some[1])):
        response = boss.post(QUEUES, sent, follow=True)
    assert [fresh(job).state for job in some] == [State.WAITING, State.FAILED, State.FAILED]
    assert messages_of(response) == ["1 could not be changed. acme on imports: not this one"]
    assert LogEntry.objects.get().get_change_message() == "Changed failed jobs retried: 1."


@on_postgres
def test_a_background_job_that_cannot_be_enqueued_is_an_error_on_the_page_that_asks(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 1)
    rows = many_queues(2)
    with refusals.refused("true", events="INSERT"):
        response = confirm(boss, QUEUES, "set_limit", rows, max_job="7")
    assert response.status_code == 409
    assert "not this one" in text_of(response)
    assert not BulkChange.objects.exists()
    again = {**Form(text_of(response)).values, "_selected_action": [row.pk for row in rows]}
    assert boss.post(QUEUES, again)["Location"] == page_of(BulkChange.objects.get())


@on_postgres
def test_nor_is_one_that_is_to_be_gone_on_with_a_server_error(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 1)
    change = started(boss, QUEUES, "pause", many_queues(2))
    TenantJob.objects.get(uuid=change.job).cancel()
    with refusals.refused("true", events="INSERT"):
        response = boss.post(page_of(change), {"go_on": "yes"}, follow=True)
    assert messages_of(response) == ["not this one"]
    assert fresh(change).job == change.job


def test_rows_that_the_project_lets_somebody_not_delete_are_counted_and_the_others_deleted(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = many_queues(3)
    _, sent = asked(boss, QUEUES, "delete_selected", *rows)
    may = TenantQueueAdmin.has_delete_permission
    monkeypatch.setattr(
        TenantQueueAdmin, "has_delete_permission", lambda self, request, obj=None: obj != rows[1] and may(self, request)
    )
    response = boss.post(QUEUES, sent, follow=True)
    assert messages_of(response) == ["2 tenant queues were deleted.", "1 could not be changed."]
    assert TenantQueue.objects.get() == rows[1]


# --- what was deleted, and what the project answers ----------------------------------------------------------------


def test_a_row_that_is_deleted_while_the_action_runs_is_counted_as_gone(boss: Client) -> None:
    rows = many_queues(3)

    def delete_next(**_: Any) -> None:
        TenantQueue.objects.filter(pk=rows[1].pk).delete()

    limit_changed.connect(delete_next)
    try:
        response = confirmed(boss, QUEUES, "set_limit", *rows, max_job="7")
    finally:
        limit_changed.disconnect(delete_next)
    assert limits_of(rows[0], rows[2]) == [7, 7]
    assert messages_of(response) == ["The limits of 2 tenant queues were set.", "1 object is gone."]


def test_a_row_that_is_deleted_while_its_limit_is_set_is_no_server_error(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue()
    set_it = limits.set_limit_and_share

    def too_late(row: TenantQueue, **values: Any) -> Any:
        TenantQueue.objects.filter(pk=row.pk).delete()
        return set_it(row, **values)

    monkeypatch.setattr(limits, "set_limit_and_share", too_late)
    response = boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": "5", "version": "0"}, headers=JSON)
    assert (response.status_code, response.json()) == (
        404,
        {"errors": {"__all__": ["It was deleted in the meantime."]}},
    )


@on_postgres
def test_with_atomic_requests_an_action_holds_one_tenant_queue_at_a_time(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings, "default", {**connection.settings_dict, "ATOMIC_REQUESTS": True})
    rows = many_queues(3)
    _, sent = asked(boss, QUEUES, "pause", *rows)
    pause, free = TenantQueue.pause, []

    def look() -> int:
        with transaction.atomic():
            return len(TenantQueue.objects.select_for_update(skip_locked=True))

    def seen(*args: Any, **facts: Any) -> Any:
        free.append(in_thread(look))
        return pause(*args, **facts)

    monkeypatch.setattr(TenantQueue, "pause", seen)
    boss.post(QUEUES, sent)
    assert free == [3, 3, 3]
    assert all(fresh(row).paused for row in rows)


def test_no_page_of_ours_is_one_transaction_and_other_databases_are_left_to_the_project() -> None:
    for model in (TenantQueue, TenantJob):
        for url in admin.site.get_model_admin(model).get_urls():
            left_out = getattr(url.callback, "_non_atomic_requests", ())
            assert ("default" in left_out, "other" in left_out) == (True, False), url


def test_a_page_that_the_project_adds_is_left_as_it_is() -> None:
    class WithPages(admin.ModelAdmin):
        def get_urls(self) -> list[Any]:
            return [path("now/", self.now), path("later/", self.later), *super().get_urls()]

        def now(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("now")

        async def later(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("later")

    class Queues(TenantQueueAdmin, WithPages):
        pass

    queues = Queues(TenantQueue, admin.site)
    now, later = (url.callback for url in queues.get_urls() if str(url.pattern) in ("now/", "later/"))
    assert "default" in now._non_atomic_requests
    assert not hasattr(queues.now, "_non_atomic_requests")
    assert now(None).content == b"now"
    assert async_to_sync(later)(None).content == b"later"
    assert (iscoroutinefunction(now), iscoroutinefunction(later)) == (False, True)


@on_postgres
def test_a_transaction_around_the_request_stays_whole(boss: Client) -> None:
    rows = many_queues(3)
    _, sent = asked(boss, QUEUES, "set_limit", *rows)
    with refusals.refused(f"NEW.id = {rows[1].pk} AND NEW.max_job = 7", model=TenantQueue), transaction.atomic():
        boss.post(QUEUES, {**sent, "max_job": "7"})
        boss.post(f"{QUEUES}{rows[1].pk}/limit/", {"max_job": "7", "version": "0"})
        boss.post(change_page(rows[1]), {**loaded(boss, rows[1]), "max_job": "7"})
    assert limits_of(*rows) == [7, 1, 7]


@on_postgres
def test_nobody_is_told_of_a_change_that_was_taken_back(boss: Client) -> None:
    row, told = tenant_queue(), []

    def receiver(change: Any, **facts: Any) -> None:
        told.append(change.new)

    limit_changed.connect(receiver)
    with transaction.atomic(), refusals.refused("true", model=LogEntry, events="INSERT"):
        response = boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": "3", "version": "0"}, headers=JSON)
    assert (response.status_code, fresh(row).max_job, told) == (409, 1, [])
    assert boss.post(f"{QUEUES}{row.pk}/limit/", {"max_job": "3", "version": "0"}, headers=JSON).status_code == 200
    assert told == [3], "the control"


def test_a_row_that_the_project_protects_is_named_without_what_protects_it(boss: Client) -> None:
    rows = many_queues(2)
    secret = {User.objects.create(username=f"secret customer {number}") for number in range(3)}

    def protect(instance: TenantQueue, **facts: Any) -> None:
        if instance.pk == rows[0].pk:
            raise ProtectedError("it is referenced through 'Invoice.queue' " + "and so on " * 100, secret)

    pre_delete.connect(protect, sender=TenantQueue)
    try:
        *_, problem = messages_of(confirmed(boss, QUEUES, "delete_selected", *rows))
    finally:
        pre_delete.disconnect(protect, sender=TenantQueue)
    assert "Invoice.queue" in problem
    assert "secret" not in problem
    assert len(problem) < 700
    assert TenantQueue.objects.get() == rows[0]
