"""Short ways to the rows that tests need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import django_rq
from django.conf import settings
from django.db import connections, transaction
from django.db.models import Count, F, Q
from redis import Redis
from rq import Queue, SimpleWorker, Worker
from rq.worker import BaseWorker

from tenant_slots import fair_order, fleet, owners, redis_servers, slots, transitions
from tenant_slots.db.clock import in_seconds
from tenant_slots.dispatch import NUDGE
from tenant_slots.enqueueing import bulk
from tenant_slots.fair_order import Turn
from tenant_slots.models import EVERYWHERE, Stage, SweepClaim, TenantJob, TenantQueue
from tenant_slots.owners import Owner, this_process
from tenant_slots.repair import doctor
from tenant_slots.repair.finding import Finding
from tenant_slots.running.run import Run

T = TypeVar("T")

TASK = "tests.jobs.add"


def tenant_queue(tenant: str = "acme", max_job: int = 1, **values: Any) -> TenantQueue:
    row: TenantQueue = TenantQueue.objects.create(
        tenant=tenant, queue=values.pop("queue", "imports"), max_job=max_job, **values
    )
    return row


def waiting_job(row: TenantQueue, **values: Any) -> TenantJob:
    """A waiting job that nobody has tried to admit."""
    job: TenantJob = TenantJob.objects.create(tenant_queue=row, task=TASK, args=[1, 2], **values)
    return job


def release_then_admit(job: TenantJob, **changes: Any) -> list[TenantJob]:
    """A job leaves its slot, and then its tenant has a turn for as many jobs as it has slots. Those, in their order."""
    assert slots.release(job, **changes)
    return admit(TenantQueue.objects.get(pk=job.tenant_queue_id))


MANY_IDLE = """
for _, key in ipairs(KEYS) do
    for number = 0, ARGV[1] - 1 do redis.call("ZADD", key, ARGV[2], "worker " .. number) end
end
"""
"""In the server, as nearly every test begins with it."""

SECONDS_IDLE = 70
"""A sweep believes no worker that says for how much longer it is there."""


def pretend_idle(workers: int) -> None:
    """So many workers of ours wait for a job of any queue, as far as the order of tenants knows."""
    asked: dict[Hashable, tuple[Redis, list[str]]] = {}
    for queue in settings.RQ_QUEUES:
        connection = django_rq.get_connection(queue)  # each a client of its own, which connects when it is used
        _, keys = asked.setdefault(redis_servers.database_of(connection), (connection, []))
        keys += f"tenant_slots:idle:{queue}", f"tenant_slots:workers:{queue}"
    for connection, keys in asked.values():
        connection.eval(MANY_IDLE, len(keys), *keys, workers, time.time() + SECONDS_IDLE)


def worker_on_record(name: str, queue: str = "imports", *, of_ours: bool = True, says_so: bool = True) -> Worker:
    """A worker as RQ has it on record; one of ours says that it is there, unless it was killed."""
    connection = django_rq.get_connection(queue)
    worker = Worker([Queue(queue, connection=connection)], name=name, connection=connection)
    worker.register_birth()
    worker.set_state("idle")
    if of_ours:
        ours = {fleet.CLASS: "tenant_slots.workers.TenantWorker", "birth": "2026-01-01T00:00:00.000000Z"}
        connection.hset(worker.key, mapping=ours)
        connection.zadd(f"tenant_slots:workers:{queue}", {worker.key: time.time() + (15 if says_so else -1)})
    return worker


def damage_found() -> list[Finding]:
    """What the doctor finds wrong in the tables and in Redis, whether or not anybody works and sweeps."""
    liveness = ("workers", "sweeps", "snapshots")
    return doctor.findings(*(name for name in doctor.CHECKS if name not in liveness))


def somebody_sweeps() -> None:
    """As far as anybody can see."""
    SweepClaim.objects.create(name=EVERYWHERE, until=in_seconds(3))


def redis_forgets() -> None:
    """All but busy workers of ours, so that nothing is admitted ahead of them."""
    for queue in settings.RQ_QUEUES:
        django_rq.get_connection(queue).flushall()
    for queue in settings.RQ_QUEUES:
        fair_order.take("rq:worker:one of ours", [queue], waits=False)


def admit(row: TenantQueue, most: int = 1000) -> list[TenantJob]:
    """A tenant's turn in its own queue, for as many jobs as it has slots."""
    return slots.admit(row.pk, row.queue, most).jobs


def many_waiting(row: TenantQueue, number: int, **values: Any) -> None:
    """A long backlog, for tests of query plans."""
    with transaction.atomic():
        bulk.insert([TenantJob(tenant_queue=row, task=TASK, **values) for _ in range(number)])


def owner(worker: str = "worker", **values: Any) -> Owner:
    """The process of this test as one that runs a job."""
    return replace(this_process(worker, beats=True), **values)


def another_process(worker: str = "elsewhere", **values: Any) -> Owner:
    """A process of this host that lives, and is not this one."""
    pid = os.getppid()
    return owner(worker, **{"pid": pid, "pid_started": owners._started(pid), **values})


def dead_process(worker: str = "dead", **values: Any) -> Owner:
    """A process of this host whose pid now belongs to a younger one."""
    return another_process(worker, **{"pid_started": 1, **values})


def running_job(row: TenantQueue, by: Owner, **values: Any) -> TenantJob:
    """A job that some process runs, or ran until it died."""
    waiting = waiting_job(row, **values)
    (job,) = slots.admit(row.pk, waiting.rq_queue_name).jobs
    assert slots.start(job, by)
    job.refresh_from_db()
    return job


def age(job: TenantJob, **seconds: float) -> None:
    """Move times of a job into the past. What has started had its slot by then."""
    if "started_at" in seconds:
        seconds.setdefault("admitted_at", seconds["started_at"])
    TenantJob.objects.filter(pk=job.pk).update(**{name: in_seconds(-value) for name, value in seconds.items()})
    job.refresh_from_db()


def fresh(row: Any) -> Any:
    row.refresh_from_db()
    return row


def in_rq(queue: str = "imports") -> int:
    """How many jobs wait for a worker in Redis."""
    return len([rq_id for rq_id in django_rq.get_queue(queue).job_ids if rq_id != NUDGE])


def feed_turn(turn: Turn) -> list[TenantJob]:
    """What a tenant's turn comes to where somebody feeds RQ's list."""
    admitted, given_up = transitions._admit(turn)
    transitions._tell_admitted(admitted, given_up)
    return admitted


class DeafWorker(SimpleWorker):
    """Takes no commands: ending the thread that listens for them takes RQ a second."""

    def subscribe(self) -> None: ...

    def unsubscribe(self) -> None: ...


def work(*queues: str) -> None:
    """Run everything that is in RQ, in this process."""
    names = queues or ("imports", "reports")
    DeafWorker([django_rq.get_queue(name) for name in names]).work(burst=True, logging_level="ERROR")


def burst(worker_class: type[BaseWorker], queue: str = "imports") -> None:
    """Have a worker of this class, in this process, run everything that there is for a queue."""
    rq_queue = django_rq.get_queue(queue)
    worker_class([rq_queue], connection=rq_queue.connection).work(burst=True, logging_level="CRITICAL")


def counters_match() -> bool:
    """Rule 2: the counter is the number of jobs that hold a slot. Asked in one, as a worker may be about to end one."""
    holding = Count("jobs", filter=Q(jobs__stage=Stage.HOLDING))
    return not TenantQueue.objects.annotate(held=holding).exclude(current_job=F("held")).exists()


def end_run(job: TenantJob, **outcome: Any) -> None:
    """Record that the function of a running job has ended, as the process that runs it does."""
    run = Run("worker")
    run.job = job
    run.end(outcome)


def in_thread(function: Callable[[], T]) -> T:
    """What a function gives in a thread of its own, whose database connection is closed at the end."""

    def run() -> T:
        try:
            return function()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
