"""Editing limits in the admin: in place, on a page without JavaScript, and on the change form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client, override_settings
from django.utils import timezone

from tenant_slots.admin import words
from tenant_slots.exceptions import StaleVersion
from tenant_slots.models import LimitSource, State, TenantQueue
from tests.admin.site import LIVE, QUEUES, Form, change_page, in_use, loaded, messages_of, run_action, signed_in
from tests.factories import fresh, in_rq, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

JSON = {"Accept": "application/json"}


def limit_page(row: TenantQueue) -> str:
    return f"{QUEUES}{row.pk}/limit/"


def local(time: Any) -> str:
    return timezone.localtime(time).strftime("%Y-%m-%dT%H:%M")


def in_an_hour() -> Any:
    return timezone.now() + timedelta(hours=1)


def test_a_limit_raised_in_place_starts_what_waits_at_once(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row) for _ in range(3)]

    answer = boss.post(limit_page(row), {"max_job": 2, "reason": "sale", "version": 0}, headers=JSON).json()

    assert [fresh(job).state for job in jobs] == [State.QUEUED, State.QUEUED, State.WAITING]
    assert in_rq() == 2
    assert answer["cells"][f"{row.pk}.usage"]["text"] == "0 / 2"
    assert answer["cells"][f"{row.pk}.queued"]["text"] == "2"
    assert answer["cells"][f"{row.pk}.edit"]["attrs"]["data-version"] == "1"
    assert LogEntry.objects.get().get_change_message() == "Changed limit: 0 → 2 (sale)."


def test_the_second_of_two_admins_gets_409_with_both_values(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    colleague = signed_in("view_tenantqueue", "set_limit_tenantqueue")
    assert colleague.post(limit_page(row), {"max_job": 7, "version": 0}, headers=JSON).status_code == 200

    answer = boss.post(limit_page(row), {"max_job": 3, "version": 0}, headers=JSON)

    assert answer.status_code == 409
    assert answer.json()["theirs"] == {"max_job": 7, "version": 1, "until": ""}
    assert answer.json()["yours"] == {"max_job": 3}
    assert fresh(row).max_job == 7
    assert LogEntry.objects.count() == 1


def test_without_javascript_the_same_page_is_a_form(boss: Client) -> None:
    row = in_use(tenant_queue(max_job=1), 5)
    page = boss.get(limit_page(row)).content.decode()
    assert 'name="version" value="0"' in page
    assert "Running: 5. A lower limit stops none of them." in page

    response = boss.post(limit_page(row), {"max_job": 3, "version": 0}, follow=True)

    assert messages_of(response) == [
        "Limit of acme on imports: 3. Running 5, limit 3: 2 too many. None is stopped, and none starts before the "
        "limit allows it.",
    ]


def test_without_javascript_a_conflict_shows_both_values_and_can_be_decided(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    TenantQueue.objects.get().set_limit(7)

    response = boss.post(limit_page(row), {"max_job": 3, "version": 0})

    page = response.content.decode()
    assert response.status_code == 409
    assert "Their limit: 7. Yours: 3. Nothing was saved." in page
    assert 'name="version" value="1"' in page
    assert fresh(row).max_job == 7


@pytest.mark.parametrize(
    "data", [{"max_job": "-1"}, {"max_job": "10001"}, {"max_job": ""}, {"max_job": "x"}, {"version": ""},
             {"until": "2020-01-01T00:00"}, {"reason": "x" * 201}],
)  # fmt: skip
def test_an_invalid_limit_is_refused(boss: Client, data: dict[str, str]) -> None:
    row = tenant_queue()
    answer = boss.post(limit_page(row), {"version": "0", "max_job": "2", **data}, headers=JSON)
    assert (answer.status_code, fresh(row).max_job) == (400, 1)
    assert answer.json()["errors"]


def test_an_override_says_until_when_and_what_comes_then(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    answer = boss.post(limit_page(row), {"max_job": 10, "until": local(in_an_hour()), "version": 0}, headers=JSON)
    assert (fresh(row).max_job, row.limit_before_override) == (10, 1)
    text = answer.json()["cells"][f"{row.pk}.origin"]["text"]
    assert text.startswith("override until ")
    assert ", then 1 (" in text
    assert "until" in LogEntry.objects.get().get_change_message()


@override_settings(TENANT_SLOTS={"DEFAULT_MAX_JOB": 4})
def test_a_limit_is_reset_after_a_page_that_says_to_what(boss: Client) -> None:
    row = tenant_queue(max_job=9, limit_source="set")
    url = f"{QUEUES}{row.pk}/reset/"
    assert "The limit will be 4, the default." in boss.get(url).content.decode()
    assert fresh(row).max_job == 9
    assert boss.post(url, {"reason": "trial is over", "version": 5}).status_code == 409
    assert fresh(row).max_job == 9
    boss.post(url, {"reason": "trial is over", "version": 0})
    assert (fresh(row).max_job, row.limit_source) == (4, LimitSource.DEFAULT)
    assert LogEntry.objects.get().get_change_message() == "Changed limit: 9 → 4 (trial is over)."


@override_settings(TENANT_SLOTS={"DEFAULT_MAX_JOB": 5})
def test_a_reset_of_a_limit_that_is_the_default_keeps_who_and_why(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    row.set_limit(5, by="anna", reason="contract")
    boss.post(f"{QUEUES}{row.pk}/reset/", {"reason": "contract ended", "version": 1})
    assert (fresh(row).limit_source, row.version) == (LimitSource.DEFAULT, 2)
    assert LogEntry.objects.get().get_change_message() == "Changed limit: 5 → 5 (contract ended)."


def no_such_shop(tenant: str, queue: str) -> int:
    raise LookupError(tenant)


def no_limit(tenant: str, queue: str) -> str:
    return "many"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("no_such_shop", "DEFAULT_MAX_JOB raised LookupError."),
        ("no_limit", "'many' is not a limit for tenant 'acme'"),
        ("no_such_function", "no_such_function"),
    ],
)
def test_a_default_that_nobody_knows_is_said_and_changes_nothing(
    boss: Client, plan: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    row = tenant_queue(max_job=9, limit_source="set")
    url = f"{QUEUES}{row.pk}/reset/"
    with override_settings(TENANT_SLOTS={"DEFAULT_MAX_JOB": f"tests.admin.test_limits.{plan}"}):
        for answer in (boss.get(url, follow=True), boss.post(url, {"reason": "", "version": 0}, follow=True)):
            (text,) = messages_of(answer)
            assert text.startswith("The limit of acme on imports stays 9, as its default is not known: ")
            assert said in text
    assert (fresh(row).max_job, row.version) == (9, 0)
    assert [record.exc_info is not None for record in caplog.records] == [True] * 2


@pytest.mark.parametrize("page", ["limit", "reset"])
def test_staff_who_may_not_set_a_limit_are_refused_by_the_handler(viewer: Client, page: str) -> None:
    row = tenant_queue()
    url = f"{QUEUES}{row.pk}/{page}/"
    assert viewer.get(url).status_code == 403
    assert viewer.post(url, {"max_job": 5, "version": 0}).status_code == 403
    assert f"/{page}/" not in viewer.get(change_page(row)).content.decode()
    assert fresh(row).max_job == 1


def test_a_missing_row_is_not_a_server_error(boss: Client) -> None:
    assert boss.get(f"{QUEUES}999999/limit/").status_code == 403
    assert boss.get(f"{QUEUES}abc/limit/").status_code == 403


def test_a_forged_request_from_elsewhere_is_refused() -> None:
    row = tenant_queue()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = signed_in(superuser=True).cookies
    assert strict.post(limit_page(row), {"max_job": 5, "version": 0}, headers=JSON).status_code == 403
    assert fresh(row).max_job == 1


# --- overrides -----------------------------------------------------------------------------------------------------


def overridden(limit: int = 9) -> TenantQueue:
    row = tenant_queue(max_job=2)
    row.set_override(limit, timezone.now() + timedelta(hours=3, seconds=17), by="night shift")
    return fresh(row)


def facts(row: TenantQueue) -> tuple[Any, ...]:
    row.refresh_from_db()
    return row.max_job, row.override_until, row.limit_before_override, row.version, row.limit_source


def dialog(boss: Client, row: TenantQueue) -> dict[str, str]:
    """What the dialog of the list is filled with."""
    attrs = boss.get(LIVE, {"rows": row.pk}).json()["cells"][f"{row.pk}.edit"]["attrs"]
    until = attrs["data-until"]
    sent = {"max_job": attrs["data-limit"], "share": attrs["data-share"], "version": attrs["data-version"]}
    return {**sent, "until": until, "shown_until": until, "reason": ""}


def test_the_dialog_that_is_sent_untouched_leaves_an_override_as_it_is(boss: Client) -> None:
    row = overridden()
    before = facts(row)
    sent = dialog(boss, row)
    assert sent["until"] == local(row.override_until)
    assert boss.post(limit_page(row), sent, headers=JSON).status_code == 200
    assert facts(row) == before
    boss.post(limit_page(row), {"max_job": "9", "version": "1"}, headers=JSON)
    assert facts(row) == before, "who sends no time at all means none either"
    assert not LogEntry.objects.exists()


def test_the_page_without_javascript_that_is_sent_untouched_leaves_an_override_as_it_is(boss: Client) -> None:
    row = overridden()
    before = facts(row)
    boss.post(limit_page(row), Form(boss.get(limit_page(row)).content.decode()).values)
    assert facts(row) == before


def test_a_new_number_in_the_dialog_keeps_the_end_of_the_override(boss: Client) -> None:
    row = overridden()
    until = row.override_until
    boss.post(limit_page(row), {**dialog(boss, row), "max_job": "5"}, headers=JSON)
    assert (fresh(row).max_job, row.limit_before_override, row.override_until) == (5, 2, until)


@pytest.mark.parametrize("how", ["dialog", "change form"])
def test_a_new_number_leaves_an_override_its_seconds(boss: Client, how: str) -> None:
    row = overridden()
    until = row.override_until
    if how == "dialog":
        boss.post(limit_page(row), {**dialog(boss, row), "max_job": "5"}, headers=JSON)
    else:
        boss.post(change_page(row), {**loaded(boss, row), "max_job": "5"})
    assert (fresh(row).max_job, row.override_until) == (5, until)


def test_whoever_was_slower_learns_that_the_others_limit_is_temporary(boss: Client) -> None:
    row = tenant_queue(max_job=2)
    sent = dialog(boss, row)
    row.set_override(9, in_an_hour(), by="night shift")
    answer = boss.post(limit_page(row), {**sent, "max_job": "5"}, headers=JSON)
    assert answer.status_code == 409
    theirs = f"Their limit: 9 (override until {words.moment(fresh(row).override_until)}, then 2 (night shift))."
    assert theirs in answer.json()["message"]


@pytest.mark.parametrize("how", ["dialog", "page"])
def test_a_limit_for_good_is_not_taken_for_an_override_of_the_same_number_that_came_meanwhile(
    boss: Client, how: str
) -> None:
    row = tenant_queue(max_job=2)
    sent = dialog(boss, row) if how == "dialog" else Form(boss.get(limit_page(row)).content.decode()).values
    sent |= {"max_job": "5"}
    row.set_override(5, in_an_hour(), by="night shift")
    until = local(fresh(row).override_until)

    headers = JSON if how == "dialog" else {}
    answer = boss.post(limit_page(row), sent, headers=headers)
    assert answer.status_code == 409
    assert fresh(row).override_until

    if how == "dialog":
        theirs = answer.json()["theirs"]
        sent |= {"version": theirs["version"], "shown_until": theirs["until"]}
    else:
        sent = Form(answer.content.decode()).values
    assert (sent["until"], sent["shown_until"]) == ("", until)
    boss.post(limit_page(row), sent, headers=headers)
    assert (fresh(row).max_job, row.override_until, row.limit_source) == (5, None, LimitSource.SET)


def test_an_override_of_the_same_number_as_before_is_not_passed_over_either(boss: Client) -> None:
    row = tenant_queue(max_job=5)
    sent = dialog(boss, row)
    row.set_override(5, in_an_hour(), by="night shift")
    assert boss.post(limit_page(row), sent, headers=JSON).status_code == 409
    assert fresh(row).override_by == "night shift"


def test_an_override_is_made_permanent_by_clearing_its_end(boss: Client) -> None:
    row = overridden()
    boss.post(limit_page(row), {**dialog(boss, row), "until": ""}, headers=JSON)
    assert (fresh(row).max_job, row.override_until, row.limit_source) == (9, None, LimitSource.SET)


def test_the_dialog_that_is_sent_untouched_leaves_a_default_limit_a_default(boss: Client) -> None:
    row = tenant_queue(max_job=2)
    before = facts(row)
    boss.post(limit_page(row), dialog(boss, row), headers=JSON)
    assert facts(row) == before


def test_the_page_of_a_bulk_change_says_which_overrides_it_ends(boss: Client) -> None:
    plain, temporary = tenant_queue("plain"), overridden()
    page = run_action(boss, QUEUES, "set_limit", plain, temporary).content.decode()
    assert "1 of them has a temporary limit. It ends with this change, and the new limit replaces it." in page
    assert f"override until {words.moment(temporary.override_until)}, then 2 (night shift)" in page
    page = run_action(boss, QUEUES, "set_limit", plain).content.decode()
    assert "temporary limit" not in page


# --- the change form -----------------------------------------------------------------------------------------------


def test_the_change_form_says_what_lowering_does_and_keeps_the_reason(boss: Client) -> None:
    row = in_use(tenant_queue(max_job=9), 5)
    response = boss.post(change_page(row), {**loaded(boss, row), "max_job": 3, "reason": "quiet"}, follow=True)
    said = "Running 5, limit 3: 2 too many. None is stopped, and none starts before the limit allows it."
    assert said in messages_of(response)
    assert LogEntry.objects.get().get_change_message() == "Changed limit: 9 → 3 (quiet)."
    assert fresh(row).limit_set_by.startswith("staff ")


def test_the_change_form_sets_and_ends_an_override_and_a_pause(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    until = in_an_hour()
    form = {**loaded(boss, row), "max_job": "5", "paused": "on", "override_until": local(until)}
    boss.post(change_page(row), {**form, "resume_at": local(until)})
    assert (fresh(row).max_job, row.paused, row.limit_before_override) == (5, True, 1)
    assert abs((row.resume_at - until).total_seconds()) < 60

    form = {**loaded(boss, row), "override_until": ""}
    boss.post(change_page(row), form)
    assert (fresh(row).max_job, row.override_until, row.paused) == (1, None, True)


def test_the_change_form_that_is_sent_untouched_leaves_an_override_as_it_is(boss: Client) -> None:
    row = overridden()
    row.pause(until=timezone.now() + timedelta(hours=5, seconds=17))
    before = (*facts(row), row.resume_at)
    boss.post(change_page(row), loaded(boss, row))
    assert (*facts(row), row.resume_at) == before


def conflicting(boss: Client, row: TenantQueue, **change: Any) -> Any:
    """The answer to a form that was loaded before somebody else has changed the row."""
    form = {**loaded(boss, row), **change}
    fresh(row).set_limit(7, by="somebody")
    fresh(row).pause(by="somebody")
    return boss.post(change_page(row), form)


def test_after_a_conflict_the_change_form_can_be_saved(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    answer = conflicting(boss, row, max_job="3", reason="mine")
    assert answer.status_code == 409
    page = answer.content.decode()
    assert "Their limit: 7. Yours: 3." in page

    response = boss.post(change_page(row), Form(page).values)

    assert response.status_code == 302
    assert (fresh(row).max_job, row.paused) == (3, True)
    assert LogEntry.objects.get().get_change_message() == "Changed limit: 7 → 3 (mine)."


def test_after_a_conflict_the_change_form_shows_what_is_stored_where_nothing_was_touched(boss: Client) -> None:
    row = tenant_queue(max_job=1, share=4)
    until = in_an_hour()
    row.pause(until=until)
    sent = Form(conflicting(boss, row, share="6").content.decode()).values
    assert "resume_at" in sent
    assert (sent["max_job"], sent["share"], sent.get("paused"), sent["resume_at"]) == ("7", "6", "on", "")
    assert boss.post(change_page(row), sent).status_code == 302
    assert (fresh(row).max_job, row.share, row.paused, row.resume_at) == (7, 6, True, None)


def test_after_a_conflict_a_further_one_is_noticed(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    sent = Form(conflicting(boss, row, max_job="3").content.decode()).values
    fresh(row).set_limit(8)
    answer = boss.post(change_page(row), sent)
    assert answer.status_code == 409
    assert "Their limit: 8. Yours: 3." in answer.content.decode()
    assert fresh(row).max_job == 8


def test_a_time_that_has_passed_is_an_error_in_the_form(boss: Client) -> None:
    row = tenant_queue()
    form = {**loaded(boss, row), "override_until": local(timezone.now() - timedelta(days=1))}
    response = boss.post(change_page(row), form)
    assert "override_until" in response.context["adminform"].form.errors


def test_a_new_limit_until_a_time_that_has_passed_is_an_error_in_the_form(boss: Client) -> None:
    """The end of an override that the next sweep is to see."""
    row = overridden()
    TenantQueue.objects.update(override_until=timezone.now() - timedelta(minutes=2))
    form = loaded(boss, row)
    response = boss.post(change_page(row), {**form, "max_job": "5"})
    assert "override_until" in response.context["adminform"].form.errors
    assert fresh(row).max_job == 9
    assert boss.post(change_page(row), {**form, "share": "4"}).status_code == 302, "the control: it concerns no other"
    assert fresh(row).share == 4


def test_in_the_dialog_too_such_a_time_concerns_the_limit_alone(boss: Client) -> None:
    row = overridden()
    TenantQueue.objects.update(override_until=timezone.now() - timedelta(minutes=2))
    ended = fresh(row).override_until
    sent = {"max_job": "9", "until": local(ended), "shown_until": local(ended), "version": fresh(row).version}

    untouched = boss.post(limit_page(row), sent, headers=JSON)
    shared = boss.post(limit_page(row), {**sent, "share": "4"}, headers=JSON)
    limited = boss.post(limit_page(row), {**sent, "max_job": "5", "version": fresh(row).version}, headers=JSON)

    assert (untouched.status_code, shared.status_code, limited.status_code) == (200, 200, 400)
    assert limited.json()["errors"] == {"until": ["Until: This time has already passed."]}
    assert (fresh(row).max_job, row.share, row.override_until) == (9, 4, ended)


def test_a_change_between_the_check_and_the_lock_is_reported_and_not_lost(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = tenant_queue(max_job=7)
    form = loaded(boss, row)

    def too_late(*args: Any, **kwargs: Any) -> Any:
        raise StaleVersion(tenant_queue=row, max_job=7, version=1)

    monkeypatch.setattr(TenantQueue, "set_limit", too_late)
    response = boss.post(change_page(row), {**form, "max_job": "3"}, follow=True)
    assert any("Their limit: 7" in message for message in messages_of(response))
    assert not LogEntry.objects.exists()


@override_settings(TIME_ZONE="Europe/Berlin")
@pytest.mark.parametrize("hour", [0, 1], ids=["summer", "winter"])
def test_a_row_with_a_time_in_the_hour_that_a_clock_has_twice_can_be_changed(boss: Client, hour: int) -> None:
    row = tenant_queue()
    twice = datetime(2090, 10, 29, hour, 30, tzinfo=UTC)
    row.pause(until=twice)
    assert loaded(boss, row)["resume_at"] == "2090-10-29T02:30"
    response = boss.post(change_page(row), {**loaded(boss, row), "max_job": "7"})
    assert (response.status_code, fresh(row).max_job, row.resume_at) == (302, 7, twice)


@override_settings(TIME_ZONE="Europe/Berlin")
def test_of_an_hour_that_a_clock_has_twice_the_first_is_meant_and_one_that_it_has_not_is_refused(boss: Client) -> None:
    row = tenant_queue()
    sent = {**loaded(boss, row), "paused": "on"}
    page = boss.post(change_page(row), {**sent, "resume_at": "2090-03-26T02:30"}).content.decode()
    assert "may not exist" in page
    assert boss.post(change_page(row), {**sent, "resume_at": "2090-10-29T02:30"}).status_code == 302
    assert fresh(row).resume_at == datetime(2090, 10, 29, 0, 30, tzinfo=UTC)


@override_settings(TIME_ZONE="Europe/Berlin")
@pytest.mark.parametrize("how", ["dialog", "page"])
@pytest.mark.parametrize("hour", [0, 1], ids=["summer", "winter"])
def test_an_override_until_a_time_in_such_an_hour_is_left_alone_with_its_author(
    boss: Client, hour: int, how: str
) -> None:
    row = tenant_queue(max_job=2)
    twice = datetime(2090, 10, 29, hour, 30, 17, tzinfo=UTC)
    row.set_override(5, twice, by="night shift")
    sent = dialog(boss, row) if how == "dialog" else Form(boss.get(limit_page(row)).content.decode()).values
    assert sent["until"] == "2090-10-29T02:30"

    boss.post(limit_page(row), {**sent, "share": "3"})
    assert (fresh(row).share, row.override_until, row.override_by) == (3, twice, "night shift")
    boss.post(limit_page(row), {**sent, "max_job": "6", "version": row.version})
    assert (fresh(row).max_job, row.override_until) == (6, twice)


@override_settings(TIME_ZONE="Europe/Berlin")
def test_who_types_a_time_in_such_an_hour_means_the_first_also_where_another_has_taken_the_second(
    boss: Client,
) -> None:
    row = tenant_queue(max_job=2)
    sent = dialog(boss, row)
    row.set_override(5, datetime(2090, 10, 29, 1, 30, tzinfo=UTC), by="night shift")
    answer = boss.post(limit_page(row), {**sent, "max_job": "5", "until": "2090-10-29T02:30"}, headers=JSON)
    assert answer.status_code == 409


@pytest.mark.parametrize("time", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_a_time_outside_the_calendar_is_an_error_in_the_form(boss: Client, time: str) -> None:
    row = tenant_queue()
    answer = boss.post(limit_page(row), {**dialog(boss, row), "until": time}, headers=JSON)
    assert (answer.status_code, [*answer.json()["errors"]]) == (400, ["until"])
    response = boss.post(change_page(row), {**loaded(boss, row), "override_until": time})
    assert "override_until" in response.context["adminform"].form.errors
