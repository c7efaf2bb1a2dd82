"""Every wrong use has one clear error, and nothing is stored half."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import django_rq
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from django.urls import reverse
from django.utils.timezone import now
from django.utils.translation import gettext_lazy
from rq import Retry

from tenant_slots import Reschedule, TenantBusy, Throttle, exceptions, hold_slot, tenant_job
from tenant_slots.models import TenantJob, TenantQueue
from tenant_slots.testing import enqueued
from tests import jobs
from tests.factories import fresh, in_rq, tenant_queue, work
from tests.processes import ROOT


async def async_generator(tenant: str) -> Any:
    yield tenant


def generator(tenant: str) -> Any:
    yield tenant


def good(tenant: str, *rest: str, **more: str) -> None: ...


class NoModel:
    def method(self, tenant: str) -> None: ...

    def without_tenant(self) -> None: ...


def nested() -> Any:
    def inner(tenant: str) -> None: ...

    return inner


@pytest.mark.parametrize(
    ("function", "tenant", "problem"),
    [
        (async_generator, "tenant", "async generator"),
        (generator, "tenant", "generator"),
        (lambda tenant: None, "tenant", "lambda or a nested function"),
        (nested(), "tenant", "lambda or a nested function"),
        (NoModel.without_tenant, "tenant", "no argument 'tenant'"),
        (NoModel, "tenant", "not a function"),
        (len, "tenant", "not a function"),
        (good, "tennant", "no argument 'tennant'"),
        (good, None, "no argument None"),
        (good, "rest", "collects several"),
        (good, "more", "collects several"),
    ],
)
def test_a_function_that_cannot_be_a_job_is_refused_at_import(function: Any, tenant: Any, problem: str) -> None:
    with pytest.raises(exceptions.ImproperJob, match=problem):
        tenant_job("imports", tenant=tenant)(function)


@pytest.mark.parametrize("queue", ["", None, 3])
def test_a_queue_that_is_not_a_name_is_refused_at_import(queue: Any) -> None:
    with pytest.raises(exceptions.ImproperJob, match="queue"):
        tenant_job(queue, tenant="tenant")(good)


@pytest.mark.parametrize(
    "options",
    [{"timeout": "1h"}, {"timeout": 0}, {"timeout": -2}, {"timeout": 2**31}, {"result_ttl": 2**31},
     {"result_ttl": -2}, {"failure_ttl": 10**30}, {"failure_ttl": -(10**30)}, {"result_ttl": True},
     {"failure_ttl": 1.5}, {"description": 3}, {"meta": []}, {"meta": {"when": object()}}, {"retry": 3},
     {"on_busy": "drop"}, {"on_busy": 60}, {"on_busy": asyncio.sleep}, {"throttle": "imports_slow"},
     {"throttle": [("imports_slow", 3)]}, {"unique_for": 600}, {"unique_for": timedelta(0)},
     {"unique_for": timedelta.max}, {"unique_key": "path", "unique_for": timedelta(1)},
     {"unique_key": str}, {"key": 7}, {"on_busy": lambda job: "wait"}, {"on_success": lambda job: None},
     {"on_failure": lambda job, error, more: None}],
)  # fmt: skip
def test_an_option_with_a_wrong_value_is_refused_at_import(options: Any) -> None:
    with pytest.raises(exceptions.InvalidOption, match=next(iter(options))):
        tenant_job("imports", tenant="tenant", **options)(good)


def test_a_callback_may_have_more_from_a_decorator_of_its_own() -> None:
    around = patch("os.getpid")(lambda job, what, getpid: "wait")
    assert "getpid" in str(inspect.signature(around)), "control"
    tenant_job("imports", tenant="tenant", on_success=around, on_failure=around, on_busy=around)(good)


@pytest.mark.parametrize(
    ("option", "value"),
    [("threshold", -1), ("threshold", 1.5), ("threshold", True), ("threshold", 10**9), ("per", 60),
     ("per", timedelta(0)), ("per", timedelta.max), ("queue", ""), ("queue", None)],
)  # fmt: skip
def test_a_throttle_with_a_wrong_value_is_refused_where_it_is_written(option: str, value: Any) -> None:
    right = {"threshold": 10, "per": timedelta(minutes=1), "queue": "imports_slow"}
    with pytest.raises(exceptions.InvalidOption, match=option):
        Throttle(**{**right, option: value})


@pytest.mark.parametrize(
    "options",
    [{"timeout": -1}, {"timeout": "5"}, {"timeout": 10**400}, {"timeout": 10**5000}, {"priority": "high"}, {"key": 7},
     {"queue": []}],
)  # fmt: skip
def test_hold_slot_refuses_a_wrong_option_before_it_stores_anything(options: Any, db: None) -> None:
    given = {"tenant": "acme", "queue": "imports", **options}
    with pytest.raises(exceptions.InvalidOption, match=next(iter(options))), hold_slot(**given):
        pass
    assert not TenantJob.objects.exists()


def test_valid_options_are_accepted() -> None:
    task = tenant_job(
        "imports",
        tenant="tenant",
        timeout=-1,
        result_ttl=0,
        failure_ttl=5,
        description="d",
        meta={"a": 1},
        retry=Retry(2),
    )(good)
    assert task.tenant_task.stored_options["retry"] == {"max": 2, "intervals": [0]}


@pytest.mark.parametrize(
    "override",
    [{"priority": "high"}, {"priority": True}, {"run_after": "tomorrow"}, {"run_after": datetime(2030, 1, 1)},
     {"queue": 3}, {"key": 7}, {"priority": 2**31}, {"key": "k" * 256}, {"priority": 10**5000}, {"key": 10**5000},
     {"retry": Retry(True)}, {"retry": Retry(1.5)}, {"retry": Retry(2**31)}, {"retry": Retry(10**5000)},
     {"meta": {10**5000: 1}}],
)  # fmt: skip
def test_using_refuses_a_wrong_value_before_anything_is_enqueued(override: Any) -> None:
    with pytest.raises(exceptions.InvalidOption, match=next(iter(override))):
        jobs.add.using(**override)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("argument", "value", "problem"),
    [
        ("message", object(), "a object"),
        ("message", Decimal("1.5"), "Decimal"),
        ("message", ("a", "b"), "pass a list"),
        ("message", {"a"}, "pass a list"),
        ("message", {1: "a"}, "keys are texts"),
        ("message", [{"deep": [b"bytes"]}], "bytes"),
        ("message", float("nan"), "not a JSON number"),
        ("message", "NUL \0", "NUL"),
        ("message", "\ud800", "surrogate"),
    ],
)
def test_an_argument_that_is_not_json_is_refused_by_name(argument: str, value: Any, problem: str) -> None:
    for call in (lambda: jobs.fail.enqueue("acme", **{argument: value}), lambda: jobs.fail.enqueue("acme", value)):
        with pytest.raises(exceptions.ArgumentNotJSON, match=f"'{argument}'.*{problem}"):
            call()
    assert not TenantJob.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("name", "problem"), [("a\0b", "NUL"), ("\ud800", "surrogate")], ids=["NUL", "surrogate"])
def test_a_name_of_an_argument_that_cannot_be_stored_is_refused(name: str, problem: str) -> None:
    for enqueue in (jobs.import_once.enqueue, jobs.take_all.enqueue):
        with pytest.raises(exceptions.ArgumentNotJSON, match=problem):
            enqueue("acme", **{name: 1})
    assert not TenantJob.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["self", "cls", "args", "kwargs", "task", "func", "", "a b"])
def test_a_function_that_takes_any_name_takes_those_that_ours_have(name: str) -> None:
    any_name = {name: 1}
    enqueued = [
        jobs.take_all.enqueue("acme", **any_name),
        jobs.take_all.delay("acme", **any_name),
        *jobs.take_all.enqueue_many([jobs.take_all.call("acme", **any_name)]),
        async_to_sync(partial(jobs.take_all.aenqueue, "acme", **any_name))(),
    ]
    work("imports")
    assert [fresh(job).result for job in enqueued] == [any_name] * 4
    assert jobs.take_all("acme", **any_name) == any_name


def nest(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.django_db(transaction=True)
def test_an_argument_that_is_too_deep_to_be_read_again_is_refused_whatever_this_process_could_write() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        for value in (nest(501), nest(950), nest(5000), {"a": nest(600)}):
            with pytest.raises(exceptions.ArgumentNotJSON, match=r"'message'.*500 levels"):
                jobs.fail.enqueue("acme", message=value)
    finally:
        sys.setrecursionlimit(before)
    holds_itself: list[Any] = []
    holds_itself.extend([holds_itself, holds_itself])
    with pytest.raises(exceptions.ArgumentNotJSON, match="holds itself"):
        jobs.fail.enqueue("acme", message=holds_itself)
    assert not TenantJob.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_control_the_deepest_argument_there_may_be_comes_back_equal_and_is_shown(boss: Client) -> None:
    value = nest(450)
    job = jobs.say_message.enqueue("acme", value)
    work("reports")
    job.refresh_from_db()
    assert (job.state, job.result) == ("finished", value)
    assert boss.get(reverse("admin:tenant_slots_tenantjob_change", args=[job.pk])).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_enqueue_many_with_one_wrong_call_stores_nothing() -> None:
    with pytest.raises(exceptions.ArgumentNotJSON):
        jobs.fail.enqueue_many([(("acme",), {}), (("acme", object()), {})])
    assert not TenantJob.objects.exists()
    assert not TenantQueue.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_arguments_over_the_limit_are_refused_with_their_size() -> None:
    with pytest.raises(exceptions.ArgumentsTooLarge, match="65536"):
        jobs.fail.enqueue("acme", "x" * 70_000)


@pytest.mark.django_db(transaction=True)
def test_arguments_are_as_large_as_what_the_database_is_sent() -> None:
    """Of a float, all of its digits."""
    with pytest.raises(exceptions.ArgumentsTooLarge, match=r"take 31\d{4} bytes"):
        jobs.fail.enqueue("acme", [1e308] * 1000)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("tenant", "problem"),
    [
        ("t" * 256, "256 characters, at most 255"),
        ("t" * 10_000, "10000 characters"),
        ("NUL \0", "cannot store"),
        ("\ud800", "cannot store"),
        (True, "a str, an int or a UUID"),
        (1.5, "a str, an int or a UUID"),
        (["acme"], "a str, an int or a UUID"),
        (10**300, "301 characters, at most 255"),
        (-(10**5000), "a str, an int or a UUID"),
        ("tenant_slots.admin", "of what staff have confirmed"),
    ],
    ids=range(10),
)
def test_an_invalid_tenant_is_refused(tenant: Any, problem: str) -> None:
    with pytest.raises(exceptions.InvalidTenant, match=problem):
        jobs.add.enqueue(1, 2, tenant=tenant)
    with pytest.raises(exceptions.InvalidTenant, match=problem), hold_slot(tenant, "imports"):
        pass
    assert not TenantQueue.objects.exists()


class Name(str, Enum):  # noqa: UP042 - as it was written before Python 3.11
    ACME = "acme"


class Number(int, Enum):
    SEVEN = 7


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("member", "text"), [(Name.ACME, "acme"), (Number.SEVEN, "7")])
def test_a_member_of_an_enum_names_what_its_value_names(member: Any, text: str) -> None:
    """As its argument does, which JSON keeps. `str` gives the member's own name."""
    with hold_slot(member, "imports") as reservation:
        assert reservation.job.tenant_queue.tenant == text
    job = jobs.for_user.enqueue(member, member)
    assert (job.tenant_queue.tenant, job.key, job.args) == (text, text, [member.value] * 2)
    assert enqueued(tenant=member) == [job]


class Queues(str, Enum):  # noqa: UP042 - as above
    IMPORTS = "imports"
    SLOW = "imports_slow"


@pytest.mark.django_db(transaction=True)
def test_a_member_of_an_enum_is_the_queue_that_its_value_is() -> None:
    redis = django_rq.get_connection("imports")
    always = [Throttle(0, timedelta(hours=1), Queues.SLOW)]
    jobs.add.using(queue=Queues.IMPORTS).enqueue(1, 2, tenant="acme")
    throttled = tenant_job(Queues.IMPORTS, tenant="tenant", throttle=always)(good)
    throttled.enqueue("beta")
    throttled.enqueue("beta")
    with hold_slot("gamma", Queues.IMPORTS):
        pass
    names = b" ".join(redis.keys("*"))
    assert b"rq:queue:imports " in names + b" "
    assert b"Queues" not in names, "a list to which no worker listens"


@pytest.mark.django_db(transaction=True)
def test_hostile_tenants_are_only_text() -> None:
    hostile = ["<script>alert(1)</script>", "a'; DROP TABLE x; --", "\u202egnp.exe", "a\r\nb", "%s %(x)s {0}"]
    for tenant in hostile:
        jobs.add.enqueue(1, 2, tenant=tenant)
    work()
    assert set(TenantQueue.objects.values_list("tenant", flat=True)) == set(hostile)
    assert set(TenantJob.objects.values_list("state", flat=True)) == {"finished"}


@pytest.mark.django_db(transaction=True)
def test_arguments_that_do_not_fit_the_function_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected"):
        jobs.fail.enqueue("acme", unexpected=1)


@pytest.mark.django_db(transaction=True)
def test_a_queue_that_rq_does_not_have_is_refused() -> None:
    with pytest.raises(exceptions.UnknownQueue, match=r"'nowhere'.*imports"):
        jobs.add.using(queue="nowhere").enqueue(1, 2, tenant="acme")


@pytest.mark.django_db(transaction=True)
def test_a_missing_tenant_is_an_error_when_tenants_are_required() -> None:
    with override_settings(TENANT_SLOTS={"REQUIRE_TENANT": True}), pytest.raises(exceptions.TenantMissing, match="add"):
        jobs.add.enqueue(1, 2)


@pytest.mark.django_db(transaction=True)
def test_an_unknown_tenant_is_an_error_when_rows_are_made_by_hand() -> None:
    with override_settings(TENANT_SLOTS={"AUTO_CREATE": False}):
        with pytest.raises(exceptions.UnknownTenantQueue, match="'acme'"):
            jobs.add.enqueue(1, 2, tenant="acme")
        tenant_queue("acme", queue="reports")
        jobs.add.enqueue(1, 2, tenant="acme")
    assert TenantJob.objects.count() == 1


def limit_of(tenant: str, queue: str) -> Any:
    return {"big": 7, "odd": "many"}.get(tenant, 2)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("default", "expected"), [(5, 5), ({"reports": 4}, 4), ({"imports": 4}, 1), ("tests.test_bad_input.limit_of", 7)]
)
def test_the_default_limit_is_a_number_or_one_per_queue_or_a_callable(default: Any, expected: int) -> None:
    with override_settings(TENANT_SLOTS={"DEFAULT_MAX_JOB": default}):
        jobs.add.enqueue(1, 2, tenant="big")
    assert TenantQueue.objects.get().max_job == expected


@pytest.mark.django_db(transaction=True)
def test_a_callable_that_gives_no_limit_is_named_and_nothing_is_stored() -> None:
    configured = override_settings(TENANT_SLOTS={"DEFAULT_MAX_JOB": "tests.test_bad_input.limit_of"})
    with configured, pytest.raises(exceptions.InvalidLimit, match="'many'"):
        jobs.add.enqueue(1, 2, tenant="odd")
    assert not TenantQueue.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "task", ["os.system", "subprocess.run", "tests.jobs.note", "tests.jobs", "nowhere.at_all", "x", ""]
)
def test_a_forged_row_cannot_name_another_callable(task: str, tmp_path: Path) -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    TenantJob.objects.filter(pk=job.pk).update(task=task, args=[f"touch {tmp_path}/owned"], kwargs={})
    with override_settings(TENANT_SLOTS={"UNKNOWN_TASK_WAIT": 0}):
        work()
    job.refresh_from_db()
    assert job.state == "failed"
    assert "UnknownJob" in job.error
    assert not (tmp_path / "owned").exists()


@pytest.mark.django_db(transaction=True)
def test_a_forged_attempt_runs_nothing() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    queue = django_rq.get_queue("reports")
    queue.empty()
    for attempt in (0, 2, 99):
        queue.enqueue("tenant_slots.run_job", str(job.uuid), attempt)
    work()
    job.refresh_from_db()
    assert job.state == "queued"


@pytest.mark.django_db(transaction=True)
def test_the_same_rq_job_delivered_five_times_runs_once() -> None:
    job = jobs.add.enqueue(1, 2, tenant="acme")
    queue = django_rq.get_queue("reports")
    for _ in range(4):
        queue.push_job_id(queue.job_ids[0])
    assert in_rq("reports") == 5
    work()
    job.refresh_from_db()
    assert (job.state, job.attempt, job.tenant_queue.current_job) == ("finished", 1, 0)


def test_enqueue_before_migrate_says_what_to_run(tmp_path: Path) -> None:
    code = (
        "import django; django.setup()\n"
        "from tests.jobs import add\n"
        "from tenant_slots.exceptions import NotMigrated\n"
        "try:\n    add.enqueue(1, 2, tenant='acme')\n"
        "except NotMigrated as error:\n    print(error)\n"
    )
    from tests.processes import environment

    values = {**environment(), "DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=values, capture_output=True, text=True, check=True, timeout=60
    )
    assert "run: python manage.py migrate --database default" in output.stdout


@pytest.mark.parametrize("key", ["\ud800", "a\0b", "x" * 256, 7])
def test_a_concurrency_key_that_no_database_stores_is_refused(key: Any) -> None:
    with pytest.raises(exceptions.InvalidOption, match=r"^key="):
        jobs.for_user.using(key=key)
    with pytest.raises(exceptions.InvalidOption, match="key"), hold_slot("acme", "imports", key=key):
        pass


def test_a_function_whose_path_is_too_long_for_its_column_is_refused_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(good, "__qualname__", "x" * 255)
    with pytest.raises(exceptions.ImproperJob, match=r"has 2[67][0-9] characters, at most 255"):
        tenant_job("imports", tenant="tenant")(good)
    monkeypatch.setattr(good, "__qualname__", "x" * (254 - len(good.__module__)))
    tenant_job("imports", tenant="tenant")(good)


@pytest.mark.django_db(transaction=True)
def test_a_function_of_the_program_that_runs_here_is_refused_when_it_is_enqueued(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that somebody defines in a shell or a script: a worker's program is another one."""
    monkeypatch.setattr(good, "__module__", "__main__")
    decorated: Any = tenant_job("imports", tenant="tenant")(good)
    decorated("acme")
    with pytest.raises(exceptions.ImproperJob, match=r"good: it is in the program that runs here.*; move it"):
        decorated.enqueue("acme")
    assert not TenantJob.objects.exists()
    settings.TENANT_SLOTS = {"IMMEDIATE": True}
    assert fresh(decorated.enqueue("acme")).state == "finished"


IN_SHELL = """
from tenant_slots import tenant_job

@tenant_job("imports", tenant="tenant")
def told(tenant): ...

told.enqueue("acme")
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("shell", [lambda: call_command("shell", command=IN_SHELL, verbosity=0), lambda: interact()])
def test_a_function_of_the_shell_of_django_is_refused_when_it_is_enqueued(shell: Callable[[], object]) -> None:
    with pytest.raises(exceptions.ImproperJob, match="told: it is in the program that runs here"):
        shell()
    assert not TenantJob.objects.exists()


def interact() -> None:
    """As the plain shell does with each input: its variables have no name of a module."""
    exec(IN_SHELL, {})  # noqa: S102


@pytest.mark.django_db(transaction=True)
def test_a_queue_whose_name_is_too_long_for_its_column_is_refused(settings: Any) -> None:
    name = "q" * 101
    settings.RQ_QUEUES = {**settings.RQ_QUEUES, name: settings.RQ_QUEUES["imports"]}
    for call in (
        lambda: jobs.add.using(queue=name).enqueue(1, 2, tenant="acme"),
        lambda: hold_slot("acme", name).__enter__(),
        lambda: call_command("slots_limit", "acme", name, "3"),
    ):
        with pytest.raises((exceptions.InvalidOption, CommandError), match=r"queue.*101 characters, at most 100"):
            call()
    assert not TenantQueue.objects.exists()


@pytest.mark.parametrize("queue", ["\ud800", "a\0b"])
def test_a_queue_that_no_database_stores_is_unknown(queue: str) -> None:
    with pytest.raises(exceptions.UnknownQueue):
        jobs.add.using(queue=queue).enqueue(1, 2, tenant="acme")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", ["\ud800", "a\0b", "x" * 256])
def test_a_derived_key_that_does_not_fit_is_refused_and_a_unique_key_may_be_any_text(key: str) -> None:
    with pytest.raises((exceptions.InvalidKey, exceptions.ArgumentNotJSON)):
        jobs.for_user.enqueue("acme", key)
    task = tenant_job("imports", tenant="tenant", unique_for=timedelta(1), unique_key=lambda *_, **__: key)(good)
    assert task.enqueue("acme") == task.enqueue("acme", "another")


async def coroutine() -> None: ...


class CallsAsync:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "problem"),
    [(generator, "generator"), (async_generator, "async generator"), (coroutine, "coroutine"),
     (partial(coroutine), "coroutine"), (CallsAsync(), "coroutine"), (jobs.record_async, "coroutine"),
     (staticmethod(coroutine), "coroutine"), (classmethod(generator), "generator"),
     (partial(staticmethod(async_generator)), "async generator")],
)  # fmt: skip
def test_hold_slot_is_no_decorator_for_what_runs_after_it_was_called(function: Any, problem: str) -> None:
    with pytest.raises(exceptions.ImproperJob, match=rf"hold_slot.*{problem}"):
        hold_slot("acme", "imports")(function)


class Later:
    """As a future or a task of asyncio."""

    def __await__(self) -> Any: ...


def timed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function, as many decorators make one."""

    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return call


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("function", "problem"),
    [(timed(coroutine), "coroutine"), (lambda: (number for number in range(3)), "generator"),
     (timed(partial(generator, "acme")), "generator"), (timed(partial(async_generator, "acme")), "async generator"),
     (contextmanager(partial(generator, "acme")), "context manager"), (Later, "awaitable"),
     (asynccontextmanager(partial(async_generator, "acme")), "context manager")],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_hold_slot_refuses_what_a_call_returns_to_run_later(function: Any, problem: str) -> None:
    with pytest.raises(exceptions.ImproperReservation, match=rf"hold_slot.*it returned an? {problem}"):
        hold_slot("acme", "imports")(function)()
    job = TenantJob.objects.get()
    assert (job.state, job.error_class) == ("failed", "tenant_slots.exceptions.ImproperReservation")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("function", [wraps(coroutine)(lambda: asyncio.run(coroutine())), nullcontext])
def test_hold_slot_is_a_decorator_for_what_completes_a_coroutine_or_returns_what_others_enter(
    function: Callable[[], Any],
) -> None:
    hold_slot("acme", "imports")(function)()
    assert TenantJob.objects.get().state == "finished"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * 10_000])
def test_the_name_of_whoever_changes_a_limit_may_be_any_text(name: str) -> None:
    row = tenant_queue()
    row.set_limit(5, by=name, reason=name)
    row.set_override(7, now() + timedelta(1), by=name, reason=name)
    row.refresh_from_db()
    assert (row.max_job, row.limit_set_by[:1]) == (7, "\\" if name == "\ud800" else name[0])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", ["by", "reason"])
@pytest.mark.parametrize("value", [None, 7, User(username="eve")])
def test_who_changes_a_limit_and_why_is_said_in_text(name: str, value: Any) -> None:
    row = tenant_queue()
    for change in (partial(row.set_limit, 5), row.pause):
        with pytest.raises(exceptions.InvalidOption, match=f"{name}=.*of type str"):
            change(**{name: value})
    row.refresh_from_db()
    assert (row.max_job, row.paused) == (1, False)
    text: Any = {name: gettext_lazy("paused")}
    row.set_limit(5, **text)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_python_does_not_write_is_refused_as_any_other(sign: int) -> None:
    unwritten = sign * 10**5000
    row = tenant_queue()
    minute = timedelta(minutes=1)
    for change in (
        row.set_limit,
        row.set_share,
        row.set_max_job_per_key,
        row.set_max_waiting,
        lambda number: row.set_rate(number, per=minute),
        lambda number: row.set_rate(5, per=minute, burst=number),
        lambda number: row.set_override(number, now() + minute),
        lambda number: Reschedule(number),
    ):
        with pytest.raises(exceptions.TenantSlotsError, match="a int that cannot be shown"):
            change(unwritten)
    assert TenantBusy(seconds=unwritten).seconds == (86_400 if sign > 0 else 1)  # a partner may say anything


def test_the_message_of_an_error_is_short_whatever_it_is_about() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    values: list[Any] = ["x" * 10**6, ["x"] * 10**6, Odd()]
    for value in values:
        with pytest.raises(exceptions.InvalidOption, match="key=") as caught:
            jobs.for_user.using(key=value)
        assert len(str(caught.value)) < 500
        assert vars(caught.value)["value"] is value
