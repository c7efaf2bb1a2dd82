"""The worker without work-horses, and what it tells Redis."""

from __future__ import annotations

import time

import django_rq
import pytest
from rq.job import Job, JobStatus

from tenant_slots import redis_servers
from tenant_slots.workers import TenantSimpleWorker

pytestmark = pytest.mark.django_db(transaction=True)


def lose_redis() -> None:
    """Somebody in this process asks it while it stands still for a moment: it counts as away for a while."""
    server = redis_servers.server_of(django_rq.get_connection("imports"))
    redis_servers._away[server] = time.monotonic() + 3600, "it did not answer"


def lose_redis_and_fail() -> None:
    lose_redis()
    raise ValueError("not that")


@pytest.mark.parametrize(
    ("function", "status"), [(lose_redis, JobStatus.FINISHED), (lose_redis_and_fail, JobStatus.FAILED)]
)
def test_redis_is_told_the_end_of_a_plain_rq_job_though_it_was_away_a_moment_ago(
    function: object, status: JobStatus
) -> None:
    """Nobody else knows of it: RQ would take the job for lost, and perhaps run it again."""
    queue = django_rq.get_queue("imports")
    job: Job = queue.enqueue(function)
    try:
        TenantSimpleWorker([queue], connection=queue.connection).work(max_jobs=1, logging_level="ERROR")
    finally:
        redis_servers.forget_absences()
    assert job.get_status(refresh=True) == status
    assert len(queue.started_job_registry) == 0
