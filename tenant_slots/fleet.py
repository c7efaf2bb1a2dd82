"""The workers, as RQ has them on record, and which of them are to be believed.

RQ's record of a worker outlives it: of one that was killed it stays until it expires, after minutes for a stock worker
that was idle. A worker of ours says every few seconds that it is there, so that of ours those are alive that have said
so lately. Of a stock worker nobody knows better than its record.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from redis import Redis
from rq.job import Job
from rq.suspension import is_suspended
from rq.utils import utcparse
from rq.worker import Worker, WorkerStatus

from tenant_slots import dispatch, logs, queue_directory
from tenant_slots.conf import rq_queues
from tenant_slots.exceptions import UnusableQueue
from tenant_slots.models import TenantJob
from tenant_slots.queue_names import names_in
from tenant_slots.validation import storable

logger = logging.getLogger("tenant_slots")

CLASS = "tenant_slots_class"
"""In RQ's record of a worker of ours: the path of its class."""

SECONDS_ALIVE = 15
"""For which a worker of ours is given to say that it is there, once RQ has it on record."""

AT_ONCE = 500
"""Most records in one request to Redis, which serves nobody else meanwhile."""


@dataclass(frozen=True)
class Member:
    """One worker that RQ has on record."""

    server: str
    """A queue of the server that has the record: workers of two servers may have one name."""
    name: str
    queues: tuple[str, ...]
    state: str
    """RQ's word: ``started``, ``idle``, ``busy`` or ``suspended``."""
    rq_job_id: str
    """Of the job that it runs, or ""."""
    host: str
    pid: int | None
    version: str
    """RQ's."""
    worker_class: str
    """The path of a class of ours; "" for any other."""
    born_at: datetime | None
    heard_at: datetime | None
    """Its last heartbeat, by its own clock."""
    is_leaving: bool
    """It was told to end, and does so after the job that it runs."""
    is_alive: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.name

    @property
    def is_busy(self) -> bool:
        return self.state == WorkerStatus.BUSY

    @property
    def takes_jobs(self) -> bool:
        """Now, or when the job that it runs has ended."""
        return self.is_alive and not self.is_leaving and self.state != WorkerStatus.SUSPENDED


@dataclass(frozen=True)
class Fleet:
    members: tuple[Member, ...]
    """By name."""
    unasked: tuple[str, ...]
    """Queues whose Redis does not answer, and the unusable ones."""
    suspended: tuple[str, ...] = ()
    """Queues whose workers are told to rest, as all of their server: ``rq suspend``."""
    unusable: tuple[str, ...] = ()
    """Queues whose settings lead to no Redis, so that nobody can listen on them."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """By queue, as of `Member.server`."""

    def of(self, queue: str) -> tuple[Member, ...]:
        """Who listens on a queue of RQ, the dead among them. Another server may have one of that name too."""
        server = self.servers.get(queue)
        return tuple(member for member in self.members if member.server == server and queue in member.queues)

    def is_without_worker(self, queue: str) -> bool:
        """Whether nobody takes jobs of a queue. Not while its Redis does not answer."""
        return queue not in self.unasked and not any(member.takes_jobs for member in self.of(queue))

    def is_busy(self, queue: str) -> bool:
        """Whether all who take jobs of a queue run one. Its next job waits for as long as theirs take."""
        takers = [member for member in self.of(queue) if member.takes_jobs]
        return bool(takers) and all(member.is_busy for member in takers)

    @property
    def alive(self) -> int:
        return sum(member.is_alive for member in self.members)


def known(*queues: str) -> Fleet:
    """The workers of the servers of these queues, or of all the project's. Three requests for each server, and one more
    where there are several.
    """
    names = queues or tuple(rq_queues())
    queue_directory.look_at_servers(names)
    members: list[Member] = []
    servers: dict[str, str] = {}
    unasked: list[str] = []
    unusable: list[str] = []
    suspended: list[str] = []
    for name, same_server in queue_directory.by_server(names).items():
        servers |= dict.fromkeys(same_server, name)
        try:
            with queue_directory.reaching(name) as queue:
                members += list(_members(queue.connection, name))
                suspended += same_server if is_suspended(queue.connection) else []
        except queue_directory.OUT_OF_REACH as error:
            about_queue = logs.about_named(queue=name)
            logger.warning(
                "the workers of queue %s cannot be asked for: %s", storable(str(name)), error, extra=about_queue
            )
            unasked += same_server
            if isinstance(error, UnusableQueue):
                unusable += same_server
    by_name = tuple(sorted(members, key=lambda member: member.name))
    return Fleet(by_name, tuple(unasked), tuple(suspended), tuple(unusable), servers)


def without_worker(known: Fleet, with_jobs: Collection[str]) -> list[str]:
    """Queues that have jobs, and nobody who takes them, as far as Redis can be asked.

    Args:
        known: the workers of all the project's queues.
        with_jobs: queues with jobs of ours. Whether there are plain ones is asked here.
    """
    left_alone = [name for name in rq_queues() if known.is_without_worker(name)]
    plain = dispatch.plain_ids([name for name in left_alone if name not in with_jobs])
    return [name for name in left_alone if name in with_jobs or plain.get(name)]


class WorkerRecord(Enum):
    """What RQ's record of the worker that started a job says."""

    NAMES_IT = "it runs the job"
    OTHERWISE = "it is idle, or runs another job"
    ABSENT = "there is no such worker"
    UNKNOWN = "Redis cannot be asked"


def worker_record(job: TenantJob) -> WorkerRecord:
    """What RQ knows of a stock worker. Only `NAMES_IT` is to be believed at once.

    The record lives for a minute after its last heartbeat, and a worker that has lost it to a FLUSHALL writes it again
    with the next one. A replica that was promoted may lack what the worker wrote when it took the job; the record then
    says for as long as the job runs that the worker is idle. Heartbeats for the job go on, see `last_heartbeat`.
    """
    key = Worker.redis_worker_namespace_prefix + job.worker
    try:
        with queue_directory.reaching(job.rq_queue_name) as queue:
            worker = Worker.find_by_key(key, connection=queue.connection)
            if worker is None:
                return WorkerRecord.ABSENT
            runs_it = worker.get_state() != WorkerStatus.IDLE and worker.get_current_job_id() in (None, job.last_rq_id)
            return WorkerRecord.NAMES_IT if runs_it else WorkerRecord.OTHERWISE
    except queue_directory.OUT_OF_REACH as error:
        logger.warning("RQ cannot be asked about worker %s: %s", job.worker, error, extra=logs.about(job))
        return WorkerRecord.UNKNOWN


def last_heartbeat(job: TenantJob) -> object:
    """What a forking stock worker renews in Redis while its work-horse runs the job.

    None when another worker has been given the same RQ job since, and has sent the heartbeat.
    """
    names = ("worker_name", "last_heartbeat")
    found = dispatch.tolerant(lambda queue: queue.connection.hmget(Job.key_for(job.last_rq_id), *names), job)
    worker, beat = found or (None, None)
    return beat if worker in (None, b"", job.worker.encode()) else None


def _members(connection: Redis, server: str) -> Iterable[Member]:
    known: Any = connection.smembers(Worker.redis_workers_keys)  # not as text, whatever its types say
    keys = sorted(map(_text, known))
    for start in range(0, len(keys), AT_ONCE):
        some = keys[start : start + AT_ONCE]
        with connection.pipeline(transaction=False) as pipeline:
            for key in some:
                pipeline.hgetall(key)
            pipeline.time()
            *records, (seconds, _) = pipeline.execute()
        found = {key: _decoded(record) for key, record in zip(some, records, strict=True) if record}
        present = _present(connection, found, seconds)
        for key, record in found.items():
            if "death" not in record and "birth" in record:
                yield _member(server, key, record, seconds, is_present=key in present)


def _decoded(record: dict[bytes, bytes]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in record.items()}


def _text(raw: bytes) -> str:
    """Whatever a job or another program has written there."""
    return raw.decode(errors="replace")


def _present(connection: Redis, records: dict[str, dict[str, str]], now: int) -> set[str]:
    """The keys of the workers of ours that have said lately that they are there; see ``fair_order.lua``."""
    places = [
        (key, f"tenant_slots:workers:{queue}")
        for key, record in records.items()
        if CLASS in record
        for queue in names_in(record.get("queues", ""))
    ]
    with connection.pipeline(transaction=False) as pipeline:
        for key, presence in places:
            pipeline.zscore(presence, key)
        until = pipeline.execute()
    return {key for (key, _), score in zip(places, until, strict=True) if score is not None and score > now}


def _member(server: str, key: str, record: dict[str, str], now: int, *, is_present: bool) -> Member:
    worker_class, born_at = record.get(CLASS, ""), _moment(record.get("birth"))
    is_new = born_at is not None and born_at.timestamp() > now - SECONDS_ALIVE
    return Member(
        server=server,
        name=key.removeprefix(Worker.redis_worker_namespace_prefix),
        queues=tuple(names_in(record.get("queues", ""))),
        state=record.get("state", ""),
        rq_job_id=record.get("current_job", ""),
        host=record.get("hostname", ""),
        pid=int(record["pid"]) if record.get("pid", "").isdecimal() else None,
        version=record.get("version", ""),
        worker_class=worker_class,
        born_at=born_at,
        heard_at=_moment(record.get("last_heartbeat")),
        is_leaving="shutdown_requested_date" in record,
        is_alive=is_present or is_new or not worker_class,
    )


def _moment(text: Any) -> datetime | None:
    """None for what RQ has not written."""
    try:
        return utcparse(text) if text else None
    except ValueError:
        return None
