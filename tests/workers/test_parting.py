"""The end of a worker: what it keeps is recorded once, and Redis is told that it is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import django_rq
import pytest

from tenant_slots import redis_servers
from tenant_slots.models import State
from tenant_slots.workers import TenantSimpleWorker
from tenant_slots.workers.kept import Ending

pytestmark = pytest.mark.django_db(transaction=True)


class PartingWorker(TenantSimpleWorker):
    """One that keeps an end. What happens while it tries to record that is given, and it is recorded then."""

    happens: Callable[[TenantSimpleWorker], object]
    tries = 0

    def settle_kept(self) -> None:
        self.tries += 1
        self.happens(self)
        super().settle_kept()


def ended(happens: Callable[[TenantSimpleWorker], object]) -> PartingWorker:
    queue = django_rq.get_queue("imports")
    worker_class = type("Worker", (PartingWorker,), {"happens": staticmethod(happens)})
    worker: PartingWorker = worker_class([queue], connection=queue.connection)
    worker.run_maintenance_tasks = lambda: worker.kept.add(Ending((1, 1), {"state": State.FINISHED}))
    with suppress(SystemExit):
        worker.work(burst=True, logging_level="ERROR")
    return worker


def asked_to_end_at_once(worker: TenantSimpleWorker) -> None:
    raise SystemExit


def test_a_worker_that_is_to_end_at_once_while_it_parts_does_not_begin_anew_and_leaves_no_record() -> None:
    worker = ended(asked_to_end_at_once)
    assert (worker.tries, worker.death_date is not None) == (1, True)


def test_one_that_is_asked_to_end_while_it_parts_does_so_in_one_go() -> None:
    worker = ended(TenantSimpleWorker._shutdown)
    assert (worker.tries, worker.death_date is not None) == (1, True)


def test_redis_is_told_of_the_end_though_it_was_away_a_moment_ago() -> None:
    """Or a worker of the same name could not begin for minutes."""

    def lose_redis(worker: TenantSimpleWorker) -> None:
        server = redis_servers.server_of(worker.connection)
        redis_servers._away[server] = redis_servers.Absence(time.monotonic() + 3600, "it did not answer")

    assert ended(lose_redis).death_date is not None
