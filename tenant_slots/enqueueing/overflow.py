"""Overflow queues: where a new job goes when its tenant has enqueued more than the rules of its function allow.

Redis counts: a sorted set per function and tenant has the times of the newest enqueues, by the clock of Redis, and
never more of them than the highest threshold. So the cost of an enqueue does not grow with a threshold, and a tenant
that enqueues nothing for the longest of the windows costs nothing. Retries and runs after a crash do not pass through
enqueue, so they are not counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from redis.exceptions import RedisError

from tenant_slots import logs, queue_directory, tenants
from tenant_slots.conf import app_settings
from tenant_slots.enqueueing.new_job import NewJob
from tenant_slots.exceptions import UnusableQueue
from tenant_slots.models import TenantJob, overflow_queue_of
from tenant_slots.tasks.task import TenantTask
from tenant_slots.tasks.throttle import Throttle

logger = logging.getLogger("tenant_slots")

JOBS_PER_CALL = 1000
"""Most jobs that one run of the script counts: Redis serves nobody else meanwhile."""

REST_SECONDS = 10
"""How long Redis is not asked again after it gave no answer: redis-py may try for seconds, and the caller waits."""

COUNT = """
-- KEYS: the enqueues. ARGV: how many more there are, how many to keep, then the window of each rule in microseconds.
-- Returns how many enqueues each window had before, of those that were kept.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function text(number) return string.format('%.0f', number) end

local longest = 0
for rule = 3, #ARGV do longest = math.max(longest, tonumber(ARGV[rule])) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - longest))
-- A clock that was ahead and has been put right would leave entries that stay the newest until it gets there again.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. text(now), '+inf')

local before = {}
for rule = 3, #ARGV do
  before[rule - 2] = redis.call('ZCOUNT', KEYS[1], '(' .. text(now - ARGV[rule]), '+inf')
end

local entries = {}
for number = 1, math.min(ARGV[1], ARGV[2]) do
  entries[2 * number - 1] = text(now)
  entries[2 * number] = text(now) .. ':' .. number
end
if #entries > 0 then
  redis.call('ZADD', KEYS[1], unpack(entries))
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[2])
  redis.call('PEXPIRE', KEYS[1], text(math.ceil(longest / 1000)))
end
return before
"""

_warned: set[str] = set()
"""The functions that were called without a tenant although their jobs are to be throttled."""

_ask_again: dict[str, float] = {}
"""By queue, when its Redis may be asked again, by this process's monotonic clock."""


def choose(task: TenantTask[..., Any], new_jobs: Iterable[NewJob]) -> None:
    """Count new jobs, each of them once, and set `rq_queue` of those that are over a threshold.

    A Redis that cannot be asked is logged, and not asked again for a while: jobs keep to their own queue. So they do in
    immediate mode, where nobody waits for another.

    Raises:
        UnknownQueue: a rule names a queue that RQ does not have.
    """
    if not task.throttle or task.explicit_queue:
        return
    for rule in task.throttle:
        tenants.require_queue(rule.queue)
    if app_settings.IMMEDIATE:
        return
    uncounted = [new for new in new_jobs if not new.is_counted]
    for new in uncounted:
        new.is_counted = True
    if time.monotonic() < _ask_again.get(task.queue, 0):
        return
    try:
        _choose(task, list(_chunks(_with_tenant(task, uncounted))))
    except (RedisError, UnusableQueue) as error:
        _ask_again[task.queue] = time.monotonic() + REST_SECONDS
        text = "for %s s no job of queue %s is throttled, as Redis could not count those of %s: %s"
        about_task = logs.about_named(task=task.path, queue=task.queue)
        logger.warning(text, REST_SECONDS, task.queue, task.path, error, extra=about_task)


def key_of(task: TenantTask[..., Any], tenant: str) -> str:
    """Where Redis keeps the enqueues. The tenant, which may hold any character, comes last."""
    return f"tenant_slots:enqueued:{task.path}:{tenant}"


def _choose(task: TenantTask[..., Any], chunks: list[tuple[str, list[TenantJob]]]) -> None:
    counts = _count(task, [(tenant, len(chunk)) for tenant, chunk in chunks])
    for (_, chunk), before in zip(chunks, counts, strict=True):
        for position, job in enumerate(chunk):
            chosen = _chosen_queue(task.throttle, [count + position for count in before])
            job.rq_queue = overflow_queue_of(chosen, task.queue)


def _with_tenant(task: TenantTask[..., Any], new_jobs: Iterable[NewJob]) -> Iterator[NewJob]:
    for new in new_jobs:
        if new.tenant != tenants.NO_TENANT:
            yield new
        elif task.path not in _warned:
            _warned.add(task.path)
            text = "%s has no tenant to throttle; its jobs without one keep to queue %s"
            about_task = logs.about_named(task=task.path, tenant=new.tenant, queue=task.queue)
            logger.warning(text, task.path, task.queue, extra=about_task)


def _chunks(new_jobs: Iterable[NewJob]) -> Iterator[tuple[str, list[TenantJob]]]:
    """The jobs of each tenant in their order, cut into what one run of the script counts."""
    of_tenant: dict[str, list[TenantJob]] = {}
    for new in new_jobs:
        of_tenant.setdefault(new.tenant, []).append(new.job)
    for tenant, own in of_tenant.items():
        for start in range(0, len(own), JOBS_PER_CALL):
            yield tenant, own[start : start + JOBS_PER_CALL]


def _count(task: TenantTask[..., Any], enqueues: Iterable[tuple[str, int]]) -> list[list[int]]:
    """Count so many more enqueues of each tenant; returns how many each rule's window had before, in one round trip."""
    keep = int(max(rule.threshold for rule in task.throttle))  # Redis gets what repr() gives, also of an Enum
    windows = [rule.per // timedelta(microseconds=1) for rule in task.throttle]
    with queue_directory.queue_named(task.queue).connection.pipeline(transaction=False) as pipeline:
        for tenant, more in enqueues:
            pipeline.eval(COUNT, 1, key_of(task, tenant), more, keep, *windows)
        counts: list[list[int]] = pipeline.execute()
    return counts


def _chosen_queue(rules: Sequence[Throttle], before: Sequence[int]) -> str:
    """The queue of the last rule that is exceeded by a job with so many before it in each window; "" for its own."""
    over = [rule.queue for rule, count in zip(rules, before, strict=True) if count >= rule.threshold]
    return over[-1] if over else ""
