"""Workers of RQ's own classes of which Redis has forgotten that they listen, as where it has lost its data.

RQ registers a worker when it begins, and never again (RQ 2.12). It goes on waiting at its lists, and nobody knows of
it: nothing would be admitted for it in an overflow queue, nor beside workers of ours. Those register themselves again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from redis import Redis
from redis.client import Pipeline
from rq.command import PUBSUB_CHANNEL_TEMPLATE
from rq.defaults import DEFAULT_JOB_MONITORING_INTERVAL, DEFAULT_WORKER_TTL
from rq.utils import as_text
from rq.worker import Worker, WorkerStatus
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from tenant_slots import fleet, logs, queue_directory
from tenant_slots.models import TenantJob
from tenant_slots.queue_names import names_in, usable_queues
from tenant_slots.repair.contact import Contact, Seen
from tenant_slots.repair.report import Report

logger = logging.getLogger("tenant_slots")

REMEMBERED = ("queues", "birth", "last_heartbeat", "hostname", "pid", "ip_address", "version", "python_version")
"""Of RQ's record of a worker."""

SECONDS_KEPT = {
    WorkerStatus.IDLE: DEFAULT_WORKER_TTL + 60,
    WorkerStatus.BUSY: DEFAULT_JOB_MONITORING_INTERVAL + 60,
}
"""For which RQ has a record last after a heartbeat."""

SECONDS_REMEMBERED = 600
"""After a worker was on record last: it may take a while until it has found a Redis again that was away."""


def register_again(report: Report, contact: Contact) -> None:
    """Those that this process has seen on record, and that still listen to the commands which RQ has for them."""
    for name in queue_directory.by_server(usable_queues()):
        with suppress(*queue_directory.OUT_OF_REACH), queue_directory.reaching(name) as queue:
            now = time.monotonic()
            on_record = dict(_on_record(queue.connection))
            missing = {key: seen for key, seen in contact.workers.get(name, {}).items() if key not in on_record}
            not_ours = {key: Seen(now, record) for key, record in on_record.items() if record is not None}
            contact.workers[name] = not_ours | {
                key: seen for key, seen in missing.items() if now - seen.at < SECONDS_REMEMBERED
            }
            _register_listening(queue.connection, {key: seen.record for key, seen in missing.items()})


def _on_record(connection: Redis) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """RQ's keys of workers, each with its record; None for one of ours, which may have taken the name of another."""
    keys = sorted(Worker.all_keys(connection=connection))
    for start in range(0, len(keys), fleet.AT_ONCE):
        some = keys[start : start + fleet.AT_ONCE]
        with connection.pipeline(transaction=False) as pipeline:
            for key in some:
                pipeline.hmget(key, fleet.CLASS, *REMEMBERED)
            found = pipeline.execute()
        for key, (is_ours, *values) in zip(some, found, strict=True):
            record = {name: value for name, value in zip(REMEMBERED, values, strict=True) if value is not None}
            if "queues" in record:
                yield key, None if is_ours else record


def _register_listening(connection: Redis, missing: Mapping[str, Mapping[str, Any]]) -> None:
    names = {key.removeprefix(Worker.redis_worker_namespace_prefix): key for key in missing}
    if not names:
        return
    channels = {PUBSUB_CHANNEL_TEMPLATE % name: name for name in names}
    found: Any = connection.pubsub_numsub(*channels)
    listening = [channels[as_text(channel)] for channel, listeners in found if listeners]
    running = TenantJob.objects.running().filter(worker__in=listening)
    busy = set(running.values_list("worker", flat=True)) if listening else ()
    for name in listening:
        state = WorkerStatus.BUSY if name in busy else WorkerStatus.IDLE
        record = {**missing[names[name]], "state": state}
        connection.transaction(partial(_register, names[name], record, SECONDS_KEPT[state]), names[name])
        text = "Redis has forgotten that worker %s listens, it is registered again"
        logger.warning(text, name, extra=logs.about_named())


def _register(key: str, record: Mapping[str, Any], seconds: int, pipeline: Pipeline) -> None:
    """As RQ does, but what it has written since stays. One that ends has said so there a moment before."""
    has_ended, seconds_left = pipeline.hexists(key, "death"), pipeline.ttl(key)
    pipeline.multi()
    if has_ended:
        return
    for name, value in record.items():
        pipeline.hsetnx(key, name, value)
    if int(seconds_left) < 0:  # which is asked at once, before MULTI
        pipeline.expire(key, seconds)
    pipeline.sadd(REDIS_WORKER_KEYS, key)
    for queue in names_in(as_text(record["queues"])):
        pipeline.sadd(WORKERS_BY_QUEUE_KEY % queue, key)
