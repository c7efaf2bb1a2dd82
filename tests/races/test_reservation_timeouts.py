"""Reservations that time out while slots are handed on: each admission is used or given back, none leaks."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest
from django.db import connections

from tenant_slots import hold_slot, transitions
from tenant_slots.exceptions import NoFreeSlot
from tenant_slots.models import State, TenantJob, TenantQueue
from tests.factories import admit, counters_match, fresh, tenant_queue

pytestmark = pytest.mark.django_db(transaction=True)

THREADS, ROUNDS, LIMIT = 8, 12, 2


class Crowd:
    """Threads that take and leave one tenant's slots; counts how many are inside at once."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.inside = self.most = 0
        self._lock = threading.Lock()

    def run(self) -> None:
        threads = [threading.Thread(target=self._come_and_go, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _come_and_go(self, seed: int) -> None:
        luck = random.Random(seed)
        for _ in range(ROUNDS):
            try:
                with hold_slot("acme", "imports", timeout=luck.choice((0, 0.02, 0.05, 0.2))):
                    self._count(1)
                    time.sleep(luck.random() * 0.03)
                    self._count(-1)
                self.outcomes["held"] += 1
            except NoFreeSlot:
                self.outcomes["refused"] += 1
        connections.close_all()

    def _count(self, change: int) -> None:
        with self._lock:
            self.inside += change
            self.most = max(self.most, self.inside)


def test_a_crowd_never_exceeds_the_limit_and_leaves_nothing_behind() -> None:
    row = tenant_queue(max_job=LIMIT)
    crowd = Crowd()
    crowd.run()
    assert crowd.most <= LIMIT
    assert crowd.outcomes["held"] >= LIMIT
    assert crowd.outcomes["refused"], "the control: somebody must have met a full queue"
    assert sum(crowd.outcomes.values()) == THREADS * ROUNDS
    assert not TenantJob.objects.exclude(state__in=(State.FINISHED, State.CANCELED)).exists()
    assert fresh(row).current_job == 0


def test_control_leaving_the_backlog_without_checking_the_state_leaks_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    row = tenant_queue(max_job=0)

    def admit_then_cancel(job: TenantJob, reason: str) -> bool:
        TenantQueue.objects.update(max_job=1)
        admit(row)
        return bool(TenantJob.objects.filter(pk=job.pk).update(state=State.CANCELED))

    monkeypatch.setattr(transitions, "cancel_unstarted", admit_then_cancel)
    with pytest.raises(NoFreeSlot), hold_slot("acme", "imports"):
        pass
    assert not counters_match()
