"""Why is this job waiting? The answer in every case."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import django_rq
import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from redis.exceptions import ConnectionError as RedisConnectionError
from rq.suspension import resume, suspend

import tests.jobs
from tenant_slots import queue_directory, rates, slots
from tenant_slots.admin import reasons
from tenant_slots.admin.words import long_moment
from tenant_slots.db import clock
from tenant_slots.db.clock import ago, from_now
from tenant_slots.models import REFUSED, UNKNOWN_TASK, Kind, State, SweepClaim, TenantJob, TenantQueue
from tenant_slots.stats import reasons as facts
from tenant_slots.stats.pace import Pace
from tests.factories import (
    admit,
    age,
    another_process,
    fresh,
    owner,
    running_job,
    somebody_sweeps,
    tenant_queue,
    waiting_job,
    worker_on_record,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _somebody_sweeps() -> None:
    somebody_sweeps()


@pytest.fixture(autouse=True)
def _no_worker() -> None:
    django_rq.get_connection("imports").flushall()


def why(job: TenantJob) -> str:
    return " ".join(reasons.why_waiting(TenantJob.objects.select_related("tenant_queue").get(pk=job.pk)))


def at_its_limit() -> TenantJob:
    row = tenant_queue()
    running_job(row, another_process("worker-7"))
    return waiting_job(row)


def behind_a_stale_owner() -> TenantJob:
    row = tenant_queue()
    age(running_job(row, another_process("worker-7")), beat_at=3600)
    return waiting_job(row)


def behind_a_stock_worker_that_is_gone() -> TenantJob:
    row = tenant_queue()
    running_job(row, owner("stock-7", beats=False))
    return waiting_job(row)


def behind_jobs_that_nobody_runs() -> TenantJob:
    row = tenant_queue()
    waiting_job(row)
    job = waiting_job(row)
    admit(row)
    return job


def at_the_limit_of_its_key() -> TenantJob:
    row = tenant_queue(max_job=5, max_job_per_key=1)
    running_job(row, another_process("worker-7"), key="user-1")
    return waiting_job(row, key="user-1")


def without_a_token() -> TenantJob:
    row = tenant_queue(max_job=9, **rates.fields_of(rates.Rate(1, timedelta(minutes=1), 1)))
    TenantQueue.objects.update(**rates.taken(1))
    return waiting_job(row)


def while_its_tenant_rests() -> TenantJob:
    row = tenant_queue(rests_until=timezone.now() + timedelta(minutes=5), rest_reason="the partner answered 429")
    return waiting_job(row)


def scheduled(**values: Any) -> TenantJob:
    run_after = values.pop("run_after", timezone.now() + timedelta(hours=1))
    return waiting_job(tenant_queue(), state=State.SCHEDULED, run_after=run_after, **values)


def admitted() -> TenantJob:
    row = tenant_queue()
    job = waiting_job(row)
    admit(row)
    return job


def after_others() -> TenantJob:
    row = tenant_queue()
    awaited = [waiting_job(row), waiting_job(row)]
    return tests.jobs.echo.using(after=awaited).enqueue("acme", 1)


CASES: dict[str, tuple[Callable[[], TenantJob], str]] = {
    "paused": (lambda: waiting_job(tenant_queue(paused=True)), "paused: no job starts until somebody resumes it"),
    "paused until": (
        lambda: waiting_job(tenant_queue(paused=True, resume_at=timezone.now())),
        "The tenant queue is paused until",
    ),
    "limit 0": (lambda: waiting_job(tenant_queue(max_job=0)), "The limit is 0"),
    "slots full": (at_its_limit, "at its limit (slots taken: 1 of 1)"),
    "a stale owner before it": (behind_a_stale_owner, "has sent no heartbeat since"),
    "a stock worker before it is gone": (behind_a_stock_worker_that_is_gone, "which RQ does not know any more"),
    "slots full of jobs without a worker": (behind_jobs_that_nobody_runs, "Not all of these run"),
    "key cap": (at_the_limit_of_its_key, "the limit per concurrency key is 1"),
    "rate": (without_a_token, "is used up: the next job may start at"),
    "rest": (while_its_tenant_rests, "the partner answered 429"),
    "a worker": (lambda: waiting_job(tenant_queue(max_job=3)), "below its limit (slots taken: 0 of 3)"),
    "share": (lambda: waiting_job(tenant_queue(max_job=3, share=7)), "in fair order; its share is 7"),
    "others before it": (lambda: [waiting_job(row) for row in [tenant_queue()] * 3][-1], "number 3 in the backlog"),
    "asked for": (scheduled, "whoever enqueued it asked for that"),
    "put off": (lambda: scheduled(deferrals=2), "It is put off until"),
    "refused": (lambda: scheduled(error=f"{REFUSED}: not this one"), "The database did not let it be admitted"),
    "retry": (lambda: scheduled(attempt=1, failures=1, started_at=timezone.now()), "It ran, and is to run again at"),
    "unknown function": (
        lambda: scheduled(attempt=2, options={UNKNOWN_TASK: {"since": "2026-01-01T00:00:00+00:00", "attempt": 2}}),
        "does not know its function",
    ),
    "others": (after_others, "It runs after 2 jobs that have not ended yet."),
    "due": (lambda: scheduled(run_after=timezone.now() - timedelta(seconds=1)), "the next sweep puts it into"),
    "admitted": (admitted, "It has a slot, and the next free worker takes it."),
}


@pytest.mark.parametrize("case", CASES)
def test_every_reason_is_said_where_it_is_one_and_nowhere_else(case: str) -> None:
    stage, text = CASES[case]
    said = why(stage())
    assert text in said
    others = {name: other for name, (_, other) in CASES.items() if other in said}
    together = {
        "a stale owner before it": {"slots full"},
        "a stock worker before it is gone": {"slots full"},
        "slots full of jobs without a worker": {"slots full"},
        "due": {"asked for"},
    }
    beside = {"share": {"a worker"}, "others before it": {"slots full", "a worker"}}
    assert set(others) - {case} <= together.get(case, set()) | beside.get(case, set())


def test_a_job_that_runs_or_has_ended_does_not_wait() -> None:
    row = tenant_queue()
    assert why(running_job(row, another_process())) == ""
    assert why(waiting_job(row, state=State.FINISHED)) == ""


def test_it_says_who_holds_the_slots() -> None:
    row = tenant_queue(max_job=1)
    holding = running_job(row, another_process("worker-7"))
    job = waiting_job(fresh(row))
    worker_on_record("worker-7")
    assert f"Held by: {holding} (worker-7)." in why(job)
    assert "no estimate" in why(job)


def test_a_job_that_is_to_run_again_says_too_that_the_database_refuses_it() -> None:
    said = why(scheduled(attempt=1, failures=1, error=f"{REFUSED}: not this one"))
    assert "The database did not let it be admitted" in said
    assert "It ran" not in said


def test_a_reservation_waits_for_no_worker() -> None:
    row = tenant_queue(max_job=3)
    waiting_job(row)
    assert "no job before it could take" in why(waiting_job(row, kind=Kind.RESERVATION))
    assert "worker" not in why(waiting_job(row, kind=Kind.RESERVATION))


def test_nor_does_one_that_has_got_its_slot() -> None:
    row = tenant_queue()
    reservation = waiting_job(row, kind=Kind.RESERVATION)
    admit(row)
    assert why(fresh(reservation)) == "It has a slot, which the process that waited for it takes up now."
    behind = why(waiting_job(fresh(row)))
    assert f"Held by: {reservation}." in behind
    assert "Not all of these run" not in behind
    row.pause()
    assert "gives it back, and waits. The tenant queue is paused" in why(fresh(reservation))


def test_nobody_can_say_when_a_job_starts_that_may_not() -> None:
    assert "Nobody can say when it starts." in why(waiting_job(tenant_queue(paused=True)))


# --- two reasons at once -------------------------------------------------------------------------------------------

IN_AN_HOUR = timedelta(hours=1)


@pytest.mark.parametrize("together", [("paused", "limit 0"), ("paused", "rest"), ("limit 0", "rest")])
def test_what_keeps_the_whole_tenant_queue_is_said_all_together(together: tuple[str, str]) -> None:
    values = {
        "paused": {"paused": True, "resume_at": timezone.now() + IN_AN_HOUR},
        "limit 0": {"max_job": 0},
        "rest": {"rests_until": timezone.now() + IN_AN_HOUR, "rest_reason": "429"},
    }
    texts = {"paused": "is paused until", "limit 0": "The limit is 0", "rest": "the tenant is busy"}
    said = why(waiting_job(tenant_queue(**{name: value for one in together for name, value in values[one].items()})))
    assert {one for one, text in texts.items() if text in said} == {*together}
    assert "Nobody can say when it starts." in said


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (4, "The limit is 0 until {time}: no job starts before. After that it is 4."),
        (0, "The limit is 0: no job starts until it is raised."),
        (None, "The limit is 0: no job starts until it is raised."),
    ],
)
def test_a_limit_of_zero_that_ends_by_itself_says_when(before: int | None, text: str) -> None:
    """None is what only SQL from outside can leave: the limit then stays as it is."""
    until = timezone.now() + IN_AN_HOUR
    said = why(waiting_job(tenant_queue(max_job=0, override_until=until, limit_before_override=before)))
    assert text.format(time=long_moment(until)) in said


@pytest.mark.parametrize(
    ("since", "text"),
    [
        ({"paused": True}, "paused: no job starts until somebody resumes it"),
        ({"rests_until": from_now(IN_AN_HOUR)}, "the tenant is busy"),
        ({"max_job": 0}, "The limit is 0"),
        ({"max_job": 1, "current_job": 2}, "at its limit (slots taken: 2 of 1)"),
    ],
)
def test_what_has_come_since_a_job_got_its_slot_is_said(since: dict[str, Any], text: str) -> None:
    job, worker = admitted(), worker_on_record("a")
    TenantQueue.objects.update(**since)
    said = why(job)
    assert text in said
    assert "the next free worker takes it" not in said
    assert not slots.start(TenantJob.objects.get(pk=job.pk), another_process(worker.name)), "a start says the same"
    TenantQueue.objects.update(paused=False, rests_until=None, max_job=1, current_job=1)
    assert "It has a slot, and the next free worker takes it." in why(job), "the control"
    assert slots.start(TenantJob.objects.get(pk=job.pk), another_process(worker.name))


def may_start(job: TenantJob) -> bool:
    """What a worker finds that takes it now."""
    return slots.start(TenantJob.objects.get(pk=job.pk), another_process("a"))


def test_a_limit_per_key_that_was_lowered_since_a_job_got_its_slot_is_said() -> None:
    row = tenant_queue(max_job=5, max_job_per_key=2)
    running = running_job(row, another_process("worker-7"), key="user-1")
    job = waiting_job(row, key="user-1")
    admit(row)
    waiting_job(row, key="user-2", priority=9)
    worker_on_record("a")
    fresh(row).set_max_job_per_key(1)
    said = why(job)
    assert "Its concurrency key, user-1, is at its limit (slots taken: 2 of 1)." in said
    assert "puts it back" in said
    assert "the next free worker takes it" not in said
    assert not may_start(job), "a start says the same"
    assert slots.release(running, state=State.FINISHED)
    assert "It has a slot, and the next free worker takes it." in why(job), "the control: beside a higher priority too"
    assert may_start(job)


@pytest.mark.parametrize(
    ("beside", "is_said"),
    [
        ({"priority": 5}, True),
        ({"priority": 0}, False),
        ({"priority": 5, "rq_queue": "reports"}, False),
        ({"priority": 5, "state": State.SCHEDULED, "run_after": timezone.now() + IN_AN_HOUR}, False),
    ],
)
def test_a_job_with_a_higher_priority_that_has_come_since_is_said(beside: dict[str, Any], is_said: bool) -> None:
    job = admitted()
    waiting_job(job.tenant_queue, **beside)
    waiting_job(tenant_queue("somebody else"), priority=9)
    worker_on_record("a")
    said = why(job)
    assert ("A job with a higher priority waits, and starts before it." in said) == is_said
    assert ("the next free worker takes it" not in said) == is_said
    assert may_start(job) != is_said, "a start says the same"


@pytest.mark.parametrize("how", ["ended", "deleted"])
def test_jobs_whose_end_nobody_has_told_are_not_waited_for(how: str) -> None:
    job = after_others()
    awaited = TenantJob.objects.exclude(pk=job.pk)
    awaited.filter(pk=awaited.first().pk).update(state=State.FINISHED)
    assert "It runs after 1 job that has not ended yet." in why(job)
    awaited.update(state=State.FINISHED) if how == "ended" else awaited.all()._raw_delete("default")
    assert "The jobs that it runs after have ended: the next sweep tells it." in why(job)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"paused": True}, "paused: no job starts until somebody resumes it"),
        ({"paused": True, "resume_at": timezone.now() + IN_AN_HOUR}, "is paused until"),
        ({"max_job": 0}, "The limit is 0"),
        ({"rests_until": timezone.now() + IN_AN_HOUR}, "the tenant is busy"),
    ],
)
def test_a_job_after_others_says_what_will_keep_it_when_these_have_ended(values: dict[str, Any], text: str) -> None:
    job = after_others()
    worker_on_record("a")
    assert "It will still wait then" not in why(job), "the control"
    TenantQueue.objects.filter(pk=job.tenant_queue_id).update(**values)
    said = why(job)
    assert "It runs after 2 jobs that have not ended yet." in said
    assert "It will still wait then, as long as this lasts." in said
    assert text in said


def test_what_keeps_those_that_it_runs_after_is_not_said_of_it() -> None:
    awaited = waiting_job(tenant_queue("other", paused=True))
    job = tests.jobs.echo.using(after=[awaited]).enqueue("acme", 1)
    worker_on_record("a")
    assert "paused" not in why(job)


def test_that_nobody_would_take_it_then_is_said_of_a_job_after_others() -> None:
    job = after_others()
    assert why(job).count("No worker of queue imports is alive. Start one") == 1
    worker_on_record("a")
    assert "worker" not in why(job), "the control"


@pytest.mark.parametrize("stage", [at_its_limit, admitted, scheduled, after_others])
def test_a_job_whose_time_to_begin_is_over_is_about_to_be_canceled(stage: Callable[[], TenantJob]) -> None:
    job = stage()
    age(job, expires_at=-60)
    assert "It was to begin before" not in why(job), "the control: there is time left"
    age(job, expires_at=1)
    said = why(job)
    assert "It was to begin before" in said
    assert "the next sweep cancels it" in said
    assert "takes it." not in said.replace("or the worker that takes it.", "")
    assert "starts" not in said


def ended_lately(row: TenantQueue, jobs: int = 5) -> None:
    """One each ten seconds."""
    for number in range(jobs):
        job = waiting_job(row, state=State.FINISHED)
        back = 10.0 * number
        age(job, enqueued_at=back + 11, started_at=back + 10, ended_at=back)


def test_an_estimate_begins_when_the_rest_is_over() -> None:
    row = tenant_queue(max_job=3)
    ended_lately(row)
    worker_on_record("a")
    job = waiting_job(row)
    assert re.search(r"It starts in about \d+ s to \d+ s\.", why(job)), "the control: without a rest it starts soon"
    TenantQueue.objects.update(rests_until=timezone.now() + IN_AN_HOUR)
    assert re.search(r"It starts in about (59 min to )?1 h", why(job))


@pytest.mark.parametrize(
    ("rest", "left", "burst", "position", "minutes"),
    [
        (0, 1, 1, 61, 60),
        (60, 1, 1, 61, 120),  # the bucket holds one at the end of the hour, however long it has been full
        (60, 0, 10, 11, 61),
        (60, 10, 10, 10, 60),
        (2.5, 0, 10, 2, 2.5),
        (2.5, 0, 10, 3, 3),  # the third comes half a minute after the rest
        (2.5, 1, 10, 5, 4),
    ],
)
def test_an_estimate_does_not_count_tokens_for_which_the_bucket_has_no_room_in_a_rest(
    rest: float, left: int, burst: int, position: int, minutes: float
) -> None:
    row = tenant_queue(max_job=9, **rates.fields_of(rates.Rate(1, timedelta(minutes=1), burst)))
    TenantQueue.objects.update(**rates.taken(burst - left)) if left < burst else None
    jobs = [waiting_job(row) for _ in range(position)]
    now = clock.now()
    TenantQueue.objects.update(rests_until=now + timedelta(minutes=rest) if rest else None)
    waits = facts.why_waiting(TenantJob.objects.select_related("tenant_queue").get(pk=jobs[-1].pk), now=now)
    assert isinstance(waits, facts.Waits)
    at_once = replace(waits, pace=Pace(ended=9, seconds=0.0, deviation=0.0))
    assert at_once.seconds_to_start == (pytest.approx(minutes * 60, abs=2),) * 2


def test_who_is_passed_over_has_no_estimate_by_those_that_pass() -> None:
    job = at_the_limit_of_its_key()
    ended_lately(job.tenant_queue)
    worker_on_record("a")
    said = why(job)
    assert "It starts in about" not in said
    assert "There is no estimate: it depends on when a job with its concurrency key ends." in said


def test_without_a_worker_there_is_no_estimate() -> None:
    job = for_a_worker()
    ended_lately(job.tenant_queue)
    assert "It starts in about" not in why(job)
    worker = worker_on_record("a")
    assert "It starts in about" in why(job), "the control: one takes it"
    suspend(worker.connection)
    assert "It starts in about" not in why(job)


@pytest.mark.parametrize("stage", [at_its_limit, behind_a_stale_owner, without_a_token, at_the_limit_of_its_key])
def test_that_nobody_would_take_it_is_said_beside_whatever_else_it_waits_for(stage: Callable[[], TenantJob]) -> None:
    job = stage()
    ended_lately(job.tenant_queue)
    said = why(job)
    assert said.count("No worker of queue imports is alive. Start one") == 1
    assert said.endswith("Nobody can say when it starts.")
    worker_on_record("a")
    assert "No worker" not in why(job), "the control"
    assert "Nobody can say" not in why(job)


def test_while_redis_is_away_there_is_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    job = for_a_worker()
    ended_lately(job.tenant_queue)
    worker_on_record("a")
    assert "It starts in about" in why(job), "the control"
    redis_is_away(monkeypatch)
    assert why(job).endswith("Nobody can say when it starts.")


# --- its workers ---------------------------------------------------------------------------------------------------


def for_a_worker() -> TenantJob:
    return waiting_job(tenant_queue(max_job=3))


def test_without_a_worker_it_says_how_to_start_one() -> None:
    assert "No worker of queue imports is alive. Start one: manage.py rqworker imports." in why(for_a_worker())


def test_workers_are_counted_with_the_busy_ones() -> None:
    job = for_a_worker()
    worker_on_record("a").set_state("busy")
    assert "1 worker of queue imports is alive, 1 busy." in why(job)
    worker_on_record("b", of_ours=False)
    assert "2 workers of queue imports are alive, 1 busy." in why(job)


def test_a_worker_of_ours_that_was_killed_is_not_alive_although_rq_has_it_on_record() -> None:
    job = for_a_worker()
    worker_on_record("killed", says_so=False)
    assert "No worker of queue imports is alive" in why(job)
    assert "The last one, killed, was heard of at" in why(job)


def test_workers_of_another_queue_do_not_count() -> None:
    job = for_a_worker()
    worker_on_record("a", "reports")
    assert "No worker of queue imports is alive" in why(job)


def test_those_of_its_overflow_queue_do() -> None:
    worker_on_record("a", "reports")
    assert "1 worker of queue reports is alive" in why(waiting_job(tenant_queue(), rq_queue="reports"))


def test_workers_that_only_end_their_last_job_take_no_other() -> None:
    job = for_a_worker()
    leaving = worker_on_record("a")
    leaving.connection.hset(leaving.key, "shutdown_requested_date", "2026-01-01T00:00:00.000000Z")
    assert "1 worker of queue imports is alive, but ends after the job that it runs." in why(job)
    worker_on_record("b")
    assert "2 workers of queue imports are alive, 0 busy" in why(job), "the control: one that takes it"


def test_suspended_workers_take_no_job() -> None:
    job, worker = for_a_worker(), worker_on_record("a")
    suspend(worker.connection)
    assert "suspended, until somebody calls manage.py rqresume" in why(job)
    resume(worker.connection)
    assert "1 worker of queue imports is alive" in why(job)


def test_suspended_workers_of_another_server_are_no_reason() -> None:
    job, worker = for_a_worker(), worker_on_record("a")
    elsewhere = {**settings.RQ_QUEUES["reports"], "DB": 1}
    with override_settings(RQ_QUEUES={**settings.RQ_QUEUES, "reports": elsewhere}):
        suspend(django_rq.get_connection("reports"))
        assert "suspended" not in why(job)
        resume(django_rq.get_connection("reports"))
        suspend(worker.connection)
        assert "suspended, until somebody calls rq resume for their Redis: imports." in why(job)
        resume(worker.connection)


def redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> Any:
        raise RedisConnectionError("away")

    monkeypatch.setattr(queue_directory, "reaching", away)


def test_redis_away_is_not_the_same_as_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    job = for_a_worker()
    redis_is_away(monkeypatch)
    assert "Redis does not answer" in why(job)
    assert "No worker" not in why(job)


def test_a_record_that_is_not_rqs_harms_nobody() -> None:
    job, worker = for_a_worker(), worker_on_record("a")
    worker.connection.hset(worker.key, mapping={"last_heartbeat": "never", "pid": "x", "hostname": b"\xff"})
    assert "1 worker of queue imports is alive" in why(job)


# --- nobody sweeps -------------------------------------------------------------------------------------------------


def test_nobody_has_swept_for_a_while() -> None:
    job = scheduled(run_after=timezone.now() - timedelta(minutes=10))
    assert "swept" not in why(job), "the control: somebody does"
    SweepClaim.objects.update(until=ago(600))
    assert "Nobody has swept for 10 min." in why(job)
    assert "slots_sweep --loop" in why(job)


def test_nobody_has_ever_swept() -> None:
    SweepClaim.objects.all().delete()
    assert "Nobody has ever swept." in why(for_a_worker())


def test_the_answer_costs_few_queries_however_many_jobs_wait() -> None:
    job = at_its_limit()
    with CaptureQueriesContext(connection) as few:
        why(job)
    for _ in range(20):
        waiting_job(job.tenant_queue)
    with CaptureQueriesContext(connection) as many:
        why(job)
    assert len(many) == len(few) <= 12
