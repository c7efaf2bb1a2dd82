"""Actions: what they do, that they ask first, who may run them, and what they write down."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from tenant_slots import dispatch, slots
from tenant_slots.admin import TenantQueueAdmin, actions
from tenant_slots.admin.export import harmless
from tenant_slots.enqueueing import cancel
from tenant_slots.models import BulkChange, State, TenantJob, TenantQueue
from tests.admin.site import (
    JOBS,
    QUEUES,
    Form,
    actions_offered,
    asked,
    confirmed,
    in_use,
    messages_of,
    run_action,
    signed_in,
)
from tests.factories import (
    age,
    another_process,
    counters_match,
    dead_process,
    fresh,
    in_rq,
    release_then_admit,
    running_job,
    tenant_queue,
    waiting_job,
    work,
)

pytestmark = pytest.mark.django_db(transaction=True)


def history() -> list[str]:
    return [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]


@pytest.mark.parametrize(
    ("url", "action"),
    [(QUEUES, "pause"), (QUEUES, "set_limit"), (QUEUES, "cancel_waiting"), (QUEUES, "retry_failed"), (JOBS, "cancel"),
     (JOBS, "stop"), (JOBS, "retry"), (JOBS, "release")],
)  # fmt: skip
def test_the_confirmation_page_lists_what_is_affected_and_changes_nothing(boss: Client, url: str, action: str) -> None:
    row = tenant_queue("acme")
    job = waiting_job(row)
    page, _ = asked(boss, url, action, row if url == QUEUES else job)
    assert "acme on imports" in page.content.decode()
    assert (fresh(row).version, fresh(job).state, LogEntry.objects.count()) == (0, State.WAITING, 0)


def test_a_pause_may_end_by_itself(boss: Client) -> None:
    row = tenant_queue()
    until = timezone.localtime() + timedelta(hours=2)
    confirmed(boss, QUEUES, "pause", row, until=until.strftime("%Y-%m-%dT%H:%M"), reason="feeds are broken")
    assert fresh(row).paused
    assert abs((row.resume_at - until).total_seconds()) < 60
    assert "not paused → paused until" in history()[0]
    assert "(feeds are broken)" in history()[0]


def test_limits_are_set_in_bulk_and_a_row_that_changed_meanwhile_is_left(boss: Client) -> None:
    rows = [tenant_queue(name) for name in ("acme", "beta")]
    _, sent = asked(boss, QUEUES, "set_limit", *rows)
    TenantQueue.objects.get(tenant="beta").set_limit(7)

    response = boss.post(QUEUES, {**sent, "max_job": "3", "reason": "sale"}, follow=True)

    assert [fresh(row).max_job for row in rows] == [3, 7]
    assert messages_of(response) == [
        "The limit of 1 tenant queue was set.",
        "1 tenant queue was left unchanged: somebody else has changed it in the meantime.",
    ]
    assert history() == ["Changed limit: 1 → 3 (sale)."]


def test_canceling_what_waits_takes_the_typed_count_and_spares_later_and_running_jobs(boss: Client) -> None:
    row, other = tenant_queue(max_job=1), tenant_queue("other", max_job=0)
    running = running_job(row, another_process())
    jobs = [waiting_job(row) for _ in range(3)]
    spared = waiting_job(other)
    _, sent = asked(boss, QUEUES, "cancel_waiting", row)
    later = waiting_job(row)

    wrong = boss.post(QUEUES, {**sent, "typed": "4"})
    assert "There are 3 jobs, not 4." in wrong.content.decode()
    assert fresh(jobs[0]).state == State.WAITING

    response = boss.post(QUEUES, {**sent, "typed": "3", "reason": "wrong feed"}, follow=True)

    assert messages_of(response) == ["The waiting jobs of 1 tenant queue were canceled."]
    assert {fresh(job).state for job in jobs} == {State.CANCELED}
    assert {fresh(job).state for job in (later, spared)} == {State.WAITING}
    assert fresh(running).state == State.RUNNING
    assert history() == ["Changed waiting jobs canceled: 3 (wrong feed)."]
    assert counters_match()


def test_a_large_backlog_is_canceled_in_parts(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenant_slots.enqueueing.cancel.JOBS_PER_STEP", 2)
    row = tenant_queue(max_job=0)
    for _ in range(5):
        waiting_job(row)
    confirmed(boss, QUEUES, "cancel_waiting", row, typed="5")
    assert TenantJob.objects.filter(state=State.CANCELED).count() == 5


def test_a_stuck_slot_is_released_once_and_its_job_waits_again(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    stuck = running_job(row, dead_process(host="elsewhere"))
    age(stuck, beat_at=60)
    following = waiting_job(row)
    _, sent = asked(boss, JOBS, "release", stuck)

    first = boss.post(JOBS, {**sent, "reason": "host is gone"}, follow=True)
    second = boss.post(JOBS, {**sent, "reason": "host is gone"}, follow=True)

    assert messages_of(first) == ["1 slot was released."]
    assert messages_of(second) == [  # it has the slot again, queued
        "1 job was left alone: it holds no slot, or does so with another run by now."
    ]
    assert (fresh(stuck).state, stuck.attempt, fresh(following).state) == (State.QUEUED, 2, State.WAITING)
    assert (fresh(row).current_job, counters_match()) == (1, True)
    assert len(history()) == 1


def test_a_slot_whose_job_seems_to_be_alive_needs_force_a_permission_and_a_reason(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    job = running_job(row, another_process(host="elsewhere"))
    operator = signed_in("view_tenantjob", "release_tenantjob")
    for client, data in [(boss, {}), (operator, {"force": "on", "reason": "I want it"})]:
        response = confirmed(client, JOBS, "release", job, **data)
        assert messages_of(response) == ["1 slot was left alone: its job seems to be alive."]
    no_reason = confirmed(boss, JOBS, "release", job, force="on")
    assert "Give a reason for taking the slot" in no_reason.content.decode()
    assert fresh(job).state == State.RUNNING

    confirmed(boss, JOBS, "release", job, force="on", reason="it hangs")

    assert fresh(job).state == State.FAILED
    assert "it hangs" in job.error
    assert (fresh(row).current_job, counters_match()) == (0, True)


def test_a_job_without_a_slot_is_not_said_to_be_gone(boss: Client) -> None:
    response = confirmed(boss, JOBS, "release", waiting_job(tenant_queue()))
    assert messages_of(response) == ["1 job was left alone: it holds no slot, or does so with another run by now."]


@pytest.mark.parametrize("most", [0, 200], ids=["by a worker", "in the request"])
@pytest.mark.parametrize("is_another", [True, False], ids=["another run", "the control"])
def test_only_the_run_that_the_page_has_shown_loses_its_slot(
    most: int, is_another: bool, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    row = tenant_queue(max_job=2)
    stuck = running_job(row, another_process(host="elsewhere"))
    _, sent = asked(boss, JOBS, "release", stuck)
    if is_another:
        release_then_admit(fresh(stuck), state=State.WAITING)
        assert slots.start(fresh(stuck), another_process())

    boss.post(JOBS, {**sent, "force": "on", "reason": "it hangs"}, follow=True)
    if not most:
        work()

    assert fresh(stuck).state == (State.RUNNING if is_another else State.FAILED)


@pytest.mark.parametrize("most", [0, 200], ids=["by a worker", "in the request"])
@pytest.mark.parametrize("had_run", [True, False])
def test_nor_does_a_run_of_jobs_that_had_no_slots_when_the_page_was_shown(
    had_run: bool, most: int, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    job = waiting_job(tenant_queue(max_job=2), attempt=int(had_run))
    _, sent = asked(boss, JOBS, "release", job)
    assert slots.admit_this(job)
    assert slots.start(fresh(job), another_process())

    boss.post(JOBS, {**sent, "force": "on", "reason": "it hangs"}, follow=True)
    if not most:
        work()

    assert fresh(job).state == State.RUNNING


@pytest.mark.parametrize("most", [0, 200], ids=["by a worker", "in the request"])
@pytest.mark.parametrize("has_begun", [True, False], ids=["begun since", "the control"])
def test_a_job_that_was_next_when_the_page_was_shown_keeps_the_slot_in_which_it_runs(
    has_begun: bool, most: int, boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", most)
    job = waiting_job(tenant_queue(max_job=2))
    assert slots.admit_this(job)
    _, sent = asked(boss, JOBS, "release", job)
    if has_begun:
        assert slots.start(fresh(job), another_process())

    boss.post(JOBS, {**sent, "force": "on", "reason": "nobody takes it"}, follow=True)
    if not most:
        work()

    assert fresh(job).state == (State.RUNNING if has_begun else State.FAILED)


def test_a_script_that_names_no_runs_takes_the_slots_of_the_present_ones(boss: Client) -> None:
    job = running_job(tenant_queue(max_job=2), another_process(host="elsewhere"))
    data = {"confirm": "yes", "force": "on", "reason": "it hangs"}
    run_action(boss, JOBS, "release", job, **data)
    assert fresh(job).state == State.FAILED


def test_a_running_job_is_asked_to_stop(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    running, waiting = running_job(row, another_process()), waiting_job(row)
    response = confirmed(boss, JOBS, "stop", running, waiting, reason="wrong file")
    assert messages_of(response) == ["1 running job is being stopped.", "1 job is not running."]
    assert fresh(running).cancel_requested_at is not None
    assert fresh(waiting).state == State.WAITING
    assert history() == ["Changed stop requested (wrong file)."]


@pytest.mark.parametrize("runs_again", [True, False], ids=["runs again", "waits"])
def test_what_does_not_run_any_more_is_neither_stopped_nor_canceled(
    runs_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put back while another one was being stopped."""
    stopper = signed_in("view_tenantjob", "stop_tenantjob")
    row = tenant_queue(max_job=2)
    running = [running_job(row, another_process()) for _ in range(2)]
    _, sent = asked(stopper, JOBS, "stop", *running)

    def put_the_other_back(stopped: TenantJob) -> None:
        (other,) = (job for job in running if job.pk != stopped.pk)
        put_back(other, runs_again=runs_again)

    monkeypatch.setattr(dispatch, "stop", put_the_other_back)
    response = stopper.post(JOBS, {**sent, "reason": "wrong file"}, follow=True)

    assert messages_of(response) == ["1 running job is being stopped.", "1 job was left alone: it had moved on."]
    assert history() == ["Changed stop requested (wrong file)."]
    assert sorted((fresh(job).state, job.cancel_requested_at is None) for job in running) == [
        (State.RUNNING, False),
        (State.RUNNING if runs_again else State.WAITING, True),
    ]
    assert counters_match()


def put_back(job: TenantJob, *, runs_again: bool = False) -> None:
    assert slots.release(fresh(job), state=State.WAITING)
    if runs_again:
        assert slots.admit_this(fresh(job))
        assert slots.start(fresh(job), another_process())


def test_nor_does_a_cancel_say_so_of_it(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was put back between the two steps of its cancel."""
    job = running_job(tenant_queue(), another_process())
    _, sent = asked(boss, JOBS, "cancel", job)

    cancel_unstarted = cancel.cancel_unstarted

    def then_put_back(job: TenantJob) -> bool:
        canceled = cancel_unstarted(job)
        put_back(job)
        return canceled

    monkeypatch.setattr(cancel, "cancel_unstarted", then_put_back)
    response = boss.post(JOBS, sent, follow=True)

    assert messages_of(response) == ["1 job was left alone: it had moved on."]
    assert (fresh(job).state, history(), counters_match()) == (State.WAITING, [], True)


def test_failed_jobs_are_retried(boss: Client) -> None:
    row = tenant_queue(max_job=1)
    failed, running = waiting_job(row, state=State.FAILED), waiting_job(row, state=State.FINISHED)
    response = confirmed(boss, JOBS, "retry", failed, running)
    assert messages_of(response) == [
        "1 job will run again.",
        "1 job was left unchanged: only a failed or canceled one can be retried.",
    ]
    assert (fresh(failed).state, in_rq()) == (State.QUEUED, 1)


def lines(response: Any) -> list[list[str]]:
    return list(csv.reader(io.StringIO(b"".join(response.streaming_content).decode())))


def test_tenant_queues_are_exported(boss: Client) -> None:
    row = in_use(tenant_queue("=HYPERLINK(1)", max_job=5), 3)
    waiting_job(row)
    head, line = lines(run_action(boss, QUEUES, "export", row))
    values = dict(zip(head, line, strict=True))
    assert (values["tenant"], values["state"], values["max_job"], values["waiting"]) == (
        "'=HYPERLINK(1)",
        "waits_for_worker",
        "5",
        "1",
    )
    assert (values["running"], float(values["worker_seconds"] or 0)) == ("3", 0.0)


def test_jobs_are_exported_without_arguments_and_results(boss: Client) -> None:
    job = waiting_job(tenant_queue(), kwargs={"path": "s3cret"}, result={"x": "s3cret"}, error="s3cret")
    text = b"".join(run_action(boss, JOBS, "export", job).streaming_content).decode()
    assert str(job.uuid) in text
    assert "s3cret" not in text


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1"])
def test_text_that_a_spreadsheet_would_run_is_made_harmless(text: str) -> None:
    assert harmless(text) == f"'{text}"
    assert harmless(f"\r{text}") == f"'\r'{text}"


# --- roles, one by one ---------------------------------------------------------------------------------------------

OWN = [
    (QUEUES, "pause", "pause_tenantqueue"),
    (QUEUES, "resume", "resume_tenantqueue"),
    (QUEUES, "set_limit", "set_limit_tenantqueue"),
    (QUEUES, "set_share", "set_limit_tenantqueue"),
    (QUEUES, "cancel_waiting", "cancel_waiting_tenantqueue"),
    (QUEUES, "export", "export_tenantqueue"),
    (JOBS, "stop", "stop_tenantjob"),
    (QUEUES, "retry_failed", "retry_tenantjob"),
    (JOBS, "retry", "retry_tenantjob"),
    (JOBS, "set_priority", "prioritize_tenantjob"),
    (JOBS, "release", "release_tenantjob"),
    (JOBS, "export", "export_tenantjob"),
]


def test_the_failed_jobs_of_tenant_queues_are_retried_together(boss: Client) -> None:
    row, other = tenant_queue(max_job=0), tenant_queue("other", max_job=0)
    failed = [waiting_job(row, state=State.FAILED) for _ in range(3)]
    canceled, of_rq = waiting_job(row, state=State.CANCELED), waiting_job(row, state=State.FAILED, rq_job_id="x")
    others = waiting_job(other, state=State.FAILED)
    page, sent = asked(boss, QUEUES, "retry_failed", row)
    assert "3 failed jobs" in page.content.decode()
    later = waiting_job(row, state=State.FAILED)
    response = boss.post(QUEUES, {**sent, "reason": "the partner is back"}, follow=True)
    assert messages_of(response) == ["The failed jobs of 1 tenant queue will run again."]
    assert {fresh(job).state for job in failed} == {State.WAITING}
    assert {fresh(job).state for job in (later, of_rq, others)} == {State.FAILED}
    assert fresh(canceled).state == State.CANCELED
    assert history() == ["Changed failed jobs retried: 3 (the partner is back)."]


@pytest.mark.parametrize(("url", "action", "permission"), OWN)
def test_each_action_has_a_permission_of_its_own(url: str, action: str, permission: str) -> None:
    client = signed_in("view_tenantqueue", "view_tenantjob", permission)
    waiting_job(tenant_queue())
    assert actions_offered(client, url) == {other for at, other, needed in OWN if (at, needed) == (url, permission)}
    other = JOBS if url == QUEUES else QUEUES
    assert actions_offered(client, other) == {name for at, name, needed in OWN if (at, needed) == (other, permission)}


@pytest.mark.parametrize(("url", "action", "permission"), OWN)
def test_each_handler_checks_its_permission(url: str, action: str, permission: str) -> None:
    others = {name for _, _, name in OWN} - {permission, "release_tenantjob"}
    client = signed_in("view_tenantqueue", "view_tenantjob", *others)
    row = tenant_queue()
    job = waiting_job(row, state=State.FAILED)
    chosen = row if url == QUEUES else job
    run_action(client, url, action, chosen, confirm="yes", max_job="9", typed="0", force="on")
    assert (fresh(row).version, fresh(job).state, LogEntry.objects.count()) == (0, State.FAILED, 0)


def test_a_superuser_is_offered_every_action(boss: Client) -> None:
    waiting_job(tenant_queue())
    assert actions_offered(boss, QUEUES) == {action for url, action, _ in OWN if url == QUEUES} | {"delete_selected"}
    assert actions_offered(boss, JOBS) == {action for url, action, _ in OWN if url == JOBS} | {"cancel"}


def test_no_confirmation_page_is_reached_by_get(boss: Client) -> None:
    row = tenant_queue()
    for action in ("pause", "set_limit", "cancel_waiting"):
        boss.get(QUEUES, {"action": action, "_selected_action": row.pk, "confirm": "yes", "max_job": 9})
    assert fresh(row).version == 0


@pytest.mark.parametrize(("index", "menus"), [("0", ["set_limit", ""]), ("1", ["", "set_limit"])])
def test_a_list_may_have_a_menu_at_its_end_too(
    boss: Client, index: str, menus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TenantQueueAdmin, "actions_on_bottom", True)
    monkeypatch.setattr(actions, "MOST_IN_REQUEST", 0)
    row = tenant_queue()
    page = boss.post(QUEUES, {"action": menus, "index": index, "_selected_action": [row.pk]})
    boss.post(QUEUES, {**Form(page.content.decode()).values, "max_job": "9"})
    assert BulkChange.objects.get().action == "set_limit"
