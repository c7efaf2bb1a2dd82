"""Weighted queues: the order in which a worker looks into its queues is drawn for every job."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import django_rq
import pytest
from django.test import override_settings
from rq import Queue
from rq.job import Job
from rq.worker import BaseWorker, DequeueStrategy

from tenant_slots import transitions
from tenant_slots.models import overflow_queue_of
from tenant_slots.workers import TenantPreforkWorker, TenantSimpleWorker, TenantWorker, weights
from tests.factories import DeafWorker, tenant_queue, waiting_job

DRAWS = 20_000
WITHIN = 0.015
"""Four standard deviations of a share of so many draws; with the seed the draws are the same in every run."""

A, B, C = "imports", "imports_throttled", "imports_slow"
WEIGHTS = {A: 6, B: 3, C: 1}


class DeafTenantWorker(DeafWorker, TenantSimpleWorker):
    """Runs jobs in this process."""


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    state = random.getstate()
    random.seed(20)
    yield
    random.setstate(state)


def names(queues: list[Queue]) -> list[str]:
    return [queue.name for queue in queues]


def draws(given: dict[str, float], queues: tuple[str, ...] = (A, B, C)) -> list[list[str]]:
    own = [django_rq.get_queue(name) for name in queues]
    return [names(weights.drawn(own, given)) for _ in range(DRAWS)]


def shares(drawn: list[str]) -> dict[str, float]:
    return {name: count / len(drawn) for name, count in Counter(drawn).items()}


def test_each_queue_is_first_as_often_as_its_weight_says() -> None:
    first = shares([order[0] for order in draws(WEIGHTS)])
    assert first == pytest.approx({A: 0.6, B: 0.3, C: 0.1}, abs=WITHIN)


def test_the_others_share_what_the_first_one_leaves_when_it_is_empty() -> None:
    second = shares([order[1] for order in draws(WEIGHTS) if order[0] == A])
    assert second == pytest.approx({B: 0.75, C: 0.25}, abs=WITHIN)


def test_control_equal_weights_give_equal_shares() -> None:
    first = shares([order[0] for order in draws({A: 2, B: 2, C: 2})])
    assert first == pytest.approx({A: 1 / 3, B: 1 / 3, C: 1 / 3}, abs=WITHIN)
    assert first != pytest.approx({A: 0.6, B: 0.3, C: 0.1}, abs=WITHIN)


@pytest.mark.parametrize("factor", [1e-9, 1e9])
def test_only_the_ratio_of_weights_counts(factor: float) -> None:
    first = shares([order[0] for order in draws({name: weight * factor for name, weight in WEIGHTS.items()})])
    assert first == pytest.approx({A: 0.6, B: 0.3, C: 0.1}, abs=WITHIN)


def test_queues_without_a_weight_come_first_in_their_order() -> None:
    orders = draws({A: 1, C: 1}, (A, "reports", C, "default"))
    assert {tuple(order[:2]) for order in orders} == {("reports", "default")}
    assert {tuple(order[2:]) for order in orders} == {(A, C), (C, A)}


def fill(jobs: int, *queues: str) -> None:
    for name in queues:
        for _ in range(jobs):
            django_rq.get_queue(name).enqueue("operator.add", 1, 2)


def order_of_runs(*queues: str, strategy: DequeueStrategy = DequeueStrategy.DEFAULT) -> list[str]:
    """From which queue a worker takes each job until all are empty."""
    taken: list[str] = []

    class Noting(DeafTenantWorker):
        def execute_job(self, job: Job, queue: Queue) -> None:
            taken.append(queue.name)
            super().execute_job(job, queue)

    worker = Noting([django_rq.get_queue(name) for name in queues])
    worker.work(burst=True, logging_level="ERROR", dequeue_strategy=strategy)
    return taken


@pytest.mark.django_db(transaction=True)
@override_settings(TENANT_SLOTS={"QUEUE_WEIGHTS": WEIGHTS})
def test_a_worker_draws_for_every_job_from_the_first_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = iter([[C, A, B], [A, B, C], [B, C, A], [A, B, C], [A, B, C], [C, B, A], [A, B, C]])
    monkeypatch.setattr(weights, "drawn", lambda *_: [django_rq.get_queue(name) for name in next(chosen)])
    fill(2, A, B, C)
    assert order_of_runs(A, B, C) == [C, A, B, A, B, C]


@pytest.mark.django_db(transaction=True)
@override_settings(TENANT_SLOTS={"QUEUE_WEIGHTS": WEIGHTS})
def test_a_slow_queue_runs_at_full_speed_when_the_others_are_empty_and_never_stalls_when_they_are_full() -> None:
    fill(3, C)
    assert order_of_runs(A, B, C) == [C, C, C]
    fill(60, A, B, C)
    taken = order_of_runs(A, B, C)
    assert len(taken) == 180
    assert C in taken[:60]
    assert Counter(taken[:90])[A] > Counter(taken[:90])[B] > Counter(taken[:90])[C]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(DequeueStrategy.DEFAULT, [A, A, B, B, C, C]), (DequeueStrategy.ROUND_ROBIN, [A, B, C, A, B, C])],
)
@pytest.mark.parametrize("given", [{}, {"reports": 5}])
def test_without_a_weight_for_its_queues_a_worker_keeps_to_rqs_strategy(
    given: dict[str, float], strategy: DequeueStrategy, expected: list[str]
) -> None:
    fill(2, A, B, C)
    with override_settings(TENANT_SLOTS={"QUEUE_WEIGHTS": given}):
        assert order_of_runs(A, B, C, strategy=strategy) == expected


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", list(DequeueStrategy))
@override_settings(TENANT_SLOTS={"QUEUE_WEIGHTS": {A: 1}})
def test_with_a_weight_a_strategy_changes_nothing(strategy: DequeueStrategy) -> None:
    fill(3, "reports", A)
    assert order_of_runs(A, "reports", strategy=strategy) == ["reports"] * 3 + [A] * 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("worker_class", [TenantPreforkWorker, TenantSimpleWorker, TenantWorker])
@override_settings(TENANT_SLOTS={"QUEUE_WEIGHTS": {A: 1, B: 1}})
def test_every_worker_class_draws(worker_class: type[BaseWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[object] = []
    monkeypatch.setattr(weights, "drawn", lambda queues, _: drawn.append(queues) or list(queues))
    queue = django_rq.get_queue(A)
    worker_class([queue], connection=queue.connection).work(burst=True)
    assert drawn


@pytest.mark.django_db(transaction=True)
@override_settings(TENANT_SLOTS={"QUEUE_WEIGHTS": WEIGHTS})
def test_so_it_does_for_the_turns_of_tenants(no_workers: None) -> None:
    """Whose jobs are in no list of RQ until a worker takes them; in each queue 60 wait, one of them admitted ahead."""
    for name in (A, B, C):
        row = tenant_queue(name, max_job=60)
        for _ in range(60):
            waiting_job(row, rq_queue=overflow_queue_of(name, row.queue))
        transitions.offer(row.pk, name)
    taken = order_of_runs(A, B, C)
    assert len(taken) == 180
    assert Counter(taken[:90])[A] > Counter(taken[:90])[B] > Counter(taken[:90])[C] > 0
