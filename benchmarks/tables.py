"""Tables with very many rows, written by SQL: to enqueue them takes too long."""

from __future__ import annotations

from typing import Any


def fill(tenants: int, jobs: int, waiting: int) -> None:
    """Half of the waiting jobs are spread evenly, a quarter of the tenants run jobs, and the last hour was busy."""
    running, lately = tenants // 2, jobs // 50
    _make_tenants(tenants)
    _make_jobs(tenants, waiting // 2, "waiting", crowd=1)
    _make_jobs(tenants, waiting - waiting // 2, "waiting", crowd=tenants // 100 or 1)
    _make_jobs(tenants, running, "running", crowd=2, started=300)
    _make_jobs(tenants, lately, "finished", crowd=3, started=3600, ended=60)
    _make_jobs(tenants, lately, "failed", crowd=1, started=86400, ended=60)
    _make_jobs(tenants, jobs - waiting - running - 2 * lately, "finished", crowd=1, started=6 * 86400, ended=60)
    _set_counters()


def _make_tenants(count: int) -> None:
    execute(
        "INSERT INTO tenant_slots_tenantqueue (tenant, queue, max_job, current_job, paused, created_at)"
        " SELECT 'tenant ' || n, 'bench', 1 + n %% 5, 0, n %% 50 = 0, now() FROM generate_series(1, %s) n",
        [count],
    )


def _make_jobs(tenants: int, count: int, state: str, crowd: int, started: int | None = None, ended: int = 0) -> None:
    """`count` jobs of every `crowd`-th tenant; times are random, at most so many seconds ago."""
    execute(
        "INSERT INTO tenant_slots_tenantjob (uuid, tenant_queue_id, task, args, kwargs, options, rq_job_id, state,"
        " attempt, crashes, failures, priority, key, enqueued_at, admitted_at, started_at, ended_at, beat_at, worker,"
        " host, pid, pid_started, beats, error, error_class)"
        " SELECT gen_random_uuid(), row.id, 'shop.jobs.import_feed', '[]', '{\"path\": \"feed.csv\"}', '{}', '', %s,"
        " 1, 0, 0, 0, '', at - random() * interval '10 minutes', at, at,"
        " CASE WHEN %s > 0 THEN at + random() * (now() - at) END, now(), 'worker', 'host', 1, 1, true, '',"
        " CASE WHEN %s = 'failed' THEN 'shop.feeds.Broken' || jobs.n %% 7 END"
        " FROM (SELECT n, now() - random() * %s * interval '1 second' AS at FROM generate_series(1, %s) n) jobs"
        " JOIN (SELECT id, row_number() OVER (ORDER BY id) AS number FROM tenant_slots_tenantqueue) row"
        " ON row.number = 1 + (jobs.n::bigint * %s) %% %s",
        [state, ended, state, started or 7200, count, crowd, tenants],
    )
    if started is None:
        execute(
            "UPDATE tenant_slots_tenantjob SET attempt = 0, admitted_at = NULL, started_at = NULL, beat_at = NULL"
            " WHERE state = %s AND attempt = 1",
            [state],
        )


def _set_counters() -> None:
    execute(
        "UPDATE tenant_slots_tenantqueue row SET current_job = (SELECT count(*) FROM tenant_slots_tenantjob job"
        " WHERE job.tenant_queue_id = row.id AND job.state IN ('queued', 'running'))"
    )
    vacuum("tenant_slots_tenantjob", "tenant_slots_tenantqueue")


def execute(statement: str, values: list[Any] | None = None) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def vacuum(*tables: str) -> None:
    """As autovacuum would have done by then."""
    for table in tables:
        execute(f"VACUUM ANALYZE {table}")
