"""The limit per concurrency key holds with real workers."""

from __future__ import annotations

from collections import Counter

from tenant_slots.models import ENDED, TenantJob, TenantQueue
from tests.history import History
from tests.jobs import for_user
from tests.processes import Workers, wait_until

USERS = ("ann", "bob", "cid")
JOBS_EACH = 20


def all_ended() -> bool:
    return not TenantJob.objects.exclude(state__in=ENDED).exists()


def test_no_user_runs_two_jobs_while_every_user_always_runs_one(workers: Workers, history: History) -> None:
    TenantQueue.objects.create(tenant="acme", queue="imports", max_job=4, max_job_per_key=1)
    workers.start(4)
    # The first one of each user is long enough for the others' to begin beside it, however busy the machine is.
    calls = [
        (("acme", user, f"{n:02}", history.path, 0.05 if n else 2.0), {}) for user in USERS for n in range(JOBS_EACH)
    ]
    for_user.enqueue_many(calls)
    wait_until(lambda: TenantQueue.objects.get().current_job == 3, message="three slots are not busy")
    wait_until(all_ended, timeout=60)
    running: Counter[str] = Counter()
    together = []
    for event in history.events():
        user, _, _ = event.name.partition("/")
        running[user] += 1 if event.kind == "start" else -1
        assert running[user] in (0, 1)
        together.append(running.total())
    assert max(together) == 3
    for user in USERS:
        mine = [name for name in history.started() if name.startswith(user)]
        assert mine == [f"{user}/{n:02}" for n in range(JOBS_EACH)]
    assert TenantQueue.objects.get().current_job == 0
