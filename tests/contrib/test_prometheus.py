"""What a scrape tells, and what it costs."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.request import urlopen

import django_rq
import prometheus_client
import pytest
from django.db import Error, OperationalError, ProgrammingError, connection, connections, transaction
from django.http import HttpRequest
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from prometheus_client import CollectorRegistry, generate_latest, make_asgi_app
from prometheus_client.parser import text_string_to_metric_families
from redis.exceptions import ConnectionError as RedisAway

from tenant_slots import checks, fair_order
from tenant_slots.contrib import prometheus
from tenant_slots.contrib.prometheus import TenantSlotsCollector
from tenant_slots.db import clock
from tenant_slots.db.clock import start_of
from tenant_slots.models import Kind, QueueMinute, QueueTotal, State, SweepClaim, TenantJob, TenantQueue
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.repair import liveness, lost_runs, minutes
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tenant_slots.stats import metrics as facts
from tenant_slots.stats import minute_counts
from tests.factories import another_process, dead_process, running_job, tenant_queue, waiting_job, worker_on_record
from tests.repair.sweeps import sweep_now
from tests.repair.test_minutes import ended, this_minute

pytestmark = pytest.mark.django_db(transaction=True)

MOST_QUERIES = 7 if connection.vendor == "postgresql" else 6
"""SQLite has no snapshots to be asked for."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape() -> Samples:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TenantSlotsCollector())
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"tenant_slots_{name}", frozenset(labels.items())))


def of(samples: Samples, name: str) -> dict[str, float]:
    """By the last label, of queue imports."""
    found = {}
    for (sample, labels), number in samples.items():
        if sample == f"tenant_slots_{name}" and ("queue", "imports") in labels:
            found[next(iter(labels - {("queue", "imports")}))[1]] = number
    return found


def count() -> None:
    minutes.count_minutes(Report(), Contact())


def test_the_asgi_app_of_prometheus_client_may_ask_in_its_event_loop() -> None:
    """Django refuses a query there, and what could not be asked is no failure of the database's."""
    waiting_job(tenant_queue())
    registry, sent = CollectorRegistry(auto_describe=False), []
    registry.register(TenantSlotsCollector())

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(make_asgi_app(registry)({"type": "http", "headers": []}, receive, send))
    start, body = sent
    assert start["status"] == 200
    assert b"tenant_slots_database_up 1.0" in body["body"]
    assert b'tenant_slots_jobs{queue="imports",state="waiting"} 1.0' in body["body"]


# --- what is now ------------------------------------------------------------------------------------------------------


def test_jobs_by_state_without_reservations() -> None:
    row = tenant_queue(max_job=5)
    running_job(row, another_process()), running_job(row, another_process(), kind=Kind.RESERVATION)
    for state in (State.SCHEDULED, State.WAITING, State.WAITING, State.FINISHED):
        waiting_job(row, state=state)
    waiting_job(row, kind=Kind.RESERVATION)
    samples = scrape()
    assert of(samples, "jobs") == {"scheduled": 1, "waiting": 2, "queued": 0, "running": 1}
    assert value(samples, "slots_in_use", queue="imports") == 2
    assert value(samples, "jobs", queue="reports", state="waiting") == 0, "a queue without jobs is there all the same"


@pytest.mark.parametrize("number", range(1, MOST_QUERIES))
@pytest.mark.parametrize("state", [State.RUNNING, State.WAITING])
def test_a_reservation_that_comes_between_two_queries_counts_as_no_job_less(state: State, number: int) -> None:
    row = tenant_queue(max_job=5)
    asked = itertools.count(1)

    def then_reserve(execute: Any, *query: Any) -> Any:
        answer = execute(*query)
        if next(asked) == number:
            TenantJob.objects.bulk_create([TenantJob(tenant_queue=row, kind=Kind.RESERVATION, state=state)])
        return answer

    with connection.execute_wrapper(then_reserve):
        samples = scrape()
    assert TenantJob.objects.count() == 1, "it came"
    assert of(samples, "jobs") == {"scheduled": 0, "waiting": 0, "queued": 0, "running": 0}
    assert value(samples, "jobs_runnable", queue="imports") == 0


def test_runnable_is_told_from_what_is_held_back_and_by_what() -> None:
    limited = tenant_queue("limited", max_job=3)
    running_job(limited, another_process())
    for _ in range(5):
        waiting_job(limited)
    for tenant, values in {
        "paused": {"paused": True},
        "rests": {"rests_until": timezone.now() + timedelta(hours=1)},
        "zero": {"max_job": 0},
    }.items():
        waiting_job(tenant_queue(tenant, **values))
    rated = tenant_queue("rated", max_job=9)
    rated.set_rate(2, per=timedelta(days=1), burst=2)
    for _ in range(5):
        waiting_job(rated)
    capped = tenant_queue("capped", max_job=9, max_job_per_key=1)
    running_job(capped, another_process(), key="k"), waiting_job(capped, key="k")
    samples = scrape()
    assert value(samples, "jobs_runnable", queue="imports") == 2 + 2
    assert of(samples, "jobs_held_back") == {"pause": 1, "rest": 1, "limit": 3 + 1, "rate": 3, "key": 1}
    assert value(samples, "capacity", queue="imports") == 3 + 1 + 0 + 9 + 9, "without what is paused"


@pytest.mark.parametrize(
    ("running", "waiting", "runnable"),
    [
        ("", "k" * 50, 1),
        ("k", "k" * 49 + "j", 1),
        ("k", "kk", 0),
        ("k", "kjj mm" + " " * 5, 2 + 6),
        ("jk", " " * 30, 18),
        ("k", "k" * 5 + "abcdefghijlmnopqrstuvwxyz", 19),
    ],
)
def test_of_each_key_as_many_jobs_are_runnable_as_its_limit_allows(running: str, waiting: str, runnable: int) -> None:
    """A letter is a job with that key, a blank one without."""
    row = tenant_queue(max_job=20, max_job_per_key=1)
    for key in running:
        running_job(row, another_process(), key=key)
    for key in waiting:
        waiting_job(row, key=key.strip())
    samples = scrape()
    assert value(samples, "jobs_runnable", queue="imports") == runnable
    fit_their_keys = len(set(waiting) - {" "} - set(running)) + waiting.count(" ")
    held_back = {"key": len(waiting) - fit_their_keys, "limit": fit_their_keys - runnable}
    assert of(samples, "jobs_held_back") == {"pause": 0, "rest": 0, "rate": 0, **held_back}


def test_a_higher_limit_per_key_lets_as_many_of_each_start() -> None:
    row = tenant_queue(max_job=20, max_job_per_key=3)
    running_job(row, another_process(), key="k"), running_job(row, another_process(), key="k")
    for key in "kkjjjjj":
        waiting_job(row, key=key)
    other = tenant_queue("other", max_job=20, max_job_per_key=1)
    waiting_job(other, key="k")
    assert value(scrape(), "jobs_runnable", queue="imports") == 1 + 3 + 1, "a key is its tenant queue's own"


def test_jobs_that_overflow_count_in_their_rq_queue_and_share_the_free_slots() -> None:
    row = tenant_queue(max_job=3)
    for rq_queue in ("", "", "imports_bulk", "imports_bulk"):
        waiting_job(row, rq_queue=rq_queue)
    samples = scrape()
    runnable = [value(samples, "jobs_runnable", queue=queue) or 0 for queue in ("imports", "imports_bulk")]
    held_back = [value(samples, "jobs_held_back", queue=queue, reason="limit") for queue in ("imports", "imports_bulk")]
    assert (sum(runnable), held_back.count(1)) == (3, 1)
    assert value(samples, "jobs", queue="imports_bulk", state="waiting") == 2


def jobs_that_overflow_from_a_full_key() -> None:
    row = tenant_queue(max_job=10, max_job_per_key=1)
    running_job(row, another_process(), key="k")
    for _ in range(5):
        waiting_job(row, key="k")
    for _ in range(3):
        waiting_job(row, rq_queue="imports_bulk")


def test_jobs_of_a_full_key_are_held_back_where_they_wait_and_no_others_where_they_overflow_to() -> None:
    jobs_that_overflow_from_a_full_key()
    samples = scrape()
    for queue, runnable, held_back in (("imports", 0, 5), ("imports_bulk", 3, 0)):
        assert value(samples, "jobs_runnable", queue=queue) == runnable
        assert value(samples, "jobs_held_back", queue=queue, reason="key") == held_back
        of_minute = minute_counts.gauges()[queue]
        assert (of_minute["runnable"], of_minute["held_back"]) == (runnable, held_back)


def test_a_key_that_waits_in_two_queues_of_rq_is_runnable_in_one() -> None:
    row = tenant_queue(max_job=10, max_job_per_key=1)
    for rq_queue in ("", "imports_bulk"):
        waiting_job(row, key="k", rq_queue=rq_queue)
    samples = scrape()
    assert sum(value(samples, "jobs_runnable", queue=queue) or 0 for queue in ("imports", "imports_bulk")) == 1


def test_calls_without_a_tenant_have_no_capacity() -> None:
    waiting_job(tenant_queue("", max_job=1000))
    samples = scrape()
    assert value(samples, "capacity", queue="imports") == 0
    assert value(samples, "jobs_runnable", queue="imports") == 1


@pytest.mark.parametrize("looked_at", [1000, 1])
def test_the_oldest_wait_of_each_queue(monkeypatch: pytest.MonkeyPatch, looked_at: int) -> None:
    monkeypatch.setattr(facts, "LONGEST_WAITING", looked_at)
    for tenant, queue, seconds in (("a", "imports", 300), ("b", "imports", 30), ("c", "reports", 90)):
        job = waiting_job(tenant_queue(tenant, queue=queue))
        TenantJob.objects.filter(pk=job.pk).update(enqueued_at=clock.now() - timedelta(seconds=seconds))
    samples = scrape()
    found = [value(samples, "oldest_wait_seconds", queue=queue) or 0 for queue in ("imports", "reports", "default")]
    assert [round(seconds, -1) for seconds in found] == [300, 90, 0]


@pytest.mark.parametrize("looked_at", [1000, 1])
def test_the_oldest_wait_is_no_reservations(monkeypatch: pytest.MonkeyPatch, looked_at: int) -> None:
    monkeypatch.setattr(facts, "LONGEST_WAITING", looked_at)
    only_reserved, both = tenant_queue(queue="reports"), tenant_queue()
    for row, kind, seconds in (
        (only_reserved, Kind.RESERVATION, 900),
        (both, Kind.RESERVATION, 300),
        (both, Kind.JOB, 60),
        (tenant_queue(queue="default"), Kind.JOB, 90),
    ):
        job = waiting_job(row, kind=kind)
        TenantJob.objects.filter(pk=job.pk).update(enqueued_at=clock.now() - timedelta(seconds=seconds))
    samples = scrape()
    found = [value(samples, "oldest_wait_seconds", queue=queue) or 0 for queue in ("reports", "imports", "default")]
    assert [round(seconds, -1) for seconds in found] == [0, 60, 90]


def test_workers_by_their_state_and_what_redis_holds() -> None:
    worker_on_record("idle"), worker_on_record("lost", says_so=False), worker_on_record("busy").set_state("busy")
    django_rq.get_queue("imports").enqueue("tests.jobs.add", 1, 2)
    fair_order.offer("imports", [(1, 1), (2, 1)])
    samples = scrape()
    assert of(samples, "workers") == {"idle": 1, "busy": 1, "lost": 1, "suspended": 0, "started": 0, "leaving": 0}
    assert value(samples, "window_jobs", queue="imports") == 1
    assert value(samples, "tenants_in_order", queue="imports") == 2
    assert value(samples, "redis_up", queue="imports") == 1


def test_sweeps_and_the_oldest_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = scrape()
    assert value(samples, "sweeps_total") == 0
    assert value(samples, "last_sweep_age_seconds") is None, "nobody has ever swept"
    running_job(tenant_queue(), dead_process())
    sweep_now()
    SweepClaim.objects.update(swept_at=clock.now() - timedelta(seconds=40))
    monkeypatch.setattr(liveness, "oldest_snapshot", lambda: 77.0)
    samples = scrape()
    assert value(samples, "sweeps_total") == value(samples, "reclaims_total") == 1
    assert round(value(samples, "last_sweep_age_seconds") or 0, -1) == 40
    assert value(samples, "oldest_snapshot_seconds") == 77


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL keeps what was deleted for a snapshot")
def test_a_transaction_that_stays_open_is_the_oldest_snapshot() -> None:
    assert liveness.oldest_snapshot() in (None, 0)
    seen, done = threading.Event(), threading.Event()

    def look_and_stay() -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            cursor.execute("SELECT pg_sleep(1.1)")
            seen.set()
            done.wait()
        connections.close_all()

    thread = threading.Thread(target=look_and_stay)
    thread.start()
    try:
        assert seen.wait(20)
        assert (liveness.oldest_snapshot() or 0) >= 1
    finally:
        done.set()
        thread.join()


# --- counters ---------------------------------------------------------------------------------------------------------


def test_what_has_never_happened_is_counted_as_none() -> None:
    """A counter that begins with its first value has no increase: nobody would be told of a queue's first crashes."""
    waiting_job(tenant_queue())
    samples = scrape()
    for queue in ("imports", "reports"):
        for name in ("starts_total", "crashes_total", "interruptions_total"):
            assert value(samples, name, queue=queue) == 0
        for name in ("start_delay_seconds", "run_time_seconds"):
            assert value(samples, f"{name}_bucket", queue=queue, le="+Inf") == 0
            assert value(samples, f"{name}_count", queue=queue) == value(samples, f"{name}_sum", queue=queue) == 0
    assert of(samples, "ends_total") == {"finished": 0, "failed": 0, "canceled": 0}


def test_a_queue_that_is_no_more_keeps_its_counters() -> None:
    QueueTotal.objects.create(queue="gone", crashes=2)
    samples = scrape()
    assert value(samples, "crashes_total", queue="gone") == 2
    assert value(samples, "jobs", queue="gone", state="waiting") is None


@pytest.mark.usefixtures("within_one_minute")
def test_starts_ends_and_histograms_come_from_the_minutes() -> None:
    row, minute = tenant_queue(), this_minute() - 2
    ended(row, minute), ended(row, minute, state=State.FAILED), ended(row, minute, state=State.CANCELED)
    ended(tenant_queue("other", queue="reports"), minute)
    count()
    samples = scrape()
    assert of(samples, "ends_total") == {"finished": 1, "failed": 1, "canceled": 1}
    assert value(samples, "starts_total", queue="imports") == 3
    buckets = of(samples, "run_time_seconds_bucket")
    assert (buckets["5.0"], buckets["10.0"], buckets["+Inf"]) == (0, 2, 2), "they ran for ten seconds"
    assert value(samples, "run_time_seconds_sum", queue="imports") == 20
    assert value(samples, "run_time_seconds_count", queue="imports") == 2, "a canceled job did not run to its end"
    delays = of(samples, "start_delay_seconds_bucket")
    assert (delays["8.0"], delays["15.0"], delays["+Inf"]) == (0, 3, 3)
    assert value(samples, "start_delay_seconds_sum", queue="imports") == 30
    assert value(samples, "starts_total", queue=ALL_QUEUES) is None, "a sum would count each job twice"


@pytest.mark.usefixtures("within_one_minute")
def test_counters_stay_when_jobs_and_minutes_are_gone_and_are_counted_again() -> None:
    row, now = tenant_queue(), this_minute()
    for minute in range(now - 20, now):
        ended(row, minute), ended(row, minute, state=State.FAILED)
    count()
    before = scrape()
    TenantJob.objects.all().delete()
    QueueMinute.objects.filter(
        queue="imports", minute=start_of(now - 1)
    ).delete()  # counted once more, with nothing left
    QueueMinute.objects.filter(queue=ALL_QUEUES, minute=start_of(now - 1)).delete()
    count()
    after = scrape()
    assert of(after, "ends_total") == of(before, "ends_total") == {"finished": 20, "failed": 20, "canceled": 0}
    assert of(after, "run_time_seconds_bucket") == of(before, "run_time_seconds_bucket")


@pytest.mark.usefixtures("within_one_minute")
def test_a_minute_that_is_counted_a_second_time_adds_what_came_late_and_once() -> None:
    row, now = tenant_queue(), this_minute()
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - 2))
    late = now - minutes.LATE - 1
    QueueMinute.objects.create(queue="imports", minute=start_of(late), finished=1)
    QueueTotal.objects.create(queue="imports", finished=1)
    ended(row, late), ended(row, late)
    count()
    assert of(scrape(), "ends_total")["finished"] == 2


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time anyway")
@pytest.mark.usefixtures("within_one_minute")
def test_two_first_counts_at_once_add_each_minute_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended(tenant_queue(), this_minute() - 2)
    inside, errors = threading.Barrier(2, timeout=2), []
    original = minutes._counts_of

    def slowly(first: int, end: int) -> Any:
        try:
            inside.wait()  # never both: the second one waits for the lock
        except threading.BrokenBarrierError:
            errors.append("alone")
        return original(first, end)

    monkeypatch.setattr(minutes, "_counts_of", slowly)

    def count_here() -> None:
        count()
        connections.close_all()

    threads = [threading.Thread(target=count_here) for _ in range(2)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert errors, "control: they were not inside at once"
    assert QueueTotal.objects.get(queue="imports").finished == 1


def test_lost_runs_are_counted_by_what_became_of_their_worker() -> None:
    row = tenant_queue(max_job=3)
    lost_runs.end_lost_run(running_job(row, dead_process()), "killed")
    lost_runs.end_interrupted_run(running_job(row, dead_process()), "gone")
    gone = running_job(row, dead_process())
    assert lost_runs.end_lost_run(gone, "killed", state=State.FAILED)
    assert not lost_runs.end_lost_run(gone, "killed")
    samples = scrape()
    assert value(samples, "crashes_total", queue="imports") == 2
    assert value(samples, "interruptions_total", queue="imports") == 1


# --- tenants ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_tenants() -> None:
    for tenant, backlog in (("small", 1), ("big", 3), ("none", 0)):
        row = tenant_queue(tenant, max_job=2)
        for _ in range(backlog):
            waiting_job(row)


def tenants_in(samples: Samples) -> set[str]:
    return {dict(labels)["tenant"] for _, labels in samples if "tenant" in dict(labels)}


@pytest.mark.usefixtures("three_tenants")
@pytest.mark.parametrize(
    ("setting", "shown"), [(None, set()), (1, {"big"}), (2, {"big", "small"}), (["none", "gone"], {"none"})]
)
def test_tenants_are_named_only_where_the_project_asks_for_them(setting: Any, shown: set[str]) -> None:
    with override_settings(TENANT_SLOTS={} if setting is None else {"METRICS_TENANTS": setting}):
        assert tenants_in(scrape()) == shown


@pytest.mark.usefixtures("three_tenants")
@override_settings(TENANT_SLOTS={"METRICS_TENANTS": 1})
def test_a_tenants_figures_have_names_of_their_own() -> None:
    samples = scrape()
    big = {"tenant": "big", "queue": "imports"}
    assert value(samples, "tenant_jobs", **big, state="waiting") == 3
    assert value(samples, "tenant_jobs_runnable", **big) == 2
    assert value(samples, "tenant_jobs_held_back", **big) == 1
    assert value(samples, "tenant_capacity", **big) == 2
    assert value(samples, "tenant_slots_in_use", **big) == 0
    assert value(samples, "jobs", queue="imports", state="waiting") == 4, "the sum of a metric counts nobody twice"


@override_settings(TENANT_SLOTS={"METRICS_TENANTS": 1})
def test_a_tenants_name_is_data() -> None:
    name = 'a"} 1\ntenant_slots_database_up 0\n#'
    waiting_job(tenant_queue(name))
    samples = scrape()
    assert tenants_in(samples) == {name}
    assert value(samples, "database_up") == 1


@pytest.mark.parametrize(
    ("setting", "problem"),
    [(0, ""), (50, ""), (["acme"], ""), (-1, "0 to 1000"), (1001, "0 to 1000"), (True, "0 to"), ("acme", "0 to")],
)
def test_the_system_check_knows_which_tenants_may_be_shown(setting: object, problem: str) -> None:
    with override_settings(TENANT_SLOTS={"METRICS_TENANTS": setting}):
        hints = " ".join(str(message.hint) for message in checks.check_settings())
    assert problem in hints if problem else not hints


# --- what it costs, and what is away ----------------------------------------------------------------------------------


def queries_of_a_scrape() -> int:
    with CaptureQueriesContext(connection) as captured:
        scrape()
    return len(captured)


def test_a_scrape_has_as_many_queries_for_many_tenants_as_for_one() -> None:
    waiting_job(tenant_queue("one"))
    before = queries_of_a_scrape()
    for number in range(30):
        row = tenant_queue(f"tenant {number}", queue=("imports", "reports")[number % 2], max_job_per_key=1)
        waiting_job(row), running_job(row, another_process())
    with override_settings(TENANT_SLOTS={"METRICS_TENANTS": 20}):
        assert queries_of_a_scrape() == before <= MOST_QUERIES


def test_the_most_queries_of_a_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "LONGEST_WAITING", 1)
    waiting_job(tenant_queue("other")), waiting_job(tenant_queue(queue="reports"))
    jobs_that_overflow_from_a_full_key()
    assert queries_of_a_scrape() == MOST_QUERIES


def test_to_register_the_collector_asks_nobody(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        CollectorRegistry(auto_describe=True).register(TenantSlotsCollector())


@pytest.mark.parametrize(
    "error", [OperationalError("connection refused"), ProgrammingError('relation "tenant_slots_job" does not exist')]
)
def test_a_database_that_cannot_be_asked_is_told_and_nothing_of_it(
    error: Error, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise error

    waiting_job(tenant_queue())
    monkeypatch.setattr(prometheus.liveness, "oldest_snapshot", away)
    samples = scrape()
    assert value(samples, "database_up") == 0
    assert not of(samples, "jobs")
    assert value(samples, "redis_up", queue="imports") == 1


def test_a_redis_out_of_reach_is_told_and_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise RedisAway("connection refused")

    monkeypatch.setattr(prometheus.queue_directory, "window_of", away)
    samples = scrape()
    assert value(samples, "redis_up", queue="imports") == 0
    assert not of(samples, "workers")
    assert of(samples, "jobs")


def test_a_thread_that_lives_for_one_scrape_leaves_no_session_open() -> None:
    left: list[bool] = []

    def serve() -> None:
        scrape()
        left.append(connections["default"].connection is not None)

    thread = threading.Thread(target=serve)
    thread.start(), thread.join()
    assert left == [False]


def test_control_a_session_that_was_open_stays_so() -> None:
    TenantQueue.objects.count()
    scrape()
    assert connections["default"].connection is not None


# --- the view ---------------------------------------------------------------------------------------------------------


def from_our_scraper(request: HttpRequest) -> bool:
    return request.headers.get("X-Scraper") == "ours"


@pytest.fixture
def open_to_ours() -> Iterator[None]:
    with override_settings(TENANT_SLOTS={"MAY_VIEW_METRICS": "tests.contrib.test_prometheus.from_our_scraper"}):
        yield


def test_the_view_is_closed_by_default(client: Client) -> None:
    assert client.get(reverse("metrics"), headers={"X-Scraper": "ours"}).status_code == 404


@pytest.mark.usefixtures("open_to_ours")
def test_the_view_is_open_to_whom_the_project_allows_and_to_reading_alone(client: Client) -> None:
    assert client.get(reverse("metrics")).status_code == 404
    response = client.get(reverse("metrics"), headers={"X-Scraper": "ours"})
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    assert b"\ntenant_slots_database_up 1.0\n" in response.content
    assert client.head(reverse("metrics"), headers={"X-Scraper": "ours"}).status_code == 200, "as the other views"
    assert client.post(reverse("metrics"), headers={"X-Scraper": "ours"}).status_code == 405


@pytest.mark.usefixtures("open_to_ours")
@pytest.mark.parametrize("alias", ["default", "other"])
def test_the_view_answers_where_no_transaction_can_be_begun(
    alias: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``ATOMIC_REQUESTS`` of any database, where Django begins one before it calls a view."""

    def away(*_: Any) -> None:
        raise OperationalError("connection refused")

    connection.close()
    monkeypatch.setitem(connections.settings, alias, {**connection.settings_dict, "ATOMIC_REQUESTS": True})
    monkeypatch.setattr(transaction.Atomic, "__enter__", away)
    monkeypatch.setattr(facts, "collected", away)
    response = client.get(reverse("metrics"), headers={"X-Scraper": "ours"})
    assert b"\ntenant_slots_database_up 0.0\n" in response.content
    assert b'\ntenant_slots_redis_up{queue="imports"} 1.0\n' in response.content


@pytest.mark.usefixtures("open_to_ours")
def test_a_refused_method_is_not_cached(client: Client) -> None:
    assert client.post(reverse("metrics")).headers["Cache-Control"] == "no-store"


@pytest.mark.usefixtures("open_to_ours")
def test_the_view_speaks_openmetrics_where_it_is_asked_for(client: Client) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    response = client.get(reverse("metrics"), headers={"X-Scraper": "ours", "Accept": accept})
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert response.content.endswith(b"# EOF\n")


@pytest.mark.usefixtures("open_to_ours")
@pytest.mark.parametrize("version", ["abc", '"1.0.0"', "1.x", "", "²"])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_whoever_asks_for_a_version_that_is_none_is_answered(client: Client, kind: str, version: str) -> None:
    accept = {"X-Scraper": "ours", "Accept": f"{kind};version={version}"}
    response = client.get(reverse("metrics"), headers=accept)
    assert response.status_code == 200
    assert b"\ntenant_slots_database_up 1.0\n" in response.content


# --- the manual -------------------------------------------------------------------------------------------------------

PAGE = Path(prometheus.__file__).parents[2] / "docs" / "how-to" / "metrics.md"


def block(text: str) -> str:
    (code,) = [one for one in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S) if text in one]
    return code


def test_the_app_config_of_the_page_is_loaded_before_any_model_and_registers_the_collector(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "apps.py").write_text(block("# shop/apps.py"))
    (tmp_path / "site_settings.py").write_text(
        "from tests.settings import *\nINSTALLED_APPS = ['shop.apps.ShopConfig', *INSTALLED_APPS]\n"
    )
    code = "import django; django.setup(); import prometheus_client as p; print(p.generate_latest().decode())"
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "site_settings",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{PAGE.parents[2]}",
    }
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "\ntenant_slots_database_up " in ran.stdout, ran.stderr


def test_the_command_of_the_page_serves_them_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    code = block("Command")
    started: Queue[Any] = Queue()
    start = prometheus_client.start_http_server

    def start_at_a_free_port(port: int, registry: CollectorRegistry) -> Any:
        served = start(0, "127.0.0.1", registry)
        started.put(served[0])
        return served

    monkeypatch.setattr(prometheus_client, "start_http_server", start_at_a_free_port)
    found: dict[str, Any] = {"__name__": "serve_metrics"}
    exec(compile(code, str(PAGE), "exec"), found)  # noqa: S102 - the manual's own
    command = threading.Thread(target=found["Command"]().handle)
    command.start()
    server = started.get(timeout=20)
    with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=20) as answer:
        assert b"tenant_slots_database_up 1.0" in answer.read()
    assert command.is_alive()
    server.shutdown(), server.server_close(), command.join(20)
    assert not command.is_alive()
