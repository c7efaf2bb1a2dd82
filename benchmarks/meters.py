"""What jobs cost, counted where it is paid: by the servers and by the kernel, so that no clock is needed.

Each meter is read before and after; the difference belongs to whatever ran in between.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.db import connection
from redis import Redis

OWN_COMMANDS = ("info",)
"""What reading the meter itself sends to Redis, and no worker of RQ's or ours in the middle of its work."""

WAITING_COMMANDS = ("blpop", "brpop", "blmove", "brpoplpush", "blmpop", "bzpopmin", "bzpopmax", "bzmpop")
"""A worker that finds its queue empty sends one of these every few seconds, whatever there is to do."""

KILOBYTES_IN_MEGABYTE = 1024

LASTING_SECONDS = 1
"""Age of a session that is not one of a moment: a sweep of few jobs takes some milliseconds."""

TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class WAL:
    """What was written to PostgreSQL's log between two places in it."""

    bytes: int
    """Without full pages: the first change of a page after a checkpoint adds the page, which is nobody's job."""
    commits: int
    """Commit records. A transaction that only reads writes none, one that locks a row does."""
    bytes_by_kind: dict[str, int]
    """Of records by resource manager, such as Heap and Btree; their sum is less than `bytes`, which has headers."""


def redis_commands() -> int:
    """Commands executed so far, those inside of transactions and scripts too."""
    left_out = {f"cmdstat_{name}" for name in (*OWN_COMMANDS, *WAITING_COMMANDS)}
    statistics = _redis().info("commandstats")
    return sum(counts["calls"] for name, counts in statistics.items() if name not in left_out)


@cache
def _redis() -> Redis:
    """One for all readings, because to connect takes commands too."""
    import django_rq  # reads Django's settings, which the harness sets up later

    return django_rq.get_connection("bench")


def prepare_wal() -> None:
    """Needs a superuser, or a role that may do both."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        cursor.execute("CHECKPOINT")


def wal_position() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
        return str(cursor.fetchone()[0])


def wal_between(start: str, end: str) -> WAL:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_switch_wal()")  # the records up to `end` have to be in a file to be read
        cursor.execute("SELECT %s::pg_lsn - %s::pg_lsn", [end, start])
        (length,) = cursor.fetchone()
        cursor.execute(
            'SELECT "resource_manager/record_type", count, record_size, fpi_size'
            " FROM pg_get_wal_stats(%s::pg_lsn, %s::pg_lsn, true) WHERE count > 0",
            [start, end],
        )
        records = cursor.fetchall()
    by_kind: dict[str, int] = {}
    for kind, _, size, _ in records:
        manager = kind.partition("/")[0]
        by_kind[manager] = by_kind.get(manager, 0) + int(size)
    return WAL(
        bytes=int(length - sum(full_pages for *_, full_pages in records)),
        commits=sum(count for kind, count, *_ in records if kind.startswith("Transaction/COMMIT")),
        bytes_by_kind=dict(sorted(by_kind.items(), key=lambda item: -item[1])),
    )


def lasting_sessions() -> int:
    """Of this database, without that of this process, and without those that a sweep has for a moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND backend_start < clock_timestamp() - make_interval(secs => %s)",
            [LASTING_SECONDS],
        )
        return int(cursor.fetchone()[0])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of those that it started, and of those of them that have ended."""
    processes = dict(_processes())
    tree = {pid}
    while more := {child for child, (parent, _) in processes.items() if parent in tree} - tree:
        tree |= more
    return sum(processes[member][1] for member in tree if member in processes)


def _processes() -> Iterable[tuple[int, tuple[int, float]]]:
    """Parent and seconds of every process; the seconds include those of children that it has waited for."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parent, times = int(fields[1]), fields[11:15]
        yield int(path.parent.name), (parent, TICK * sum(map(int, times)))


class MemoryAboveIdle:
    """What this process takes at most from now on, above what it takes now."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        self._before = _kilobytes("VmRSS")

    def megabytes(self) -> float:
        return (_kilobytes("VmHWM") - self._before) / KILOBYTES_IN_MEGABYTE


def _kilobytes(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
