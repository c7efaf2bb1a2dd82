"""The one read side: what the tables say now, for the admin, the commands and the status view.

Numbers and facts, never a text in somebody's language: whoever shows them words them. `tenant_queues` counts for the
commands, `rows` and `tiles` measure for the live pages, `states` names the state of a tenant queue, `series` and
`percentiles` draw over time, `minutes` what a week has brought, of which `minute_counts` is the source, `worker_time`
is what fair order divides, `positions` and `held` say who is next and who has the slots, `reasons` why a job does not
run yet, `pace` when it may, `limit_reasons` why a limit is what it is, `lanes` which of RQ's queues have jobs, and
`sweeps` whether anybody sweeps. What they are made of in SQL is in `expressions`. Nothing here writes, and nothing asks
Redis.
"""

from tenant_slots.stats.positions import position_in_backlog
from tenant_slots.stats.tenant_queues import QueueUsage, usage

__all__ = ["QueueUsage", "position_in_backlog", "usage"]
