"""The jobs that tests enqueue. Each run appends lines to a history file, which an outside checker reads."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import django_rq
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from rq import Callback, Retry, get_current_job

from tenant_slots import Reschedule, TenantBusy, Throttle, hold_slot, report_progress, tenant_job
from tenant_slots.db.clock import DatabaseNow
from tenant_slots.interruptions import EndedAtOnce
from tenant_slots.models import TenantJob, TenantQueue


def note(history: str, *words: object) -> None:
    """One line per event, written at once by O_APPEND so that processes do not tear each other's lines."""
    line = " ".join(map(str, (time.time_ns(), os.getpid(), *words))) + "\n"
    handle = os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def wait_for_door(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


@tenant_job("imports", tenant="tenant")
def record(tenant: str, name: str, history: str, seconds: float = 0.0) -> str:
    note(history, "start", tenant, name)
    time.sleep(seconds)
    note(history, "end", tenant, name)
    return name


@tenant_job("imports", tenant="tenant", retry=Retry(max=2))
def ask_partner(tenant: str, history: str, door: str = "", seconds: float = 3600, reason: str = "HTTP 429") -> None:
    """The partner answers once the door is open."""
    if not door or not Path(door).exists():
        note(history, "busy", tenant)
        report_progress(1, asked=True)
        raise TenantBusy(reason, seconds=seconds)
    note(history, "answered", tenant)


@tenant_job("imports", tenant="tenant")
async def ask_partner_slowly(tenant: str, until: str) -> None:
    await asyncio.sleep(0)
    raise TenantBusy("slow down", until=datetime.fromisoformat(until))


@tenant_job("imports", tenant="tenant")
def ask_partner_holding_a_slot(tenant: str) -> None:
    with hold_slot("other", "imports"):
        raise TenantBusy("HTTP 429", seconds=3600)


@tenant_job("imports", tenant="tenant")
def wait_for_file(tenant: str, name: str, history: str, path: str) -> None:
    """Runs until a file exists, so that a test decides when."""
    note(history, "start", tenant, name)
    wait_for_door(path)
    note(history, "end", tenant, name)


@tenant_job("imports", tenant="tenant")
def fail(tenant: str, message: str = "no such feed") -> None:
    raise ValueError(message)


@tenant_job("imports", tenant="tenant")
def kill_self(tenant: str, history: str, seconds: float = 0.0) -> None:
    note(history, "start", tenant, "kill_self")
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@tenant_job("reports", tenant=lambda *args, **kwargs: kwargs.get("tenant"))
def add(a: int, b: int, tenant: str | int | None = None) -> int:
    return a + b


@tenant_job("reports", tenant="tenant")
def gives_by_number(tenant: str, number: str) -> dict[int, str]:
    return {int(number): tenant}


@tenant_job("reports", tenant="tenant")
def say_message(tenant: str, message: Any) -> Any:
    return message


@tenant_job("reports", tenant="tenant", timeout=600)
def say_timeout(tenant: str) -> int:
    return timeout_of_run()


@tenant_job("reports", tenant="tenant")
def say_timeout_of_queue(tenant: str) -> int:
    return timeout_of_run()


@tenant_job("reports", tenant="tenant", timeout=1)
def sleep_beyond_timeout(tenant: str) -> None:
    time.sleep(30)


@tenant_job("reports", tenant="tenant")
@django_rq.job("reports", timeout=77)
def inside_ours(tenant: str) -> int:
    return timeout_of_run()


@django_rq.job("reports", timeout=78, on_failure=Callback("tests.jobs.timeout_of_run"))
@tenant_job("reports", tenant="tenant")
def outside_ours(tenant: str) -> int:
    return timeout_of_run()


def timeout_of_run() -> int:
    """As RQ has it for the job that it runs."""
    rq_job = get_current_job()
    assert rq_job is not None
    return int(rq_job.timeout)


@tenant_job("reports", tenant="tenant")
def count_down(tenant: str, left: int) -> int:
    return left if left == 0 else count_down(tenant, left - 1)


@tenant_job("reports", tenant="tenant")
def enqueues_the_next(tenant: str, left: int) -> None:
    if left:
        enqueues_the_next.enqueue(tenant, left - 1)


def note_success(job: TenantJob, result: object) -> None:
    note(job.kwargs["history"], "success", job.state, result)
    come_to(job.kwargs["then"])


def note_failure(job: TenantJob, error: BaseException) -> None:
    note(job.kwargs["history"], "failure", job.state, type(error).__name__)
    come_to(job.kwargs["then"])


def come_to(end: str) -> None:
    if end == "leaves":
        transaction.atomic().__enter__()
    elif end == "stays":
        time.sleep(600)
    elif end:
        raise CALLED_BACK[end]


MEANWHILE: dict[str, dict[str, Any]] = {
    "it is to be canceled": {"cancel_requested_at": DatabaseNow()},
    "another run has it": {"token": 17},
}
"""What happens to the row of a job while its function is called, and its process has not heard of."""

CALLED_BACK: dict[str, type[BaseException]] = {
    "raises": ValueError,
    "exits": SystemExit,
    "is canceled": asyncio.CancelledError,
}


@tenant_job(
    "imports",
    tenant="tenant",
    retry=Retry(max=1),
    retry_for=(ConnectionError, TimeoutError),
    on_success=note_success,
    on_failure=note_failure,
)
def calls_back(tenant: str, *, history: str, raises: str = "", then: str = "", meanwhile: str = "") -> str:
    note(history, "start", tenant, raises or "fine")
    if meanwhile:
        TenantJob.objects.filter(tenant_queue__tenant=tenant).update(**MEANWHILE[meanwhile])
    if raises:
        raise {"ConnectionError": ConnectionError, "ConnectionResetError": ConnectionResetError, "KeyError": KeyError}[
            raises
        ]
    return "fine"


@tenant_job("imports", tenant="tenant")
def always_asks_again(tenant: str, history: str) -> Retry:
    note(history, "start", tenant, "again")
    return Retry(max=1)


@tenant_job("imports", tenant="tenant")
def ends_each_time_otherwise(tenant: str, history: str, ends: list[str]) -> str | Retry:
    note(history, "start", tenant, "again")
    end = ends[len(Path(history).read_text().splitlines()) - 1]
    if end == "raises":
        raise KeyError(end)
    return Retry(max=9) if end == "again" else end


@tenant_job("imports", tenant="tenant", retry=Retry(max=2, interval=[60, 0]))
def flaky(tenant: str) -> None:
    raise RuntimeError("flaky")


@tenant_job("imports", tenant="tenant")
def returns_retry(tenant: str, kind: str) -> Retry:
    intervals: dict[str, list[float]] = {"none": [], "nan": [float("nan")]}
    return Retry(max=1, interval=intervals[kind])  # type: ignore[arg-type]  # RQ takes any


@tenant_job("imports", tenant="tenant")
def stores_its_tenant_queue_again(tenant: str, *, sql: bool) -> None:
    if sql:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO tenant_slots_tenantqueue SELECT * FROM tenant_slots_tenantqueue")
    TenantQueue.objects.create(tenant=tenant, queue="imports")


@tenant_job("imports", tenant="tenant")
def pauses_itself_and_fails(tenant: str) -> None:
    TenantQueue.objects.filter(tenant=tenant).update(paused=True)
    raise ValueError("no more of this")


@tenant_job("imports", tenant="tenant")
def commits_durably(tenant: str) -> None:
    with transaction.atomic(durable=True):
        TenantQueue.objects.filter(tenant=tenant).update(paused=True)


@tenant_job("imports", tenant="tenant")
def close(tenant: str, task: int) -> None: ...


@tenant_job("imports", tenant="tenant")
def exports_since(tenant: str, since: date = date(2020, 1, 1), path: str = "") -> None: ...


@tenant_job("imports", tenant="tenant")
def odd_result(tenant: str, kind: str) -> object:
    recursive: list[object] = []
    recursive.append(recursive)
    return {"object": {1, 2}, "huge": "x" * 2_000_000, "recursive": recursive, "nul": "\0"}[kind]


@tenant_job("imports", tenant="tenant")
def fail_with_nul(tenant: str) -> None:
    raise ValueError("bad \0 byte")


@tenant_job("imports", tenant="tenant")
def leaves_a_block_open(tenant: str) -> None:
    transaction.atomic().__enter__()


@tenant_job("imports", tenant="tenant")
def leaves_transaction_open(tenant: str) -> None:
    transaction.set_autocommit(False)
    list(TenantQueue.objects.all())


@tenant_job("imports", tenant="tenant")
def deletes_its_row(tenant: str) -> None:
    row = TenantQueue.objects.filter(tenant=tenant)
    TenantJob.objects.filter(tenant_queue__in=row)._raw_delete(row.db)
    row._raw_delete(row.db)


@tenant_job("imports", tenant="tenant", retry=Retry(max=3))
def cancels_itself(tenant: str) -> None:
    TenantJob.objects.get(tenant_queue__tenant=tenant).cancel()
    raise RuntimeError("and then it fails")


@tenant_job("imports", tenant="tenant", on_busy="discard")
def only_now(tenant: str) -> str:
    return "ran"


@tenant_job("imports", tenant="tenant")
def enqueues_for(tenant: str, other: str) -> None:
    only_now.enqueue(other)


@tenant_job("imports", tenant="tenant", on_busy=Reschedule(60, jitter=0.5))
def later(tenant: str) -> str:
    return "ran"


@tenant_job("imports", tenant="tenant", on_busy=lambda job, row: job.kwargs["on_busy"] if row.max_job else "discard")
def decides(tenant: str, on_busy: str = "wait") -> str:
    return "ran"


@tenant_job("imports", tenant="tenant", key="user")
def for_user(tenant: str, user: str | int | None, name: str = "", history: str = "", seconds: float = 0.0) -> None:
    if history:
        note(history, "start", tenant, f"{user}/{name}")
        time.sleep(seconds)
        note(history, "end", tenant, f"{user}/{name}")


@tenant_job(
    "imports",
    tenant="tenant",
    retry=Retry(max=1),
    throttle=[
        Throttle(threshold=3, per=timedelta(hours=1), queue="imports_throttled"),
        Throttle(threshold=2, per=timedelta(minutes=1), queue="imports_slow"),
    ],
)
def throttled(tenant: str | None, name: str = "", history: str = "", seconds: float = 0.0, problem: str = "") -> None:
    if history:
        note(history, "start", tenant, name)
        time.sleep(seconds)
        note(history, "end", tenant, name)
    if problem:
        raise RuntimeError(problem)


@tenant_job("imports", tenant="tenant", unique_for=timedelta(minutes=10))
def import_once(tenant: str, path: str = "feed.csv", *parts: str, deep: bool = False, **more: object) -> str:
    return path


@tenant_job("imports", tenant="tenant", unique_for=timedelta(minutes=10), unique_until="start")
def import_again(tenant: str) -> list[str]:
    """The first run enqueues another one; what the rows have meanwhile."""
    if TenantJob.objects.count() == 1:
        import_again.enqueue(tenant)
    return [str(state) for state in TenantJob.objects.order_by("state").values_list("state", flat=True)]


@tenant_job("imports", tenant="tenant")
def take_all(tenant: str, /, **anything: object) -> dict[str, object]:
    return anything


@tenant_job("imports", tenant="tenant", debounce=timedelta(seconds=30), max_wait=timedelta(minutes=5))
def index_shop(tenant: str, version: int = 0) -> int:
    return version


@tenant_job("imports", tenant="tenant", debounce=timedelta(seconds=30))
def index_shop_patiently(tenant: str, version: int = 0) -> int:
    return version


@tenant_job(
    "imports",
    tenant="tenant",
    debounce=timedelta(seconds=30),
    unique_key=lambda tenant, section, *_: section,
)
def index_section(tenant: str, section: object, version: int) -> int:
    return version


@tenant_job("imports", tenant="tenant")
def record_version(tenant: str, version: int) -> int:
    return version


@tenant_job("imports", tenant="tenant", unique_for=timedelta(minutes=10), unique_until="start")
def import_latest(tenant: str, path: str = "feed.csv") -> str:
    return path


@tenant_job("imports", tenant="tenant", unique_for=timedelta(minutes=10), unique_key=lambda tenant, path, **_: path)
def import_path_once(tenant: str, path: object, note: str = "") -> object:
    return path


@tenant_job("imports", tenant="tenant")
async def record_async(tenant: str, name: str, history: str, path: str = "") -> str:
    note(history, "start", tenant, name)
    while path and not Path(path).exists():
        await asyncio.sleep(0.01)
    await TenantQueue.objects.acount()
    note(history, "end", tenant, name)
    return name


@tenant_job("reports", tenant="tenant")
def hold_inside(tenant: str) -> int:
    with hold_slot(tenant, "imports"):
        return int(TenantQueue.objects.get(queue="imports").current_job)


@tenant_job("imports", tenant="tenant")
def reports_progress(tenant: str, rows: int = 1000, error: str = "", **stats: Any) -> None:
    for row in range(1, rows + 1):
        report_progress(row, rows, read=row, **stats)
    if error:
        raise ValueError(error)


@tenant_job("imports", tenant="tenant")
def reports_and_waits(tenant: str, path: str) -> None:
    """Reports inside a transaction that stays open until a file exists."""
    with transaction.atomic():
        list(TenantQueue.objects.all())
        report_progress(1, 2, written=1)
        wait_for_door(path)


@tenant_job("imports", tenant="tenant", retry=Retry(max=1))
def reports_and_retries(tenant: str) -> None:
    job = TenantJob.objects.get(tenant_queue__tenant=tenant)
    if not job.failures:
        report_progress(9, 10, refused=1)
        raise RuntimeError("the first time")
    report_progress(1, 10, read=1)


@tenant_job("imports", tenant="tenant")
async def reports_from_a_coroutine(tenant: str) -> None:
    report_progress(1, 3, read=1)
    await sync_to_async(report_progress)(2, 3)
    await asyncio.create_task(_reports_as_a_task())


async def _reports_as_a_task() -> None:
    report_progress(3, 3, written=1)


@tenant_job("imports", tenant="tenant")
def echo(tenant: str, value: object, more: object = None) -> object:
    return value


@tenant_job("imports", tenant="tenant")
def exits(tenant: str) -> None:
    sys.exit(3)


class OfTheProject(BaseException):
    """Which `except Exception` lets through."""


PROBLEMS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        SystemExit,
        asyncio.CancelledError,
        GeneratorExit,
        ValueError,
        KeyboardInterrupt,
        EndedAtOnce,
        OfTheProject,
    )
}


@tenant_job("imports", tenant="tenant")
def leaves(tenant: str, kind: str) -> None:
    raise PROBLEMS[kind]


def _runs_out_of_time(job: TenantJob, row: TenantQueue) -> str:
    """RQ's own alarm, brought forward."""
    signal.raise_signal(signal.SIGALRM)
    return "wait"


@tenant_job("imports", tenant="tenant", on_busy=_runs_out_of_time)
def runs_out_of_time_while_it_decides(tenant: str) -> None: ...


@tenant_job("imports", tenant="tenant")
def enqueues_for_somebody_slow(tenant: str, other: str) -> None:
    runs_out_of_time_while_it_decides.enqueue(other)


def _raises(job: TenantJob, row: TenantQueue) -> str:
    raise PROBLEMS[job.kwargs["kind"]]


@tenant_job("imports", tenant="tenant", on_busy=_raises)
def leaves_while_it_decides(tenant: str, kind: str) -> None: ...


@tenant_job("imports", tenant="tenant")
def wants_a_week(tenant: str) -> None:
    raise TenantBusy(seconds=7 * 86400)


@tenant_job("imports", tenant="tenant")
async def wants_a_week_slowly(tenant: str) -> None:
    raise await sync_to_async(TenantBusy)(seconds=7 * 86400)
