"""Each minute is counted once, whoever sweeps and whenever."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import django_rq
import psycopg
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone
from rq import Queue, Worker

from tenant_slots.db import clock
from tenant_slots.db.clock import MinuteOf, minute_of, start_of
from tenant_slots.db.sessions import private_connection
from tenant_slots.fleet import Fleet
from tenant_slots.models import Kind, QueueMinute, State, TenantJob, TenantQueue
from tenant_slots.models.queue_minute import ALL_QUEUES, COUNTS, DELAY_BOUNDS, DELAYS
from tenant_slots.repair import minutes
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.minutes import count_minutes
from tenant_slots.repair.report import Report
from tenant_slots.repair.sweeper import Sweeper
from tests.factories import TASK, another_process, running_job, tenant_queue, waiting_job, worker_on_record
from tests.processes import test_database_url as database_url
from tests.repair.sweeps import sweep_now

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("within_one_minute")]


def count() -> None:
    count_minutes(Report(), Contact())


def this_minute() -> int:
    return minute_of(clock.now())


def at(minute: int, second: float = 30) -> datetime:
    return start_of(minute) + timedelta(seconds=second)


def ended(
    row: TenantQueue, minute: int, *, state: str = State.FINISHED, second: float = 30, **values: Any
) -> TenantJob:
    end = at(minute, second)
    times = {"enqueued_at": end - timedelta(seconds=20), "started_at": end - timedelta(seconds=10), "ended_at": end}
    return waiting_job(row, state=state, **{"attempt": 1, **times, **values})


def total(name: str, queue: str = ALL_QUEUES) -> int:
    return sum(QueueMinute.objects.filter(queue=queue).values_list(name, flat=True))


def everything() -> list[Any]:
    return list(QueueMinute.objects.order_by("minute", "queue").values_list("minute", "queue", *COUNTS))


def test_jobs_are_counted_in_the_minute_and_queue_in_which_they_ended() -> None:
    imports, reports, now = tenant_queue(), tenant_queue("other", queue="reports"), this_minute()
    ended(imports, now - 2), ended(imports, now - 2, state=State.FAILED), ended(imports, now - 1)
    ended(reports, now - 2, state=State.CANCELED, started_at=None)
    ended(imports, now - 2, rq_queue="reports")
    ended(imports, now, second=0), ended(imports, now - 2, kind=Kind.RESERVATION)
    count()
    found = {(minute_of(one.minute), one.queue): one for one in QueueMinute.objects.all()}
    both, of_imports, of_reports = (found[now - 2, queue] for queue in (ALL_QUEUES, "imports", "reports"))
    assert (both.finished, both.failed, both.canceled, both.started) == (2, 1, 1, 3)
    assert (of_imports.finished, of_imports.failed, of_imports.canceled) == (1, 1, 0)
    assert (of_reports.finished, of_reports.failed, of_reports.canceled) == (1, 0, 1)
    assert found[now - 1, ALL_QUEUES].finished == 1
    assert (now, ALL_QUEUES) not in found, "a minute that is not over is not counted"


def test_a_minute_in_which_nothing_happened_has_a_row_and_an_idle_queue_has_none() -> None:
    count()
    assert len(QueueMinute.objects.filter(queue=ALL_QUEUES)) == minutes.FIRST
    assert not QueueMinute.objects.exclude(queue=ALL_QUEUES).exists()


@pytest.mark.parametrize("second", [0, 0.0004, 59.9996])
def test_a_job_at_the_edge_of_a_minute_belongs_to_that_one(second: float) -> None:
    minute = this_minute() - 3
    ended(tenant_queue(), minute, second=second)
    assert list(TenantJob.objects.values_list(MinuteOf("ended_at"), flat=True)) == [minute]
    count()
    assert QueueMinute.objects.get(queue=ALL_QUEUES, finished=1).minute == start_of(minute)


def test_first_starts_are_counted_by_their_delay() -> None:
    row, minute = tenant_queue(max_job=9), this_minute() - 2
    for seconds in (0.2, 3, 3.5, 10**6):
        ended(row, minute, enqueued_at=at(minute, 20) - timedelta(seconds=seconds), started_at=at(minute, 20))
    ended(row, minute, attempt=2)
    running = running_job(row, another_process())
    TenantJob.objects.filter(pk=running.pk).update(
        enqueued_at=at(minute, 10), run_after=at(minute, 15), started_at=at(minute, 20)
    )
    count()
    counted = QueueMinute.objects.get(queue=ALL_QUEUES, minute=start_of(minute))
    delays = {name: getattr(counted, name) for name in DELAYS if getattr(counted, name)}
    of_five = DELAYS[DELAY_BOUNDS.index(8)]
    assert delays == {DELAYS[0]: 1, DELAYS[DELAY_BOUNDS.index(4)]: 2, of_five: 1, DELAYS[-1]: 1}
    assert counted.started == 6


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no infinite times")
@pytest.mark.parametrize(
    ("column", "value", "counted_as", "days"),
    [
        ("started_at", "-infinity", "run_ms", 366),
        ("started_at", "infinity", "run_ms", 0),
        ("enqueued_at", "-infinity", "delay_ms", 366),
        ("enqueued_at", "infinity", "delay_ms", 0),
    ],
)
def test_times_out_of_the_calendar_are_believed_for_a_year_at_most(
    column: str, value: str, counted_as: str, days: int
) -> None:
    """Together they would be more than Python has a number for."""
    row, minute, number = tenant_queue(), this_minute() - 2, 1400
    values = {"enqueued_at": at(minute, 10), "started_at": at(minute, 20), "ended_at": at(minute), "attempt": 1}
    TenantJob.objects.bulk_create(
        TenantJob(tenant_queue=row, task=TASK, state=State.FINISHED, **values) for _ in range(number)
    )
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE tenant_slots_tenantjob SET {column} = %s", [value])  # noqa: S608 - names of ours
    ended(row, minute)
    count()
    assert total(counted_as) == number * days * 24 * 3600 * 1000 + 10_000


def test_counting_again_changes_nothing() -> None:
    row, now = tenant_queue(), this_minute()
    for minute in range(now - 20, now):
        ended(row, minute), ended(row, minute, state=State.FAILED)
    count()
    once = everything()
    QueueMinute.objects.filter(minute__gte=start_of(now - 5)).delete()
    count()
    assert everything() == once
    assert total("finished") == total("failed", "imports") == 20


def test_an_hour_without_a_sweep_is_made_up_for() -> None:
    row, now = tenant_queue(), this_minute()
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - 200))
    for minute in range(now - 199, now):
        ended(row, minute)
    count()
    assert total("finished") == total("finished", "imports") == 199
    within = start_of(now - 200), start_of(now - 1)  # another minute may be over by now
    assert QueueMinute.objects.filter(queue=ALL_QUEUES, minute__range=within).count() == 200


def test_a_long_time_is_made_up_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    row, now = tenant_queue(), this_minute()
    monkeypatch.setattr(minutes, "SECONDS_TO_COUNT", 0)
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - 1000))
    for minute in range(now - 999, now, 7):
        ended(row, minute)
    count()
    assert total("finished") == len(range(now - 999, now - 999 + minutes.AT_ONCE, 7))
    count(), count()
    assert total("finished") == len(range(now - 999, now, 7))


def test_a_sweeper_that_dies_in_the_middle_leaves_all_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException): ...

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    ended(tenant_queue(), this_minute() - 2)
    original = QueueMinute.objects.bulk_create
    monkeypatch.setattr(type(QueueMinute.objects), "bulk_create", lambda self, *a, **k: (original(*a, **k), die()))
    with pytest.raises(Killed):
        count()
    assert not QueueMinute.objects.exists()
    monkeypatch.undo()
    count()
    assert total("finished") == 1


def test_an_end_that_was_committed_late_is_counted_late_and_once() -> None:
    row, now = tenant_queue(), this_minute()
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - 2))
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - minutes.LATE - 1), finished=1)
    QueueMinute.objects.create(queue="imports", minute=start_of(now - minutes.LATE - 1), finished=1)
    ended(row, now - minutes.LATE - 1), ended(row, now - minutes.LATE - 1)
    count()
    assert total("finished") == total("finished", "imports") == 2


def test_a_failed_job_that_was_retried_has_failed_all_the_same() -> None:
    row, now = tenant_queue(max_job=0), this_minute()
    job = ended(row, now - minutes.LATE - 1, state=State.FAILED)
    count()
    job.retry()
    QueueMinute.objects.filter(minute=start_of(now - 1)).delete()
    count()
    assert total("failed") == 1


def test_a_clock_that_was_set_back_stops_no_count() -> None:
    row, now = tenant_queue(), this_minute()
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now + 60))
    ended(row, now - 1)
    count()
    assert total("finished") == 1


def test_what_is_now_goes_to_the_last_minute() -> None:
    running_job(tenant_queue(max_job=3), another_process())
    row = TenantQueue.objects.get()
    for _ in range(5):
        waiting_job(row)
    paused = tenant_queue("paused", paused=True)
    waiting_job(paused), waiting_job(paused, kind=Kind.RESERVATION)
    for tenant, values in (("rests", {"rests_until": timezone.now() + timedelta(hours=1)}), ("zero", {"max_job": 0})):
        waiting_job(tenant_queue(tenant, **values))
    capped = tenant_queue("capped", max_job=9, max_job_per_key=1)
    running_job(capped, another_process(), key="k", rq_queue="reports"), waiting_job(capped, key="k")
    worker_on_record("one"), worker_on_record("dead", says_so=False)
    count()
    last = QueueMinute.objects.filter(queue="imports").latest("minute")
    assert minute_of(last.minute) == this_minute() - 1
    assert (last.running, last.runnable, last.held_back, last.workers) == (1, 2, 3 + 1 + 1 + 1 + 1, 1)
    everywhere = QueueMinute.objects.get(queue=ALL_QUEUES, minute=last.minute)
    assert (everywhere.running, everywhere.runnable, everywhere.held_back, everywhere.workers) == (2, 2, 7, 1)
    assert set(QueueMinute.objects.exclude(minute=last.minute).values_list("running", flat=True)) == {None}


def test_of_each_key_as_many_jobs_could_run_as_its_limit_allows() -> None:
    row = tenant_queue(max_job=20, max_job_per_key=1)
    running_job(row, another_process(), key="k")
    for key in ("k", "k", "j", "j", ""):
        waiting_job(row, key=key)
    count()
    last = QueueMinute.objects.filter(queue="imports").latest("minute")
    assert (last.runnable, last.held_back) == (1 + 1, 3)


def test_a_worker_of_several_queues_is_one_and_one_of_others_is_none() -> None:
    connection = django_rq.get_connection("imports")
    for name, queues in (("ours", ["imports", "reports"]), ("theirs", ["x" * 300])):
        worker = Worker([Queue(queue, connection=connection) for queue in queues], name=name, connection=connection)
        worker.register_birth()
    count()
    found = dict(QueueMinute.objects.exclude(workers=None).values_list("queue", "workers"))
    assert found == {ALL_QUEUES: 1, "imports": 1, "reports": 1}


def test_nothing_is_known_of_the_workers_of_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenant_slots.fleet.known", lambda: Fleet((), ("imports",)))
    count()
    assert QueueMinute.objects.filter(queue=ALL_QUEUES).latest("minute").workers is None
    assert QueueMinute.objects.filter(queue=ALL_QUEUES).latest("minute").running == 0


def test_old_minutes_go() -> None:
    now = this_minute()
    old = QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - minutes.KEPT - 5))
    QueueMinute.objects.create(queue=ALL_QUEUES, minute=start_of(now - 100))
    count()
    assert not QueueMinute.objects.filter(pk=old.pk).exists()


def test_without_a_new_minute_a_sweep_asks_once() -> None:
    count()
    with CaptureQueriesContext(connection) as captured:
        count()
    assert len(captured) == 1


def test_a_sweep_counts_before_it_prunes(settings: Any) -> None:
    settings.TENANT_SLOTS = {"RETENTION": 1}
    ended(tenant_queue(), this_minute() - 2)
    sweep_now()
    assert not TenantJob.objects.exists()
    assert total("finished") == 1


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
@pytest.mark.parametrize("table", ["queuetotal", "queueminute"])
def test_somebody_who_holds_a_row_of_what_is_counted_keeps_a_sweep_from_nothing_else(table: str) -> None:
    count()
    now = this_minute()
    ended(tenant_queue(), now - 2)
    QueueMinute.objects.filter(minute__gte=start_of(now - 5)).delete()
    lately = QueueMinute.objects.filter(minute=start_of(now - 1))
    with psycopg.connect(database_url()) as session:
        session.execute(f"SELECT 1 FROM tenant_slots_{table} WHERE queue = %s FOR UPDATE", [ALL_QUEUES])  # noqa: S608
        with override_settings(TENANT_SLOTS={"RETENTION": 1, "LEASE_TTL": 20}), private_connection(10):
            Sweeper("test").sweep_if_due()
    assert not lately.exists()
    assert not TenantJob.objects.exists(), "what comes after that in a sweep"
    count()
    assert lately.exists()


def test_a_sweep_notes_the_version_of_the_project_with_the_minute_that_it_has_seen() -> None:
    with override_settings(TENANT_SLOTS={"PROJECT_VERSION": "v1"}):
        count()
    told = dict(QueueMinute.objects.exclude(version="").values_list("queue", "version"))
    assert told == {ALL_QUEUES: "v1"}
    assert QueueMinute.objects.get(version="v1").minute == start_of(this_minute() - 1)
