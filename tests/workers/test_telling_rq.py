"""When RQ is told of the end of a job: while further ones are under way, and before anything that may take long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import django_rq
import pytest
from django.db import OperationalError
from rq.exceptions import StopRequested
from rq.job import Job, JobStatus
from rq.utils import now
from rq.worker import BaseWorker

from tenant_slots import logs, queue_directory, slots
from tenant_slots.models import TenantJob
from tenant_slots.workers import TenantPreforkWorker, TenantWorker, records, supervisor
from tests import jobs
from tests.factories import redis_forgets, tenant_queue
from tests.history import History
from tests.workers.jobs import fail, save_meta
from tests.workers.jobs import run as run_odd

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was handed out and told, in its order, with the first argument of the job. Nothing else is due meanwhile."""
    happened: list[tuple[str, str]] = []

    def note(cls: Worker, name: str, event: str, jobs_of: Callable[..., list[Job]]) -> None:
        real = getattr(cls, name)

        def noted(self: Any, *arguments: Any, **options: Any) -> Any:
            happened.extend((event, job.description.split("'")[1]) for job in jobs_of(*arguments))
            return real(self, *arguments, **options)

        monkeypatch.setattr(cls, name, noted)

    for cls in (TenantPreforkWorker, TenantWorker):
        note(cls, "_hand_out", "begins", lambda job, *_: [job])
        note(cls, "tell_rq_of_successes", "told", lambda ended: [job for job, *_ in ended])
        note(cls, "handle_job_failure", "told", lambda job: [job])
        for due in ("should_run_maintenance_tasks", "is_suspension_check_due"):
            monkeypatch.setattr(cls, due, property(lambda self: False))
    monkeypatch.setattr(supervisor, "ANNOUNCED_AFTER", 20)  # a slow machine takes a while to fork
    return happened


def run(worker_class: Worker) -> None:
    queue = django_rq.get_queue("imports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="ERROR")


def known_to_rq() -> list[JobStatus | None]:
    found = [
        queue_directory.queue_named("imports").fetch_job(job.last_rq_id) for job in TenantJob.objects.order_by("pk")
    ]
    return [rq_job.get_status() if rq_job else None for rq_job in found]


OF_ONE_OR_THREE = pytest.mark.parametrize(
    "tenants", [("a", "b", "c"), ("a", "a", "a")], ids=["of three tenants", "of one"]
)


def enqueue(history: History, *tenants: str) -> None:
    for tenant in set(tenants):
        tenant_queue(tenant, max_job=1)
    redis_forgets()
    jobs.record.enqueue_many([((tenant, str(n), history.path, 0.0), {}) for n, tenant in enumerate(tenants)])


@CLASSES
@OF_ONE_OR_THREE
@pytest.mark.parametrize(
    ("seconds", "order"),
    [
        (60, ["begins 0", "begins 1", "begins 2", "told 0", "told 1", "told 2"]),
        (0, ["begins 0", "begins 1", "told 0", "begins 2", "told 1", "told 2"]),
    ],
    ids=["told together", "told while the next one is under way"],
)
def test_no_job_waits_until_rq_is_told_of_the_one_before(
    worker_class: Worker,
    tenants: tuple[str, ...],
    seconds: int,
    order: list[str],
    history: History,
    events: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "UNTOLD_FOR", seconds)
    enqueue(history, *tenants)
    run(worker_class)
    assert [f"{event} {tenant}" for event, tenant in events] == [
        f"{event} {tenants[int(nth)]}" for event, nth in map(str.split, order)
    ]
    assert known_to_rq() == [JobStatus.FINISHED] * 3


@CLASSES
def test_but_of_no_more_than_so_many(
    worker_class: Worker, history: History, events: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "UNTOLD_FOR", 60)
    monkeypatch.setattr(records, "MOST_UNTOLD", 2)
    enqueue(history, "a", "b", "c", "d")
    run(worker_class)
    assert events == [
        *(("begins", name) for name in "abc"),
        *(("told", name) for name in "ab"),
        ("begins", "d"),
        *(("told", name) for name in "cd"),
    ]
    assert known_to_rq() == [JobStatus.FINISHED] * 4


@CLASSES
def test_and_before_one_that_lasts_is_announced(
    worker_class: Worker,
    history: History,
    events: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(records, "UNTOLD_FOR", 60)
    real, hand_out, door = worker_class.announce, worker_class._hand_out, tmp_path / "door"

    def announce(self: Any, job: Job) -> None:
        events.append(("announced", ""))
        real(self, job)
        door.touch()

    def announced_unless_first(self: Any, *arguments: Any) -> Any:
        if events:
            monkeypatch.setattr(supervisor, "ANNOUNCED_AFTER", 0.1)
        return hand_out(self, *arguments)

    monkeypatch.setattr(worker_class, "announce", announce)
    monkeypatch.setattr(worker_class, "_hand_out", announced_unless_first)
    tenant_queue("a", max_job=1)
    redis_forgets()
    jobs.record.enqueue("a", "0", history.path)
    jobs.wait_for_file.enqueue("a", "1", history.path, str(door))
    run(worker_class)
    assert events[-3:] == [("told", "a"), ("announced", ""), ("told", "a")]


@CLASSES
def test_a_failure_is_told_at_once(worker_class: Worker, events: list[tuple[str, str]]) -> None:
    for tenant in ("a", "b"):
        tenant_queue(tenant, max_job=1)
    redis_forgets()
    fail.enqueue_many([(("a", "odd"), {}), (("b", "odd"), {})])
    run(worker_class)
    assert events == [("begins", "a"), ("told", "a"), ("begins", "b"), ("told", "b")]
    assert known_to_rq() == [JobStatus.FAILED] * 2


@CLASSES
def test_a_handler_that_looks_at_the_status_of_a_job_finds_it_failed_and_its_own_error_ends_no_work_horse(
    worker_class: Worker, events: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Sentry's does, which takes the place of this method. Asked for the status, Redis knows nothing of the job."""
    tenant_queue("a", max_job=1)
    redis_forgets()
    fail.enqueue("a", "odd")

    def handle(self: Any, job: Job, *exc_info: Any) -> None:
        (tmp_path / "seen").write_text(str(job._status == JobStatus.FAILED or job.is_failed))
        raise LookupError("the handler has an error of its own")

    monkeypatch.setattr(BaseWorker, "handle_exception", handle)
    run(worker_class)
    assert (tmp_path / "seen").read_text() == "True"
    assert events == [("begins", "a"), ("told", "a")]
    assert known_to_rq() == [JobStatus.FAILED]


@CLASSES
def test_it_is_told_before_a_job_that_rq_delivers(
    worker_class: Worker, history: History, events: list[tuple[str, str]]
) -> None:
    tenant_queue("a", max_job=1)
    redis_forgets()
    jobs.record.enqueue("a", "0", history.path, 0.0)
    django_rq.get_queue("imports").enqueue(len, "plain")
    run(worker_class)
    assert events.index(("told", "a")) == events.index(("begins", "a")) + 1
    assert ("begins", "plain") in events


@CLASSES
@pytest.mark.parametrize("happens", [StopRequested, OperationalError], ids=["a stop", "an outage"])
def test_it_is_told_whatever_happens_before_the_next_one(
    worker_class: Worker,
    happens: type[Exception],
    history: History,
    events: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for tenant in ("a", "b"):
        tenant_queue(tenant, max_job=1)
    redis_forgets()
    jobs.record.enqueue_many([((tenant, tenant, history.path, 0.0), {}) for tenant in ("a", "b")])
    real, asked = slots.admit_and_start, []

    def admit_and_start(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 2:
            events.append(("happens", ""))
            raise happens
        return real(*arguments, **options)

    monkeypatch.setattr(slots, "admit_and_start", admit_and_start)
    run(worker_class)
    assert events[:3] == [("begins", "a"), ("happens", ""), ("told", "a")]


@CLASSES
def test_a_stop_that_comes_while_it_is_told_comes_after_that(
    worker_class: Worker, history: History, events: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_queue("a", max_job=1)
    redis_forgets()
    jobs.record.enqueue("a", "0", history.path, 0.0)
    real = worker_class.tell_rq_of_successes

    def tell_rq(self: Any, *arguments: Any) -> None:
        self._shutdown_requested_date = now()  # as RQ's handler of the signal notes it
        self._shutdown()
        real(self, *arguments)

    monkeypatch.setattr(worker_class, "tell_rq_of_successes", tell_rq)
    run(worker_class)
    assert events == [("begins", "a"), ("told", "a")]
    assert known_to_rq() == [JobStatus.FINISHED]


@CLASSES
def test_a_worker_that_is_ended_at_once_as_the_next_one_begins_tells_all_that_rq_knows_of_a_job(
    worker_class: Worker, history: History, events: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("a", "b"):
        tenant_queue(tenant, max_job=1)
    redis_forgets()
    first, _ = jobs.record.enqueue_many([((tenant, tenant, history.path, 0.0), {}) for tenant in ("a", "b")])
    real = worker_class._hand_out

    def hand_out(self: Any, job: Any, *arguments: Any) -> None:
        real(self, job, *arguments)
        if len(events) == 2:
            raise SystemExit

    monkeypatch.setattr(worker_class, "_hand_out", hand_out)
    with pytest.raises(SystemExit):
        run(worker_class)
    assert events == [("begins", "a"), ("begins", "b"), ("told", "a"), ("told", "b")]
    rq_job = queue_directory.queue_named("imports").fetch_job(TenantJob.objects.get(pk=first.pk).last_rq_id)
    assert rq_job is not None
    assert (rq_job.get_status(), rq_job.origin) == (JobStatus.FINISHED, "imports")


@CLASSES
@pytest.mark.parametrize("how", ["", "fails"])
def test_what_a_job_was_given_as_its_meta_is_kept(worker_class: Worker, history: History, how: str) -> None:
    tenant_queue("a", max_job=1)
    redis_forgets()
    run_odd.using(meta={"upload": 7}).enqueue("a", "odd", history.path, how)
    run(worker_class)
    rq_job = queue_directory.queue_named("imports").fetch_job(TenantJob.objects.get().last_rq_id)
    assert rq_job is not None
    assert rq_job.meta == {"upload": 7}
    assert rq_job.get_status() == (JobStatus.FAILED if how else JobStatus.FINISHED)


@CLASSES
def test_what_a_job_saves_beside_the_meta_that_it_was_given_stays(worker_class: Worker) -> None:
    tenant_queue("a", max_job=1)
    redis_forgets()
    save_meta.using(meta={"upload": 7}).enqueue("a")
    run(worker_class)
    rq_job = queue_directory.queue_named("imports").fetch_job(TenantJob.objects.get().last_rq_id)
    assert rq_job is not None
    assert rq_job.meta == {"upload": 7, "rows": 7}


@CLASSES
def test_rqs_record_of_a_completed_job_has_its_fields(
    worker_class: Worker, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(history, "a")
    queue = django_rq.get_queue("imports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="INFO")
    (record,) = [record for record in caplog.records if record.msg.startswith("Successfully completed")]
    job = TenantJob.objects.get()
    found = {name: getattr(record, name) for name in logs.FIELDS}
    assert found == {"task": None, "tenant": None, "queue": "imports", "job": str(job.uuid), "attempt": 1}
    assert record.name == "rq.worker"
