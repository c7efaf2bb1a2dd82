"""Metrics for Prometheus: any web or worker process tells those of the whole, when it is asked.

Whichever process is scraped tells the same, so that of several a query takes the ``max``, not the ``sum``. Nothing is
counted in the process itself: counters are kept in the database, survive every restart, and grow once a minute.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from django.contrib.auth.decorators import login_not_required
from django.db import Error
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tenant_slots import fair_order, fleet, queue_directory
from tenant_slots.access import decision, is_allowed
from tenant_slots.conf import app_settings
from tenant_slots.db.requests import outside_transactions
from tenant_slots.models import QueueTotal, State
from tenant_slots.models.queue_minute import DELAY_BOUNDS, DELAYS, RUN_BOUNDS, RUNS
from tenant_slots.queue_names import usable_queues
from tenant_slots.repair import liveness
from tenant_slots.stats import metrics as facts
from tenant_slots.stats.in_time import answered_in_time
from tenant_slots.stats.metrics import Figures, HeldBackBy, Metrics

NOT_ENDED = (State.SCHEDULED, State.WAITING, State.QUEUED, State.RUNNING)

OUTCOMES = (State.FINISHED, State.FAILED, State.CANCELED)

WORKER_STATES = ("idle", "busy", "suspended", "started", "leaving", "lost")
"""RQ's words; and of one that ends after its job, and of one that is on record and does not say that it lives."""

GAUGES = {
    "database_up": ("Whether the database could be asked.", ()),
    "redis_up": ("Whether the Redis of a queue could be asked.", ("queue",)),
    "jobs": ("Jobs that have not ended.", ("queue", "state")),
    "jobs_runnable": ("Waiting jobs that would start if workers were free.", ("queue",)),
    "jobs_held_back": ("Waiting jobs that no free worker could start.", ("queue", "reason")),
    "capacity": ("Slots of all tenants that are not paused.", ("queue",)),
    "slots_in_use": ("Slots that are taken.", ("queue",)),
    "oldest_wait_seconds": ("For how long the job has waited that became ready first.", ("queue",)),
    "workers": ("Workers that RQ has on record, in each of their queues.", ("queue", "state")),
    "window_jobs": ("Jobs in RQ's list, plain ones among them.", ("queue",)),
    "tenants_in_order": ("Tenants that wait for their turn in Redis.", ("queue",)),
    "last_sweep_age_seconds": ("Since when the last sweep began.", ()),
    "oldest_snapshot_seconds": ("For how long the oldest transaction has kept what others deleted.", ()),
    "tenant_jobs": ("Jobs of a tenant that have not ended.", ("tenant", "queue", "state")),
    "tenant_jobs_runnable": ("As jobs_runnable, of a tenant.", ("tenant", "queue")),
    "tenant_jobs_held_back": ("Waiting jobs of a tenant that no free worker could start.", ("tenant", "queue")),
    "tenant_capacity": ("Slots of a tenant; 0 while it is paused.", ("tenant", "queue")),
    "tenant_slots_in_use": ("Slots of a tenant that are taken.", ("tenant", "queue")),
}

COUNTERS = {
    "starts": ("Starts of jobs, the repeated ones too.", ("queue",)),
    "ends": ("Ends of jobs.", ("queue", "outcome")),
    "crashes": ("Runs whose process died under a worker that lived on.", ("queue",)),
    "interruptions": ("Runs whose worker died, or was ended.", ("queue",)),
    "sweeps": ("Sweeps of everything.", ()),
    "reclaims": ("Slots that sweeps took back from dead runs.", ()),
}

HISTOGRAMS = {
    "start_delay_seconds": ("From when a job was due to its first start.", ("queue",)),
    "run_time_seconds": ("Of the last run of jobs that finished or failed.", ("queue",)),
}


class TenantSlotsCollector(Collector):
    """To be registered once in a process: ``REGISTRY.register(TenantSlotsCollector())``."""

    def describe(self) -> Iterable[Metric]:
        """The names, without a query: to register it asks nobody."""
        return _Exposition().families()

    def collect(self) -> Iterable[Metric]:
        """At most seven queries, three requests to each Redis, four where there are several, and two for each queue.

        While one of them is out of reach, what it knows is left out.
        """
        if not _is_in_event_loop():
            return _collected()
        with ThreadPoolExecutor(1) as thread:  # prometheus_client's ASGI app calls this in the event loop
            return thread.submit(_collected).result()


def _is_in_event_loop() -> bool:
    """Where Django refuses to ask a database."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        return True
    return False


def _collected() -> list[Metric]:
    exposition = _Exposition()
    exposition.tell("database_up", (), float(_tell_database(exposition)))
    _tell_redis(exposition)
    return exposition.families()


class _Exposition:
    """The metrics of one scrape, by their names without the prefix."""

    def __init__(self) -> None:
        self._single: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: GaugeMetricFamily(f"tenant_slots_{name}", text, labels=labels)
            for name, (text, labels) in GAUGES.items()
        }
        for name, (text, labels) in COUNTERS.items():
            self._single[name] = CounterMetricFamily(f"tenant_slots_{name}", text, labels=labels)
        self._histograms = {
            name: HistogramMetricFamily(f"tenant_slots_{name}", text, labels=labels)
            for name, (text, labels) in HISTOGRAMS.items()
        }

    def families(self) -> list[Metric]:
        return [*self._single.values(), *self._histograms.values()]

    def tell(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """Nothing where nothing is known."""
        if value is not None:
            self._single[name].add_metric(labels, value)

    def tell_histogram(
        self, name: str, labels: Sequence[str], bounds: Sequence[float], counts: Sequence[int], seconds: float
    ) -> None:
        buckets, total = [], 0
        for bound, count in zip([*map(str, map(float, bounds)), "+Inf"], counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        self._histograms[name].add_metric(labels, buckets, seconds)


# --- what the database knows ------------------------------------------------------------------------------------------


def _tell_database(exposition: _Exposition) -> bool:
    """All of it or nothing: a part would look like a change."""
    try:
        with answered_in_time():
            found, snapshot = facts.collected(app_settings.METRICS_TENANTS), liveness.oldest_snapshot()
    except Error:  # out of reach, or not migrated yet
        return False
    queues = {*_queues(), *found.queues}
    for queue in sorted(queues):
        _tell_queue(exposition, queue, found.queues.get(queue, Figures()))
    for queue in sorted(queues | found.totals.keys()):
        _tell_totals(exposition, queue, found.totals.get(queue) or QueueTotal(queue=queue))
    _tell_tenants(exposition, found)
    exposition.tell("sweeps", (), found.sweeps.count)
    exposition.tell("reclaims", (), found.sweeps.reclaimed)
    exposition.tell("last_sweep_age_seconds", (), found.sweeps.seconds_ago)
    exposition.tell("oldest_snapshot_seconds", (), snapshot or 0.0)
    return True


def _tell_queue(exposition: _Exposition, queue: str, figures: Figures) -> None:
    for state in NOT_ENDED:
        exposition.tell("jobs", (queue, state.value), figures.jobs[state])
    for reason in HeldBackBy:
        exposition.tell("jobs_held_back", (queue, reason.value), figures.held_back[reason])
    exposition.tell("jobs_runnable", (queue,), figures.runnable)
    exposition.tell("capacity", (queue,), figures.capacity)
    exposition.tell("slots_in_use", (queue,), figures.in_use)
    exposition.tell("oldest_wait_seconds", (queue,), figures.oldest_wait or 0.0)


def _tell_totals(exposition: _Exposition, queue: str, total: QueueTotal) -> None:
    """Zeros too: what grows from none to one is an increase, and a first value is not."""
    counts = vars(total)
    for outcome in OUTCOMES:
        exposition.tell("ends", (queue, outcome.value), counts[outcome.value])
    for name, column in (("starts", "started"), ("crashes", "crashes"), ("interruptions", "interruptions")):
        exposition.tell(name, (queue,), counts[column])
    delays, runs = [counts[name] for name in DELAYS], [counts[name] for name in RUNS]
    exposition.tell_histogram("start_delay_seconds", (queue,), DELAY_BOUNDS, delays, counts["delay_ms"] / 1000)
    exposition.tell_histogram("run_time_seconds", (queue,), RUN_BOUNDS, runs, counts["run_ms"] / 1000)


def _tell_tenants(exposition: _Exposition, found: Metrics) -> None:
    for figures in found.tenants:
        labels = (figures.tenant, figures.queue)
        for state in NOT_ENDED:
            exposition.tell("tenant_jobs", (*labels, state.value), figures.jobs[state])
        exposition.tell("tenant_jobs_runnable", labels, figures.runnable)
        exposition.tell("tenant_jobs_held_back", labels, sum(figures.held_back.values()))
        exposition.tell("tenant_capacity", labels, figures.capacity)
        exposition.tell("tenant_slots_in_use", labels, figures.in_use)


# --- what Redis knows -------------------------------------------------------------------------------------------------


def _tell_redis(exposition: _Exposition) -> None:
    known = fleet.known()
    for queue in _queues():
        is_up = queue not in known.unasked and _tell_lists(exposition, queue)
        exposition.tell("redis_up", (queue,), float(is_up))
        if is_up:
            states = Counter(map(_state_of, known.of(queue)))
            for state in WORKER_STATES:
                exposition.tell("workers", (queue, state), states[state])


def _tell_lists(exposition: _Exposition, queue: str) -> bool:
    try:
        window, tenants = queue_directory.window_of(queue), fair_order.tenants_in(queue)
    except queue_directory.OUT_OF_REACH:
        return False
    exposition.tell("window_jobs", (queue,), window)
    exposition.tell("tenants_in_order", (queue,), tenants)
    return True


def _state_of(member: fleet.Member) -> str:
    if not member.is_alive:
        return "lost"
    return "leaving" if member.is_leaving else member.state


def _queues() -> list[str]:
    return sorted(usable_queues())


# --- the view ---------------------------------------------------------------------------------------------------------


@login_not_required
@outside_transactions
@cache_control(no_store=True)
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """These metrics and no others, for projects that have no page for Prometheus yet.

    404 to everybody while ``MAY_VIEW_METRICS`` is empty, and to those whom it does not allow.

    Raises:
        InvalidSetting: the callable of ``MAY_VIEW_METRICS`` cannot be imported.
    """
    if not is_allowed(decision("MAY_VIEW_METRICS"), request):
        return JsonResponse({"error": "not found"}, status=404)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TenantSlotsCollector())
    encode, content_type = _encoder_for(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


def _encoder_for(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # prometheus_client compares what is no version (0.26), or reads it first (0.23)
        return choose_encoder("")
