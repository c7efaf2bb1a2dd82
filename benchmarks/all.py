"""Every benchmark in turn, and one table."""

from __future__ import annotations

from benchmarks import (
    admin_list,
    admin_pages,
    after_flush,
    alone,
    bulk,
    bulk_changes,
    context_cost,
    cost,
    dead_worker,
    due_jobs,
    enqueue_cost,
    full_backlog,
    hand_over,
    hot_tenant,
    idle_fleet,
    key_caps,
    killed_job,
    limits_hold,
    line_owner,
    many_tenants,
    newcomer,
    noisy_neighbour,
    old_snapshot,
    pause_bites,
    per_job,
    rate,
    scrape,
    sweep_cost,
    throttle_cost,
    unique_for,
    weights,
    worker_time,
)
from benchmarks.harness import common_options, finish, run, set_up

MODULES = (
    limits_hold,
    noisy_neighbour,
    newcomer,
    worker_time,
    line_owner,
    alone,
    idle_fleet,
    hand_over,
    pause_bites,
    rate,
    cost,
    per_job,
    context_cost,
    hot_tenant,
    old_snapshot,
    enqueue_cost,
    bulk,
    killed_job,
    dead_worker,
    after_flush,
    many_tenants,
    sweep_cost,
    throttle_cost,
    key_caps,
    due_jobs,
    unique_for,
    full_backlog,
    weights,
    admin_list,
    scrape,
    admin_pages,
    bulk_changes,
)

if __name__ == "__main__":
    options = common_options()
    environment = set_up()
    finish([run(module.BENCHMARK, options) for module in MODULES], environment, options)
