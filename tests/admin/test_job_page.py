"""The page of one job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import tests.jobs  # noqa: F401  the task is known once its module is imported
from tenant_slots import rates, slots
from tenant_slots.db.clock import from_now
from tenant_slots.models import JobDependency, Kind, State, TenantJob, TenantQueue
from tenant_slots.repair import lost_runs
from tenant_slots.tasks import attempts
from tests.admin.site import HOSTILE, JOBS, Form, change_page, confirmed, signed_in
from tests.factories import age, another_process, fresh, running_job, tenant_queue, waiting_job, worker_on_record

pytestmark = pytest.mark.django_db


def page(client: Client, job: TenantJob) -> str:
    return client.get(change_page(job)).content.decode()


def offered(client: Client, job: TenantJob) -> list[str]:
    return [name for name, _ in client.get(change_page(job)).context["slots_actions"]]


def events(client: Client, job: TenantJob) -> list[tuple[str, str]]:
    return [(event.text, event.by) for event in client.get(change_page(job)).context["slots_events"]]


def test_the_heading_says_what_it_is_of_whom_and_how_it_fares(boss: Client) -> None:
    row = tenant_queue("acme")
    job = running_job(row, another_process("worker-7"), key="user 7")
    text = page(boss, job)
    assert "<h1>tests.jobs.add</h1>" in text
    assert '<strong class="slots-pill" data-state="running">running</strong>' in text
    assert change_page(row) in text
    assert "user 7" in text
    assert "worker-7" in text


def test_the_boot_of_a_machine_is_no_host(boss: Client) -> None:
    row = tenant_queue()
    job = running_job(row, another_process("worker-7"))
    assert job.host
    assert job.host not in page(boss, job)
    assert job.host not in page(boss, row)
    worker = worker_on_record("worker-7")
    worker.connection.hset(worker.key, "hostname", "web-3.example")
    assert "web-3.example" in page(boss, job)
    assert "web-3.example" in page(boss, row)


def test_nothing_is_none(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    jobs = [waiting_job(row, state=state) for state in State]
    for job in [*jobs, waiting_job(row, kind=Kind.RESERVATION)]:
        assert ">None<" not in page(boss, job)
        assert ": None" not in page(boss, job)


@pytest.mark.parametrize(
    ("state", "actions"),
    [
        (State.SCHEDULED, ["cancel", "set_priority"]),
        (State.WAITING, ["cancel", "set_priority"]),
        (State.QUEUED, ["cancel", "release"]),
        (State.RUNNING, ["stop", "release"]),
        (State.FINISHED, []),
        (State.FAILED, ["retry"]),
        (State.CANCELED, ["retry"]),
    ],
)
def test_it_offers_what_its_state_allows(boss: Client, viewer: Client, state: str, actions: list[str]) -> None:
    job = waiting_job(tenant_queue(max_job=0), state=state)
    assert offered(boss, job) == actions
    assert offered(viewer, job) == []


def test_it_offers_what_the_viewer_may_do() -> None:
    row = tenant_queue(max_job=0)
    job = waiting_job(row)
    assert offered(signed_in("view_tenantjob", "prioritize_tenantjob"), job) == ["set_priority"]
    assert offered(signed_in("view_tenantjob", "change_tenantjob"), job) == ["cancel"]
    assert offered(signed_in("view_tenantjob", "stop_tenantjob"), job) == []


def test_a_reservation_cannot_be_retried(boss: Client) -> None:
    assert offered(boss, waiting_job(tenant_queue(), kind=Kind.RESERVATION, state=State.FAILED)) == []


def test_a_button_asks_first_and_acts_on_this_job_only(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    job, other = waiting_job(row), waiting_job(row)
    sent = Form(page(boss, job).partition('id="slots-actions"')[2].partition("</form>")[0]).values
    assert sent == {"_selected_action": str(job.pk), "index": "0"}
    asked = boss.post(JOBS, {**sent, "action": "cancel"}).content.decode()
    assert str(job.uuid) in asked
    assert str(other.uuid) not in asked
    assert fresh(job).state == State.WAITING
    confirmed(boss, JOBS, "cancel", job, reason="a mistake")
    assert (fresh(job).state, fresh(other).state) == (State.CANCELED, State.WAITING)


def test_the_timeline_has_what_the_row_and_the_history_know(boss: Client) -> None:
    row = tenant_queue()
    job = running_job(row, another_process("worker-7"))
    assert events(boss, job) == [
        ("enqueued", ""),
        ("attempt 1: got a slot", ""),
        ("attempt 1: started", "worker-7"),
        ("last heartbeat", "worker-7"),
    ]
    assert slots.release(job, state=State.FAILED, error="ValueError: no")
    confirmed(boss, JOBS, "retry", fresh(job), reason="fixed")
    name = LogEntry.objects.get().user.get_username()
    assert events(boss, job)[-1] == ("retry: failed → waiting (fixed)", name)


def test_waits_and_durations(boss: Client) -> None:
    now, row = timezone.now(), tenant_queue(max_job=0)
    times = {"enqueued_at": now - timedelta(seconds=300), "run_after": now - timedelta(seconds=150)}
    ended = {"started_at": now - timedelta(seconds=100), "ended_at": now - timedelta(seconds=60)}
    job = waiting_job(row, state=State.FINISHED, attempt=1, **times, **ended)
    found = boss.get(change_page(job)).context["slots_durations"]
    assert found == [("waited for", "50 s"), ("ran for", "40 s")]
    waits = boss.get(change_page(waiting_job(row, **times))).context["slots_durations"]
    assert waits == [("has waited for", "2 min")]


def test_earlier_attempts_are_explained(boss: Client) -> None:
    job = waiting_job(tenant_queue(max_job=0), attempt=4, failures=2, crashes=1, interruptions=1, deferrals=3)
    text = page(boss, job)
    assert "This is attempt 4: 2 attempts failed, 1 attempt crashed, 1 attempt ended with its worker" in text
    assert "it was put off 3 times" in text
    assert "This is attempt" not in page(boss, waiting_job(job.tenant_queue))


def test_the_timeline_has_the_earlier_attempts(boss: Client, viewer: Client) -> None:
    job = running_job(tenant_queue(), another_process("worker-7"))
    noted = attempts.noted(job, "shop.errors.FeedBroken", "FeedBroken: card 4711", "worker-7", 20.0)
    assert slots.release(job, state=State.WAITING, error="FeedBroken: card 4711", failures=1, **noted)
    TenantJob.objects.filter(pk=job.pk).update(attempt=2, state=State.FINISHED)
    assert [line for line in events(boss, job) if line[0].startswith("attempt 1")] == [
        ("attempt 1: started", "worker-7"),
        ("attempt 1: raised shop.errors.FeedBroken", "worker-7"),
    ]
    assert page(boss, job).count("card 4711") == 2, "with the error of the last one"
    assert "attempt 1: raised shop.errors.FeedBroken" in page(viewer, job)
    assert "4711" not in page(viewer, job)


def test_the_last_attempt_is_in_the_timeline_once(boss: Client) -> None:
    job = running_job(tenant_queue(), another_process("worker-7"))
    noted = attempts.noted(job, "builtins.ValueError", "ValueError", "worker-7", 20.0)
    assert slots.release(job, state=State.FAILED, error="ValueError", **noted)
    texts = [text for text, _ in events(boss, fresh(job))]
    assert texts.count("attempt 1: started") == 1
    assert set(texts[-2:]) == {"attempt 1: raised ValueError", "failed"}


def test_a_canceled_run_is_in_the_timeline_before_and_after_a_retry(boss: Client) -> None:
    job = running_job(tenant_queue(), another_process("worker-7"))
    assert lost_runs.end_lost_run(job, "stopped", state=State.CANCELED)
    assert [text for text, _ in events(boss, fresh(job))][-3:] == ["attempt 1: started", "asked to stop", "canceled"]
    job.retry()
    assert ("canceled", "worker-7") in events(boss, fresh(job))


def test_it_is_fetched_again_until_the_job_has_ended(boss: Client) -> None:
    row = tenant_queue(max_job=0)
    assert 'id="slots-live"' in page(boss, waiting_job(row))
    assert 'id="slots-live"' not in page(boss, waiting_job(row, state=State.FINISHED))


def test_names_are_no_markup(boss: Client) -> None:
    row = tenant_queue(HOSTILE)
    job = running_job(row, another_process(HOSTILE), key=HOSTILE)
    TenantJob.objects.filter(pk=job.pk).update(task=HOSTILE, error=HOSTILE, result=HOSTILE, failures=1)
    assert HOSTILE not in page(boss, job)


def test_those_who_may_not_see_tenant_queues_get_no_links_to_them() -> None:
    job = waiting_job(tenant_queue(max_job=0))
    assert change_page(job.tenant_queue) not in page(signed_in("view_tenantjob"), job)
    assert change_page(job.tenant_queue) in page(signed_in("view_tenantjob", "view_tenantqueue"), job)


@pytest.mark.parametrize("object_id", ["x", "999999"])
def test_a_job_that_does_not_exist(boss: Client, object_id: str) -> None:
    assert boss.get(f"{JOBS}{object_id}/change/").status_code == 302


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"paused": True}, "paused: no job starts until somebody resumes it"),
        ({"paused": True, "resume_at": from_now(timedelta(hours=2))}, "is paused until"),
        ({"max_job": 0}, "The limit is 0"),
        (
            {"max_job": 0, "override_until": from_now(timedelta(hours=2)), "limit_before_override": 1},
            "The limit is 0 until",
        ),
        ({"rests_until": from_now(timedelta(hours=2))}, "the tenant is busy"),
    ],
)
def test_a_scheduled_job_says_what_will_keep_it_then(boss: Client, values: dict[str, Any], text: str) -> None:
    """And nothing that is over by then."""
    soon, later = (timezone.now() + timedelta(hours=hours) for hours in (1, 3))
    row = tenant_queue(**values)
    why = [" ".join(_why(boss, waiting_job(row, state=State.SCHEDULED, run_after=at))) for at in (soon, later)]
    assert "It will still wait then, as long as this lasts." in why[0]
    assert text in why[0]
    ends = {"resume_at", "override_until", "rests_until"} & values.keys()
    assert ("It will still wait then" in why[1]) is not bool(ends)


def _why(client: Client, job: TenantJob) -> list[str]:
    said: list[str] = client.get(change_page(job)).context["slots_why"]
    return said


def waits_for_everything() -> TenantJob:
    """A job with a key, a rate, a time by which it is to begin, and jobs before and after it."""
    row, now = tenant_queue(max_job=1), timezone.now()
    ended = waiting_job(row, state=State.FINISHED, started_at=now, ended_at=now)
    age(running_job(row, another_process(), key="user"), beat_at=3600)
    rate = rates.fields_of(rates.Rate(1, timedelta(minutes=1), 1))
    rest = {"rests_until": now + timedelta(minutes=5), "rest_reason": "429"}
    TenantQueue.objects.filter(pk=row.pk).update(max_job_per_key=1, **rate, **rest)
    TenantQueue.objects.filter(pk=row.pk).update(**rates.taken(1))
    job = waiting_job(row, key="user", expires_at=now + timedelta(hours=1), awaited=True)
    after = [JobDependency(job=job, after=ended), JobDependency(job=waiting_job(row), after=job)]
    JobDependency.objects.bulk_create(after)
    return job


def test_it_names_all_that_keeps_a_job_at_once(boss: Client) -> None:
    said = " ".join(_why(boss, waits_for_everything()))
    for text in ("the tenant is busy", "at its limit", "Held by", "per concurrency key is 1", "is used up",
                 "has sent no heartbeat since", "Nobody has ever swept."):  # fmt: skip
        assert text in said


def test_twelve_queries_at_most(boss: Client) -> None:
    row = tenant_queue("other", max_job=1)
    jobs: list[Any] = [running_job(row, another_process()), waiting_job(row), waiting_job(row, state=State.FAILED)]
    jobs += [waits_for_everything(), waiting_job(row, state=State.SCHEDULED, run_after=timezone.now())]
    jobs.append(waiting_job(jobs[-2].tenant_queue, key="another user"))
    staff = signed_in("view_tenantjob", "view_tenantqueue", "stop_tenantjob", "change_tenantjob")
    for client in (boss, staff):
        for job in jobs:
            page(client, job)
            with CaptureQueriesContext(connection) as captured:
                page(client, job)
            assert len(captured) <= 12, [query["sql"] for query in captured]
