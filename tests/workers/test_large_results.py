"""A result that is too large for a worker costs the result, and neither the worker nor anybody else's job."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest
from rq.defaults import UNSERIALIZABLE_RETURN_VALUE_PAYLOAD

from tenant_slots import queue_directory, tenant_job
from tenant_slots.models import State, TenantJob
from tenant_slots.workers import TenantPreforkWorker, TenantWorker, riding
from tests.factories import fresh

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker])


@tenant_job("imports", tenant="tenant")
def returns(tenant: str, size: int) -> str:
    return "x" * size


def run(worker_class: Worker) -> None:
    queue = django_rq.get_queue("imports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="CRITICAL")


def kept_by_rq(job: TenantJob) -> Any:
    rq_job = queue_directory.queue_named("imports").fetch_job(fresh(job).last_rq_id)
    assert rq_job is not None
    return rq_job.return_value()


@CLASSES
def test_rq_keeps_a_sentence_in_its_place(worker_class: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(riding, "RESULT_BYTES", 1000)
    small, large = returns.enqueue("acme", 900), returns.enqueue("acme", 1100)
    run(worker_class)
    assert kept_by_rq(small) == "x" * 900
    assert kept_by_rq(large) == UNSERIALIZABLE_RETURN_VALUE_PAYLOAD
    assert fresh(large).state == State.FINISHED
    assert large.result == "x" * 1100, "the row has room for it"


@CLASSES
@pytest.mark.parametrize("later", [True, False], ids=["later", "at once"])
def test_a_worker_that_has_no_room_to_tell_rq_goes_on(
    later: bool, worker_class: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def no_room(worker: Any, ended: Any) -> None:
        told.append(ended)
        raise MemoryError

    monkeypatch.setattr(worker_class, "tell_rq", no_room)
    monkeypatch.setattr(worker_class, "tell_rq_of_successes", no_room)
    monkeypatch.setattr(worker_class, "may_hear_later", lambda *_: later)
    jobs = [returns.enqueue("whale", 1), returns.enqueue("acme", 1)]
    run(worker_class)
    assert told
    assert [fresh(job).state for job in jobs] == [State.FINISHED] * 2
