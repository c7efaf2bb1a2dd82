"""Every benchmark in turn, and one table."""

from __future__ import annotations

from benchmarks import (
    admin_list,
    bulk,
    cost,
    dead_worker,
    hand_over,
    hot_tenant,
    killed_job,
    limits_hold,
    line_owner,
    noisy_neighbour,
    old_snapshot,
    per_job,
    sweep_cost,
    throttle_cost,
    weights,
)
from benchmarks.harness import common_options, finish, run, set_up

MODULES = (
    limits_hold,
    noisy_neighbour,
    line_owner,
    hand_over,
    cost,
    per_job,
    hot_tenant,
    old_snapshot,
    bulk,
    killed_job,
    dead_worker,
    sweep_cost,
    throttle_cost,
    weights,
    admin_list,
)

if __name__ == "__main__":
    options = common_options()
    environment = set_up()
    finish([run(module.BENCHMARK, options) for module in MODULES], environment, options)
