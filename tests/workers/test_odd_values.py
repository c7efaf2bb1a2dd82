"""A value of a job that Python can hold, and that somebody on its way cannot, costs that job at most."""

from __future__ import annotations

from typing import Any

import django_rq
import pytest
from django.utils.functional import SimpleLazyObject

from tenant_slots import tenant_job
from tenant_slots.exceptions import ArgumentNotJSON
from tenant_slots.models import State, TenantJob
from tenant_slots.tasks.arguments import DEEPEST
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker
from tests.factories import fresh, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)

Worker = type[TenantPreforkWorker] | type[TenantWorker] | type[TenantSimpleWorker]

CLASSES = pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantWorker, TenantSimpleWorker])


class Silent:
    def __str__(self) -> str:
        raise AttributeError("a relation of it is empty")


class Pretends(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("not by this")


RESULTS = {
    "without a text": Silent,
    "a lazy dict": lambda: SimpleLazyObject(lambda: {"a": 1}),
    "a dict that cannot be read": lambda: Pretends(a=1),
    "a number of 5,000 digits": lambda: 10**5000,
}


@tenant_job("imports", tenant="tenant")
def returns(tenant: str, kind: str) -> Any:
    return RESULTS[kind]()


@tenant_job("imports", tenant="tenant")
def takes(tenant: str, value: Any) -> str:
    return type(value).__name__


def run(worker_class: Worker) -> None:
    queue = django_rq.get_queue("imports")
    worker_class([queue], connection=queue.connection).work(burst=True, logging_level="CRITICAL")


@CLASSES
@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_that_cannot_be_kept_costs_the_result_alone(worker_class: Worker, kind: str) -> None:
    odd, other = returns.enqueue("whale", kind), takes.enqueue("acme", 1)
    run(worker_class)
    assert (fresh(odd).state, odd.attempt, odd.result) == (State.FINISHED, 1, None)
    assert fresh(other).state == State.FINISHED


@pytest.mark.parametrize("kind", ["a lazy dict", "a dict that cannot be read"])
def test_as_an_argument_it_is_refused_with_its_name(kind: str) -> None:
    with pytest.raises(ArgumentNotJSON, match="value"):
        takes.enqueue("acme", RESULTS[kind]())


@CLASSES
def test_an_argument_as_deep_as_may_be_ends_no_worker(worker_class: Worker) -> None:
    """It cannot be written to the line of a work-horse, which is born with it then."""
    tenant_queue("acme", max_job=1)
    deepest: list[Any] = []
    for _ in range(DEEPEST - 1):
        deepest = [deepest]
    takes.enqueue("acme", 1)
    deep, last = takes.enqueue("acme", deepest), takes.enqueue("acme", 2)
    run(worker_class)
    assert [(fresh(job).state, job.attempt) for job in (deep, last)] == [(State.FINISHED, 1)] * 2
    assert not TenantJob.objects.filter(crashes__gt=0).exists()
