"""A worker that RQ has ask again after a Redis that was away does ask it."""

from __future__ import annotations

import time
from typing import Any

import django_rq
import pytest

from tenant_slots import redis_servers
from tenant_slots.models import State
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, turns
from tests import jobs
from tests.factories import fresh
from tests.history import History
from tests.sleeping import replace_sleep

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker] | type[TenantSimpleWorker]


class AskedInVain(BaseException):
    """RQ would have it ask for ever."""


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])
@pytest.mark.parametrize("forgets", [True, pytest.param(False, id="control")])
def test_a_server_that_was_away_a_moment_ago_is_asked_for_the_next_job(
    worker_class: Worker, forgets: bool, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RQ waits for a second, and longer each time: three answers by hearsay would keep it away for seven."""
    job = jobs.record.enqueue("acme", "after", history.path)
    queue = django_rq.get_queue("imports")
    worker = worker_class([queue], connection=queue.connection)
    real, asked = worker._found, []

    def found(*arguments: Any) -> Any:
        asked.append(arguments)
        if len(asked) == 1:
            server = redis_servers.server_of(worker.connection)
            redis_servers._away[server] = redis_servers.Absence(time.monotonic() + 1000, "away")
        elif len(asked) > 2 and not history.started():
            raise AskedInVain
        return real(*arguments)

    monkeypatch.setattr(worker, "_found", found)
    replace_sleep(monkeypatch, lambda seconds: None)
    if not forgets:
        monkeypatch.setattr(turns, "forget_absence", lambda connection: None)
    try:
        worker.work(burst=True, logging_level="CRITICAL")
    except (AskedInVain, SystemExit):
        assert not forgets
    finally:
        redis_servers.forget_absences()
    assert (fresh(job).state == State.FINISHED) is forgets
