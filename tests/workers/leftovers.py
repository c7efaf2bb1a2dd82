"""What a job may leave in its process, each with how the next one would see it."""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import decimal
import fcntl
import io
import locale
import os
import platform
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone, translation

from tenant_slots import tenant_job
from tenant_slots.models import TenantJob, TenantQueue
from tests.faults.observer import is_gone

WRITTEN = "written in a transaction that nobody commits"
VARIABLE: ContextVar[str] = ContextVar("variable", default="nothing")

OUT_OF_MEMORY = Path("/proc/self/oom_score_adj")
"""How soon the system ends a process where memory is short."""

left: list[object] = []
"""Keeps what a job leaves from being collected."""


class Leftover(NamedTuple):
    leave: Callable[[], object]
    see: Callable[[], object]


def sql(statement: str, alias: str = "default") -> Any:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


def _leave_atomic_open() -> None:
    block = transaction.atomic()
    block.__enter__()
    left.append(block)
    _write()


def _leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    _write()


def _leave_plain_begin_open() -> None:
    sql("BEGIN")
    _write()


def _write() -> None:
    TenantQueue.objects.create(tenant=WRITTEN, queue="reports")


def _sees_transaction() -> list[object]:
    """By the row too: to whoever is in the transaction it is there."""
    is_written = TenantQueue.objects.filter(tenant=WRITTEN).exists()
    return [is_written, connection.in_atomic_block, connection.get_autocommit()]


def _start_timer(timer: int, number: int) -> Callable[[], None]:
    def start() -> None:
        signal.signal(number, signal.SIG_IGN)
        signal.setitimer(timer, 3600)

    return start


def _in_other_database(statement: str) -> Callable[[], Any]:
    """In a connection of another alias, which stays open as long as a project likes."""

    def execute() -> Any:
        connections.databases.setdefault("other", {**connections.databases["default"], "CONN_MAX_AGE": None})
        return sql(statement, "other")

    return execute


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _leave_blocked_alarm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    os.kill(os.getpid(), signal.SIGALRM)


def _have_variables_of_its_own() -> None:
    """As who means that there they are changed for Python alone."""
    os.environ = os.environ.copy()  # type: ignore[assignment]  # noqa: B003


def _live_in_tokyo() -> None:
    os.environ["TZ"] = "JST-9"
    time.tzset()


def _live_in_tokyo_by_c() -> None:
    os.putenv("TZ", "JST-9")
    time.tzset()


def _told_to_a_program() -> str:
    return subprocess.run(["printenv", "LEFT_BY_A_JOB"], capture_output=True, text=True).stdout


def _leave_precision() -> None:
    decimal.getcontext().prec = 3


UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}.get(platform.machine(), 0)
"""From <fenv.h>: to the larger of two numbers."""


def _leave_wakeup_descriptor() -> None:
    ends = socket.socketpair()
    ends[0].setblocking(False)
    left.append(ends)
    signal.set_wakeup_fd(ends[0].fileno())


def _sees_wakeup_descriptor() -> bool:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor != -1


def _leave_event_loop() -> None:
    """With a coroutine, which goes on when somebody runs the loop again."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    left.append(loop.create_task(_go_on()))
    loop.run_until_complete(asyncio.sleep(0))


async def _go_on() -> None:
    await asyncio.sleep(0.01)
    left.append("went on")


def _last_value() -> int | None:
    try:
        return int(sql("SELECT lastval()"))
    except OperationalError:  # there has been none
        return None


def _draws_foreseeably() -> bool:
    drawn = sql("SELECT random()")
    sql("SELECT setseed(0.5)")
    foreseen = sql("SELECT random()")
    connection.close()  # the next one is to be left with the seed, and not with this one
    return bool(drawn == foreseen)


def _note_queries() -> None:
    connection.force_debug_cursor = True
    sql("SELECT 1")


def _sees_event_loop() -> bool:
    """As a job that was written for a process of its own gets one. It leaves that, and a second one gets another."""
    loop = asyncio.get_event_loop_policy().get_event_loop()
    loop.run_until_complete(asyncio.sleep(0.05))
    return "went on" in left


TRANSACTIONS = {
    "atomic": Leftover(_leave_atomic_open, _sees_transaction),
    "autocommit": Leftover(_leave_autocommit_off, _sees_transaction),
}

IN_ANY = {
    "handler": Leftover(
        lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN), lambda: str(signal.getsignal(signal.SIGUSR1))
    ),
    "handler of SIGTERM": Leftover(
        lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), lambda: str(signal.getsignal(signal.SIGTERM))
    ),
    "mask": Leftover(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2]),
        lambda: sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    ),
    "timer of used time": Leftover(
        _start_timer(signal.ITIMER_PROF, signal.SIGPROF), lambda: bool(signal.getitimer(signal.ITIMER_PROF)[0])
    ),
    "timer of the function's time": Leftover(
        _start_timer(signal.ITIMER_VIRTUAL, signal.SIGVTALRM), lambda: bool(signal.getitimer(signal.ITIMER_VIRTUAL)[0])
    ),
    "alarm that is blocked": Leftover(_leave_blocked_alarm, lambda: signal.SIGALRM in signal.sigpending()),
    "folder": Leftover(lambda: os.chdir("/"), os.getcwd),
    "umask": Leftover(lambda: os.umask(0o077), _umask),
    "variable that is new": Leftover(
        lambda: os.environ.update(LEFT_BY_A_JOB="left"), lambda: os.environ.get("LEFT_BY_A_JOB")
    ),
    "variable that is gone": Leftover(
        lambda: os.environ.pop("DJANGO_SETTINGS_MODULE"), lambda: os.environ.get("DJANGO_SETTINGS_MODULE")
    ),
    "variable that is another": Leftover(lambda: os.environ.update(HOME="elsewhere"), lambda: os.environ.get("HOME")),
    "variables of its own": Leftover(_have_variables_of_its_own, lambda: type(os.environ).__name__),
    "variable of C alone": Leftover(lambda: os.putenv("LEFT_BY_A_JOB", "left"), _told_to_a_program),
    "local time of C alone": Leftover(_live_in_tokyo_by_c, lambda: time.localtime(0).tm_hour),
    "local time": Leftover(_live_in_tokyo, lambda: time.localtime(0).tm_hour),
    "locale": Leftover(lambda: locale.setlocale(locale.LC_TIME, "C.UTF-8"), lambda: locale.setlocale(locale.LC_TIME)),
    "wakeup descriptor": Leftover(_leave_wakeup_descriptor, _sees_wakeup_descriptor),
    "event loop": Leftover(_leave_event_loop, _sees_event_loop),
    "standard output": Leftover(lambda: setattr(sys, "stdout", io.StringIO()), lambda: type(sys.stdout).__name__),
    "rounding": Leftover(lambda: ctypes.CDLL(None).fesetround(UPWARD), lambda: repr(1.0 / len("abc"))),
    "hooks of generators": Leftover(
        lambda: sys.set_asyncgen_hooks(firstiter=print), lambda: str(sys.get_asyncgen_hooks().firstiter)
    ),
    "precision of decimals": Leftover(_leave_precision, lambda: str(decimal.Decimal(1) / 3)),
    "notes of queries": Leftover(_note_queries, lambda: [connection.force_debug_cursor, len(connection.queries_log)]),
}
"""What a horse goes on without."""


def _raw() -> Any:
    connection.ensure_connection()
    return connection.connection


def _notify_self() -> None:
    sql("LISTEN tenant_slots_test")
    sql("NOTIFY tenant_slots_test, 'of this job'")
    sql("SELECT 1")


KEEPS_NOTIFICATIONS = tuple(map(int, psycopg.__version__.split(".")[:3])) >= (3, 2, 4)
"""Older versions lose those that nobody reads as they come."""

IN_POSTGRESQL = {
    "plain BEGIN": Leftover(_leave_plain_begin_open, _sees_transaction),
    "statement_timeout": Leftover(
        lambda: sql("SET statement_timeout = '77s'"), lambda: sql("SELECT current_setting('statement_timeout')")
    ),
    "role": Leftover(lambda: sql("SET ROLE pg_monitor"), lambda: sql("SELECT current_user")),
    "session authorization": Leftover(
        lambda: sql("SET SESSION AUTHORIZATION pg_monitor"), lambda: sql("SELECT session_user")
    ),
    "search_path": Leftover(
        lambda: sql("SET search_path = pg_catalog"), lambda: sql("SELECT current_setting('search_path')")
    ),
    "time zone of the session": Leftover(
        lambda: sql("SET TIME ZONE 'Asia/Tokyo'"), lambda: sql("SELECT current_setting('TimeZone')")
    ),
    "advisory lock": Leftover(
        lambda: sql("SELECT pg_advisory_lock(77)"),
        lambda: sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"),
    ),
    "LISTEN": Leftover(
        lambda: sql("LISTEN tenant_slots_test"), lambda: sql("SELECT count(*) FROM pg_listening_channels()")
    ),
    "temporary table": Leftover(
        lambda: sql("CREATE TEMPORARY TABLE left_by_a_job (a int)"),
        lambda: sql("SELECT to_regclass('left_by_a_job')::text"),
    ),
    "timeout in another database": Leftover(
        _in_other_database("SET statement_timeout = '77s'"),
        _in_other_database("SELECT current_setting('statement_timeout')"),
    ),
    "cursor": Leftover(
        lambda: sql("DECLARE left_by_a_job CURSOR WITH HOLD FOR SELECT 1"),
        lambda: sql("SELECT count(*) FROM pg_cursors WHERE name = 'left_by_a_job'"),
    ),
    "prepared statement": Leftover(
        lambda: sql("PREPARE left_by_a_job AS SELECT 1"),
        lambda: sql("SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_by_a_job'"),
    ),
    "seed of what is drawn": Leftover(lambda: sql("SELECT setseed(0.5)"), _draws_foreseeably),
    "last value of a sequence": Leftover(lambda: sql("SELECT nextval('tenant_slots_tenantqueue_id_seq')"), _last_value),
}
if KEEPS_NOTIFICATIONS:
    IN_POSTGRESQL["notification that nobody has read"] = Leftover(
        _notify_self, lambda: len(list(_raw().notifies(timeout=0)))
    )

GONE_ANYWAY = {
    "language": Leftover(lambda: translation.activate("de"), translation.get_language),
    "time zone": Leftover(lambda: timezone.activate("Asia/Kolkata"), timezone.get_current_timezone_name),
    "alarm": Leftover(lambda: signal.alarm(3600), lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 1000),
    "context variable": Leftover(lambda: VARIABLE.set("left"), VARIABLE.get),
}
"""What is gone before anything is put back: RQ turns off the alarm, and each job has a context of its own."""


def _start_thread() -> None:
    threading.Thread(target=time.sleep, args=[3600], daemon=True).start()


def _start_process() -> None:
    """Elsewhere than in the group of the work-horse, which it outlives; it ends with the tests."""
    left.append(subprocess.Popen(["sleep", "60"], start_new_session=True))


def _start_process_that_ends() -> None:
    process = os.fork()
    if not process:
        os._exit(0)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


def _children() -> int:
    return _processes_with(1, os.getpid())


def _processes_with(field: int, number: int) -> int:
    """Those whose parent is this one, or that are in this group: fields 1 and 2 of proc(5), behind the state."""
    stats = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats.append(entry.read_text().rpartition(")")[2].split())
    return sum(int(stat[field]) == number for stat in stats)


def _start_process_of_a_shell() -> None:
    """It belongs to nobody, but is in the group of the work-horse, and would be killed with that."""
    subprocess.run(["sh", "-c", "sleep 60 > /dev/null 2>&1 &"], check=True)


def _in_group() -> int:
    return _processes_with(2, os.getpgid(0))


async def _leave_thread_of_coroutine() -> None:
    """It is busy for longer than anybody waits."""
    asyncio.get_running_loop().call_soon(asyncio.ensure_future, sync_to_async(time.sleep)(3600))
    await asyncio.sleep(0.01)


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _call(name: str, *arguments: Any) -> int:
    result: int = ctypes.CDLL(None, use_errno=True)[name](*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def _have_files_wait() -> None:
    """As ``psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)`` does it."""
    _call("syscall", IOPRIO_SET, 1, 0, 3 << 13)


IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine(), 0)
"""The call that asks has the number that follows."""

NEW_NETWORK, NEW_PROCESSES = 0x40000000, 0x20000000
"""From <linux/sched.h>, for `unshare`."""


def _make_timer() -> None:
    """As a profiler that is written in C does: it sends SIGPROF, in an hour."""
    event = struct.pack("=qii48x", 0, signal.SIGPROF, 0)
    timer = ctypes.c_void_p()
    _call("timer_create", time.CLOCK_MONOTONIC, event, ctypes.byref(timer))
    _call("timer_settime", timer, 0, struct.pack("=qqqq", 0, 0, 3600, 0), None)


TIMERS = Path("/proc/self/timers")


def _have_file_signal(owner: Callable[[], int]) -> None:
    """When something comes: SIGIO ends a process that has no handler for it."""
    ends = socket.socketpair()
    left.append(ends)
    fcntl.fcntl(ends[0], fcntl.F_SETOWN, owner())
    fcntl.fcntl(ends[0], fcntl.F_SETFL, os.O_ASYNC)


def _files_that_signal() -> int:
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            _, owner = struct.unpack("ii", fcntl.fcntl(int(descriptor), F_GETOWN_EX, bytes(8)))
            found += owner == os.getpid()
    return found


F_GETOWN_EX = 16
"""From <fcntl.h>."""


def _join_keys() -> None:
    """As what keeps a ticket of Kerberos there does."""
    _call("syscall", KEYCTL, 1, None)


def _keys() -> int:
    return _call("syscall", KEYCTL, 0, -3, 0)


KEYCTL = {"x86_64": 250, "aarch64": 219}.get(platform.machine(), 0)


def _has_keys() -> bool:
    """A container may not."""
    with suppress(OSError):
        return bool(KEYCTL and _keys())
    return False


def _has_children_of_others() -> bool:
    """A shell leaves a process behind, which ends after the shell, so that somebody else has to wait for it."""
    script = "while kill -0 $$; do :; done >/dev/null 2>&1 & echo $!"
    left_behind = int(subprocess.run(["sh", "-c", script], check=True, capture_output=True).stdout)
    with suppress(ChildProcessError):
        return os.waitpid(left_behind, 0)[0] == left_behind
    while not is_gone(left_behind):
        time.sleep(0.001)
    return False


def _be_first_to_start_one_process() -> None:
    """As what builds a sandbox does: nobody can start another one there when that has ended."""
    _call("unshare", NEW_PROCESSES)
    subprocess.run(["true"], check=True)


def _can_start_another() -> bool:
    with suppress(OSError):
        return subprocess.run(["true"]).returncode == 0
    return False


def _may_leave_namespaces() -> bool:
    """A container may lack the right to it, its root too."""
    return bool(_capabilities() >> CAP_SYS_ADMIN & 1)


def _capabilities() -> int:
    found = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 16) if found else 0


def _give_up_capabilities() -> None:
    """All of them, as who stays root and starts what it does not trust."""
    _call("capset", ctypes.create_string_buffer(struct.pack("=Ii", CAPABILITIES_3, 0)), bytes(24))


CAPABILITIES_3 = 0x20080522
"""From <linux/capability.h>."""


CAP_SYS_ADMIN = 21

OF_LINUX = {
    "class of its turns": Leftover(
        lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)), lambda: os.sched_getscheduler(0)
    ),
    "no new privileges": Leftover(lambda: _call("prctl", 38, 1, 0, 0, 0), lambda: _call("prctl", 39, 0, 0, 0, 0)),
    "nobody may look": Leftover(lambda: _call("prctl", 4, 0, 0, 0, 0), lambda: _call("prctl", 3, 0, 0, 0, 0)),
    "wakes up late": Leftover(lambda: _call("prctl", 29, 10**9, 0, 0, 0), lambda: _call("prctl", 30, 0, 0, 0, 0)),
    "file that signals": Leftover(partial(_have_file_signal, os.getpid), _files_that_signal),
    "file that signals the group": Leftover(partial(_have_file_signal, lambda: -os.getpid()), _files_that_signal),
    "large pages": Leftover(lambda: _call("prctl", 41, 1, 0, 0, 0), lambda: _call("prctl", 42, 0, 0, 0, 0)),
    "children of others": Leftover(lambda: _call("prctl", 36, 1, 0, 0, 0), _has_children_of_others),
}
if IOPRIO_SET:
    OF_LINUX["turns of its files"] = Leftover(_have_files_wait, lambda: _call("syscall", IOPRIO_SET + 1, 1, 0))
if sys.platform == "linux" and _has_keys():
    OF_LINUX["keys"] = Leftover(_join_keys, _keys)
if TIMERS.exists():
    OF_LINUX["timer of the system"] = Leftover(_make_timer, TIMERS.read_text)
if sys.platform == "linux" and _may_leave_namespaces():
    see_network = partial(os.readlink, "/proc/self/ns/net")
    OF_LINUX["network"] = Leftover(lambda: _call("unshare", NEW_NETWORK), see_network)
    OF_LINUX["capabilities"] = Leftover(_give_up_capabilities, _capabilities)
    OF_LINUX["number of processes"] = Leftover(_be_first_to_start_one_process, _can_start_another)


def _patch_threads() -> None:
    """As gevent does, when a library that needs it is loaded."""
    threading.get_ident = lambda: 1


LASTING = {
    "threads that are none": Leftover(_patch_threads, lambda: threading.get_ident is _thread.get_ident),
    "thread": Leftover(_start_thread, threading.active_count),
    "thread that has hardly begun": Leftover(
        lambda: _thread.start_new_thread(time.sleep, (3600,)), lambda: len(os.listdir("/proc/self/task"))
    ),
    "thread of a coroutine": Leftover(lambda: asyncio.run(_leave_thread_of_coroutine()), threading.active_count),
    "limit": Leftover(_limit_files, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    "process": Leftover(_start_process, _children),
    "process that has ended": Leftover(_start_process_that_ends, _children),
    "process of a shell": Leftover(_start_process_of_a_shell, _in_group),
    "niceness": Leftover(lambda: os.nice(1), lambda: os.nice(0)),
    "processors": Leftover(
        lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}), lambda: len(os.sched_getaffinity(0))
    ),
    "first to be killed": Leftover(lambda: OUT_OF_MEMORY.write_text("999"), OUT_OF_MEMORY.read_text),
    "group": Leftover(lambda: os.setpgid(0, os.getpgid(os.getppid())), lambda: os.getpgid(0) == os.getpid()),
    **(OF_LINUX if sys.platform == "linux" else {}),
}
"""What cannot be put back in the process: it needs another one."""

ALL = {**TRANSACTIONS, **IN_ANY, **IN_POSTGRESQL, **GONE_ANYWAY, **LASTING}


@tenant_job("imports", tenant="tenant")
def leave(tenant: str, kind: str) -> list[object]:
    ALL[kind].leave()
    return [os.getpid(), None]


def _leave_after(job: TenantJob, result: object) -> None:
    ALL[job.args[1]].leave()


@tenant_job("imports", tenant="tenant", on_success=_leave_after)
def leave_in_callback(tenant: str, kind: str) -> list[object]:
    return [os.getpid(), None]


@tenant_job("imports", tenant="tenant")
def see(tenant: str, kind: str) -> list[object]:
    return [os.getpid(), ALL[kind].see()]


@tenant_job("imports", tenant="tenant")
def seed_and_draw(tenant: str, seed: int | None = None) -> list[object]:
    if seed is not None:
        random.seed(seed)
    return [os.getpid(), random.random()]


@tenant_job("imports", tenant="tenant")
def write(tenant: str, name: str) -> list[object]:
    TenantQueue.objects.create(tenant=name, queue="reports")
    return [os.getpid(), None]


def set_lock_timeout(connection: Any, **_: Any) -> None:
    """As projects do that want it in every session."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '12345ms'")


@tenant_job("imports", tenant="tenant")
def own_setting(tenant: str, connect: bool = False) -> list[object]:
    """What a receiver of `connection_created` has set; connected in the first job."""
    if connect:
        connection_created.connect(set_lock_timeout)
        connection.close()
    return [os.getpid(), sql("SELECT current_setting('lock_timeout')")]
