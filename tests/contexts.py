"""Contexts that tests configure: what is noted at enqueue, and entered around a job."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.utils import timezone, translation
from rq import Retry

from tenant_slots import tenant_job
from tenant_slots.models import TenantJob, TenantQueue

request_id: ContextVar[str] = ContextVar("request_id", default="none")
"""Of the request that is answered, or on whose behalf a job runs."""

of_thread = threading.local()
calls: list[str] = []
"""How often what was called."""

entered: list[str] = []
"""What was entered and left, in its order, by tests that run jobs in this process."""

PATH = "tests.contexts."


def capture() -> dict[str, Any]:
    calls.append("capture")
    return {"request_id": request_id.get()}


def capture_number() -> dict[str, Any]:
    return {"number": -0.0, "large": 1e23, "nested": {"list": [1, None, "ä"]}}


def capture_twice() -> dict[str, Any]:
    return {"request_id": "again"}


def capture_list() -> list[str]:
    return ["no", "dict"]


def capture_object() -> dict[str, Any]:
    return {"who": object()}


def capture_much() -> dict[str, Any]:
    return {"text": "x" * 70_000}


def capture_digits() -> dict[str, Any]:
    """Short in Python, and not in the database."""
    return {"numbers": [1e308] * 1000}


def capture_wrongly() -> dict[str, Any]:
    raise LookupError("nobody is signed in")


@contextmanager
def job_context(job: TenantJob) -> Iterator[None]:
    token = request_id.set(job.context.get("request_id", "nothing captured"))
    entered.append("enter")
    try:
        yield
    finally:
        entered.append("exit")
        request_id.reset(token)


@contextmanager
def inner(job: TenantJob) -> Iterator[None]:
    entered.append(f"inner in {request_id.get()}")
    yield
    entered.append("inner left")


@contextmanager
def refusing(job: TenantJob) -> Iterator[None]:
    raise PermissionError("no such customer")
    yield


@contextmanager
def failing_at_its_end(job: TenantJob) -> Iterator[None]:
    yield
    raise OSError("the trace could not be sent")


@contextmanager
def swallowing(job: TenantJob) -> Iterator[None]:
    try:
        yield
    except Exception:
        entered.append("swallowed")


@contextmanager
def hearing(job: TenantJob) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        entered.append(f"heard {type(error).__name__}")
        raise


@contextmanager
def hearing_per_thread(job: TenantJob) -> Iterator[None]:
    with hearing(job):
        yield


hearing_per_thread.tenant_slots_per_thread = True  # type: ignore[attr-defined]


def no_manager(job: TenantJob) -> None: ...


class NoManager:
    def __init__(self, job: TenantJob) -> None: ...


@asynccontextmanager
async def manager_for_async_code(job: TenantJob) -> AsyncIterator[None]:
    entered.append("entered")
    yield


def generator(job: TenantJob) -> Iterator[None]:
    yield


async def asynchronous(job: TenantJob) -> None: ...


class PerThread(AbstractContextManager[None]):
    """Sets something of the thread in which it is entered, as the schema of a database connection is."""

    tenant_slots_per_thread = True

    def __init__(self, job: TenantJob) -> None:
        self._name = job.context.get("request_id")

    def __enter__(self) -> None:
        of_thread.name = self._name

    def __exit__(self, *error: object) -> None:
        of_thread.name = None


class OnlyHere(PerThread):
    """The same without the mark."""

    tenant_slots_per_thread = False


def seen() -> str | None:
    return getattr(of_thread, "name", None)


@tenant_job("imports", tenant="tenant")
def say(tenant: str, repeat: int = 1) -> str:
    entered.append("run")
    return " ".join([request_id.get()] * repeat)


@tenant_job("imports", tenant="tenant")
def raising(tenant: str) -> None:
    entered.append("run")
    raise ValueError("the feed is empty")


@tenant_job("imports", tenant="tenant")
async def raising_later(tenant: str) -> None:
    raising(tenant)


@tenant_job("imports", tenant="tenant")
async def say_from_threads(tenant: str) -> list[str | None]:
    return [request_id.get(), seen(), await sync_to_async(seen)()]


def remember(job: TenantJob, row: TenantQueue) -> str:
    entered.append(f"asked for {request_id.get()}")
    return "discard"


@tenant_job("imports", tenant="tenant", on_busy=remember)
def ask(tenant: str) -> None: ...


@tenant_job("imports", tenant="tenant", retry=Retry(max=1, interval=3600))
def say_again(tenant: str) -> None:
    entered.append("run")


@tenant_job("imports", tenant="tenant")
def say_where(tenant: str) -> list[str]:
    return [translation.get_language(), str(timezone.get_current_timezone())]


@tenant_job("imports", tenant="tenant")
async def say_where_later(tenant: str) -> list[str]:
    await sync_to_async(say_where)(tenant)
    return say_where(tenant)
