"""The Tasks that tests enqueue, as a project would write them."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from rq import Retry

from tenant_slots import TenantBusy, tenant_job, tenant_scope
from tenant_slots.models import TenantJob
from tests.django_tasks.api import TaskContext, task
from tests.jobs import note, wait_for_door


@task(queue_name="imports")
def add(tenant_id: str, a: int, b: int = 1) -> int:
    return a + b


def _add(tenant_id: str, a: int, b: int = 1) -> int:
    return a + b


add_under_another_name = task(queue_name="imports")(_add)
"""Which no worker finds: its path is that of the function."""


@task(queue_name="imports")
async def add_slowly(tenant_id: str, a: int, b: int = 1) -> int:
    return a + b


@task(queue_name="imports", takes_context=True)
def who_am_i(context: TaskContext, tenant_id: str) -> list[Any]:
    result = context.task_result
    return [result.id, str(result.status), context.attempt, result.worker_ids, result.args]


@task(queue_name="imports")
def ping(*args: Any, **kwargs: Any) -> str:
    return "pong"


@task(queue_name="imports")
def named(tenant_id: str, path: str, function: str, **others: Any) -> list[Any]:
    return [path, function, others]


@task(queue_name="imports")
def receive(tenant_id: str, /, **payload: Any) -> dict[str, Any]:
    """What somebody sends, whatever names that has."""
    return payload


@task(queue_name="imports", takes_context=True)
def receive_in_context(context: TaskContext, tenant_id: str, **payload: Any) -> dict[str, Any]:
    return payload


@task(queue_name="imports")
def receive_from(*senders: str, **shop: Any) -> list[Any]:
    return [senders, shop]


@task(queue_name="imports")
def ping_of_nobody(tenant_id: str) -> None:
    ping.enqueue()


@task(queue_name="imports")
def ping_of(tenant_id: str, tenant: str) -> None:
    with tenant_scope(tenant):
        ping.enqueue()


@task(queue_name="imports")
def fail(tenant_id: str, message: str = "no such feed") -> None:
    raise ValueError(message)


@task(queue_name="imports")
def ask_partner(tenant_id: str, token: str) -> None:
    raise ConnectionError("the partner is away")


@task(queue_name="imports")
def exit_at_once(tenant_id: str) -> None:
    raise SystemExit("enough")


@task(queue_name="imports")
def give(tenant_id: str, what: str) -> Any:
    endless: list[Any] = []
    endless.append(endless)
    return {
        "set": {1},
        "endless": endless,
        "tuple": (1, (2,)),
        "large": "x" * 2_000_000,
        "nan": float("nan"),
        "bytes": b"abc",
        "keys": [{1: {"a": {2.5: 3}}, False: 4, None: 5}],
    }[what]


@task(queue_name="imports", takes_context=True)
@tenant_job("imports", tenant="shop", key="user", retry=Retry(max=2), timeout=77)
def flaky(context: TaskContext, shop: str, user: str, works_at: int) -> int:
    """Works at this attempt, and not before."""
    if context.attempt < works_at:
        raise ConnectionError(f"attempt {context.attempt}")
    return context.attempt


seen: dict[str, list[int]] = {}


@task(queue_name="imports", takes_context=True)
@tenant_job("imports", tenant="shop", retry=Retry(max=5))
def comes_again(context: TaskContext, shop: str, ends: list[str]) -> Any:
    """Each run ends as the next of `ends` says, and the one after them well, with all attempts."""
    attempts = seen.setdefault(context.task_result.id, [])
    attempts.append(context.attempt)
    end = ends[len(attempts) - 1] if len(attempts) <= len(ends) else ""
    if end == "busy":
        raise TenantBusy(seconds=1)
    if end == "raises":
        raise ConnectionError("no line")
    return Retry(max=5) if end == "again" else attempts


@task(queue_name="imports", takes_context=True)
def ends_though_canceled(context: TaskContext, tenant_id: str) -> int:
    """Somebody cancels it, and it has ended before anybody could stop it."""
    TenantJob.objects.get(uuid=context.task_result.id).cancel()
    return context.attempt


@task(queue_name="imports")
@tenant_job("imports", tenant="shop", debounce=timedelta(seconds=30))
def sum_up(shop: str) -> None: ...


@task(queue_name="imports")
@tenant_job("imports", tenant="shop", unique_for=timedelta(hours=1))
def tidy_up(shop: str) -> str:
    return f"{shop} is tidy"


@task
@tenant_job("imports", tenant="shop")
def open_up(shop: str) -> None:
    """Leaves the queue to the decorator inside."""


@task(queue_name="imports")
@tenant_job("imports", tenant="shop", on_busy="discard")
def not_twice(shop: str) -> None: ...


@tenant_job("imports", tenant="context")
def by_context(context: TaskContext, shop: str) -> None: ...


@tenant_job("imports", tenant="shop", key="context")
def with_context_as_key(context: TaskContext, shop: str) -> None: ...


def doubled(function: Callable[..., int]) -> Callable[..., int]:
    """As the decorators of other packages are."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> int:
        return 2 * function(*args, **kwargs)

    return run


@task(queue_name="imports", takes_context=True)
@doubled
@tenant_job("imports", tenant="shop")
def add_and_double(context: TaskContext, shop: str, a: int) -> int:
    return a + context.attempt


@task(queue_name="imports", takes_context=True)
def sign_in(context: TaskContext, tenant_id: str, password: str) -> None:
    """What is secret has the same place for the admin, whether or not the function takes its context."""


@task(queue_name="imports")
def record(tenant_id: str, name: str, history: str, path: str = "", seconds: float = 0.0) -> str:
    note(history, "start", tenant_id, name)
    time.sleep(seconds)
    if path:
        wait_for_door(path)
    note(history, "end", tenant_id, name)
    return name


@task(queue_name="imports")
def kill_me(tenant_id: str, history: str, deaths: int) -> str:
    """Its process dies so many times."""
    note(history, "start", tenant_id, "kill_me")
    if Path(history).read_text().count("start") <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"
