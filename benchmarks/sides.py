"""The two sides of every comparison: tenant_slots and plain django-rq, with the same calls.

Models can only be imported once Django is set up, which the harness does after it has read the command line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

Arguments = tuple[object, ...]
"""The tenant, the name of the job, and what else the function takes."""


class Side(Protocol):
    label: str
    environment: dict[str, str]

    def set_limits(self, limits: Mapping[str, int]) -> None: ...
    def enqueue_many(self, function: str, calls: Iterable[Arguments]) -> None: ...


class TenantSlots:
    """Decorated functions through ``.enqueue_many()``, on the worker class under test."""

    def __init__(self, worker_class: str) -> None:
        self.kind = worker_class.rpartition(".")[2]
        self.label = f"tenant_slots, {self.kind}"
        self.environment = {"BENCHMARK_WORKER_CLASS": worker_class, "BENCHMARK_PLAIN": ""}

    def set_limits(self, limits: Mapping[str, int]) -> None:
        from tenant_slots.models import TenantQueue

        for tenant, limit in limits.items():
            TenantQueue.objects.create(tenant=tenant, queue="bench", max_job=limit)

    def enqueue_many(self, function: str, calls: Iterable[Arguments]) -> None:
        from benchmarks import jobs

        getattr(jobs, function).enqueue_many([(arguments, {}) for arguments in calls])


class PlainDjangoRQ:
    """The undecorated functions through django-rq's queue, on a worker of RQ's, without tenant_slots installed."""

    def __init__(self, worker_class: str = "") -> None:
        self.label = f"plain django-rq{worker_class and f', {worker_class}'}"
        self.environment = {"BENCHMARK_WORKER_CLASS": worker_class, "BENCHMARK_PLAIN": "1"}

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """It has none."""

    def enqueue_many(self, function: str, calls: Iterable[Arguments]) -> None:
        import django_rq

        from benchmarks import work

        queue = django_rq.get_queue("bench")
        queue.enqueue_many([queue.prepare_data(getattr(work, function), args=list(arguments)) for arguments in calls])
