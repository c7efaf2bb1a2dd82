"""What bulk changes run by is left alone by an action on other rows too: else there might be no way back."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tenant_slots import tenants
from tenant_slots.admin import TenantJobAdmin, TenantQueueAdmin, actions, chosen
from tenant_slots.models import BulkChange, State, TenantQueue
from tests.admin.bulk_changes import carried_out, many_jobs, many_queues, report_of, started, text_of
from tests.admin.site import JOBS, QUEUES, asked, confirmed, messages_of
from tests.factories import fresh, somebody_sweeps, tenant_queue, waiting_job

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE_LEFT = "Left alone: 1 tenant queue, as bulk changes run in it. Change it by itself."
JOB_LEFT = "Left alone: 1 job that carries out a bulk change. Choose it by itself."

in_request_and_in_background = pytest.mark.parametrize("most", [200, 3])


@pytest.fixture
def own() -> TenantQueue:
    """Where bulk changes run."""
    return tenants.tenant_queue_of_admin("imports")


def said_of(boss: Client, answer: Any, most: int) -> list[str]:
    """What came of it, in sentences, wherever it was done."""
    if most == 200:
        return messages_of(answer)
    return report_of(boss, carried_out(BulkChange.objects.get()))[2:]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("action", "sent", "undo", "back"),
    [("pause", {}, "resume", {}), ("set_limit", {"max_job": "0"}, "set_limit", {"max_job": "3"})],
)
def test_what_was_done_to_all_tenant_queues_can_be_undone(
    boss: Client,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    sent: dict[str, str],
    undo: str,
    back: dict[str, str],
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 3)
    somebody_sweeps()
    rows = many_queues(5)
    for name, values in ((action, sent), (undo, back)):
        carried_out(started(boss, QUEUES, name, list(TenantQueue.objects.all()), **values))
    assert {(fresh(row).paused, row.max_job) for row in rows} == {(False, int(back.get("max_job", 1)))}


@in_request_and_in_background
@pytest.mark.parametrize(
    ("action", "sent", "done"),
    [
        ("pause", {}, "5 tenant queues were paused."),
        ("set_limit", {"max_job": "0"}, "The limits of 5 tenant queues were set."),
        ("set_share", {"share": "7"}, "The shares of 5 tenant queues were set."),
        ("delete_selected", {}, "5 tenant queues were deleted."),
    ],
)
def test_an_action_on_all_tenant_queues_leaves_that_of_bulk_changes_alone_and_says_so(
    boss: Client,
    own: TenantQueue,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    sent: dict[str, str],
    done: str,
    most: int,
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    page, shown = asked(boss, QUEUES, action, *many_queues(5), own)
    assert "This affects 5 objects." in text_of(page)
    assert QUEUE_LEFT in text_of(page)
    assert f"<bdi>{own}" not in text_of(page)

    answer = boss.post(QUEUES, {**shown, **sent}, follow=True)

    assert said_of(boss, answer, most) == [done, QUEUE_LEFT]
    assert (fresh(own).paused, own.max_job, own.share) == (False, tenants.JOBS_OF_ADMIN, 1)


def test_the_tenant_queue_of_bulk_changes_can_be_changed_by_itself(boss: Client, own: TenantQueue) -> None:
    page, _ = asked(boss, QUEUES, "pause", own)
    assert "Left alone" not in text_of(page)
    for action, is_paused in (("pause", True), ("resume", False)):
        confirmed(boss, QUEUES, action, own)
        assert fresh(own).paused is is_paused


def test_those_of_several_queues_can_be_changed_together(boss: Client, own: TenantQueue) -> None:
    other = tenants.tenant_queue_of_admin("reports")
    confirmed(boss, QUEUES, "pause", own, other)
    assert [fresh(row).paused for row in (own, other)] == [True, True]


@in_request_and_in_background
@pytest.mark.parametrize(
    ("action", "state", "sent", "counted"),
    [
        ("cancel_waiting", State.WAITING, {"typed": "4"}, "4 jobs wait."),
        ("retry_failed", State.FAILED, {}, "4 failed jobs will run again."),
    ],
)
def test_the_jobs_of_all_tenant_queues_are_not_those_of_bulk_changes(
    boss: Client,
    own: TenantQueue,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    state: State,
    sent: dict[str, str],
    counted: str,
    most: int,
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    row, of_bulk_change = tenant_queue(max_job=0), waiting_job(own, state=state)
    jobs = many_jobs(row, 4, state=state)
    page, shown = asked(boss, QUEUES, action, row, own)
    assert counted in text_of(page)
    assert QUEUE_LEFT in text_of(page)

    answer = boss.post(QUEUES, {**shown, **sent}, follow=True)

    assert QUEUE_LEFT in said_of(boss, answer, most)
    assert fresh(of_bulk_change).state in (state, State.FINISHED)  # the worker may have come to it
    assert state not in {fresh(job).state for job in jobs}


@in_request_and_in_background
@pytest.mark.parametrize(
    ("action", "state", "sent"),
    [("cancel", State.WAITING, {}), ("retry", State.FAILED, {}), ("set_priority", State.WAITING, {"priority": "5"})],
)
def test_an_action_on_all_jobs_leaves_those_of_bulk_changes_alone_and_says_so(
    boss: Client,
    own: TenantQueue,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    state: State,
    sent: dict[str, str],
    most: int,
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    of_bulk_change = waiting_job(own, state=state)
    jobs = many_jobs(tenant_queue(max_job=0), 5, state=state)
    page, shown = asked(boss, JOBS, action, *jobs, of_bulk_change)
    assert "This affects 5 objects." in text_of(page)
    assert JOB_LEFT in text_of(page)

    answer = boss.post(JOBS, {**shown, **sent}, follow=True)

    assert JOB_LEFT in said_of(boss, answer, most)
    assert fresh(of_bulk_change).priority == 0
    assert of_bulk_change.state in (state, State.FINISHED)  # the worker may have come to it


def test_the_job_of_a_bulk_change_can_be_canceled_by_itself(boss: Client, own: TenantQueue) -> None:
    job = waiting_job(own)
    assert messages_of(confirmed(boss, JOBS, "cancel", job)) == ["1 job was canceled."]
    assert fresh(job).state == State.CANCELED


@pytest.mark.parametrize("most", [200, 1])
def test_who_does_not_see_the_tenant_queue_of_bulk_changes_is_not_told_of_it(
    boss: Client, own: TenantQueue, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    row, job = tenant_queue(), waiting_job(own)
    mine = TenantQueue.objects.filter(pk=row.pk)
    for model_admin in (TenantQueueAdmin, TenantJobAdmin):
        monkeypatch.setattr(model_admin, "tenant_queues_for", lambda self, request: mine)
    for url, action, theirs, foreign in ((QUEUES, "pause", row, own), (JOBS, "cancel", waiting_job(row), job)):
        _, shown = asked(boss, url, action, theirs)
        sent = {**shown, "chosen": chosen.as_text([theirs.pk, foreign.pk])}
        answer = boss.post(url, sent, follow=True)
        assert "Left alone" not in " ".join(messages_of(answer)) + text_of(answer)
