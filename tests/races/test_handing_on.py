"""A worker hands a slot on while somebody holds rows that it needs: the end of a job is its own all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import django_rq
import pytest
from django.db import connection, transaction

from tenant_slots import held
from tenant_slots.models import State, TenantJob, TenantQueue
from tenant_slots.running.supervised import SupervisedRun
from tenant_slots.workers import TenantPreforkWorker, TenantWorker
from tenant_slots.workers.kept import Ending, KeptEndings
from tests import jobs
from tests.factories import counters_match, redis_forgets, tenant_queue
from tests.history import History
from tests.processes import somebody_waits_for_this_session, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no locks on rows"),
]

Worker = type[TenantPreforkWorker] | type[TenantWorker]


def never_the_one_that_is_ended() -> None:
    """Of two that wait for each other PostgreSQL ends the one that looks first: the worker."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL deadlock_timeout = '30s'")


@contextmanager
def cancels_slowly(job: TenantJob, has_queue: Event, until: Event) -> Iterator[None]:
    """A transaction that locks a waiting job, then its tenant queue too when a worker waits for the job."""

    def hold() -> None:
        try:
            with transaction.atomic():
                never_the_one_that_is_ended()
                TenantJob.objects.select_for_update().get(pk=job.pk)
                has_job.set()
                wait_until(somebody_waits_for_this_session)
                TenantQueue.objects.select_for_update(no_key=True).get(pk=job.tenant_queue_id)
                has_queue.set()
                assert until.wait(20), "no end was kept"
        finally:
            connection.close()

    has_job = Event()
    holder = Thread(target=hold)
    holder.start()
    assert has_job.wait(20)
    try:
        yield
    finally:
        until.set()
        holder.join(30)


@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])
def test_an_end_is_kept_as_its_own_although_the_next_job_was_chosen_already(
    worker_class: Worker, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job's row is held, and then the tenant queue too, so that neither can be recorded for a while."""
    row = tenant_queue(max_job=1)
    redis_forgets()
    jobs.record.enqueue_many([(("acme", f"acme-{nth}", history.path), {}) for nth in range(2)])
    first, second = row.jobs.order_by("pk")
    kept: list[Ending] = []
    has_queue, is_kept = Event(), Event()

    def then_both_are_held(run: SupervisedRun) -> None:
        """A row that a transaction gives up is anybody's who asks before the one who waits for it has woken up."""
        hold_again(run)
        assert has_queue.wait(20)

    def noted(endings: KeptEndings, ending: Ending) -> None:
        kept.append(ending)
        add(endings, ending)
        is_kept.set()

    hold_again, add = SupervisedRun.hold_again, KeptEndings.add
    monkeypatch.setattr(SupervisedRun, "hold_again", then_both_are_held)
    monkeypatch.setattr(KeptEndings, "add", noted)
    monkeypatch.setattr(worker_class, "has_nothing_else_to_do", worker_class.goes_on)
    monkeypatch.setattr(held, "LONGEST_LOOK", 20)  # until somebody has seen that it waits
    with cancels_slowly(second, has_queue, is_kept):
        run(worker_class)
    assert [ending.run[0] for ending in kept] == [first.pk]
    assert [ending.outcome and ending.outcome["state"] for ending in kept] == [State.FINISHED]
    run(worker_class)
    assert history.started() == ["acme-0", "acme-1"]
    assert set(row.jobs.values_list("state", "attempt")) == {(State.FINISHED, 1)}
    assert counters_match()


def run(worker_class: Worker, **options: Any) -> None:
    queue = django_rq.get_queue("imports")
    worker = worker_class([queue], connection=django_rq.get_connection("imports"))
    worker.work(burst=True, logging_level="ERROR", **options)
