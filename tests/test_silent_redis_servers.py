"""Redis servers that accept connections and say nothing are waited for together by whoever asks all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import redis
from django.conf import settings
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import reverse

from tenant_slots import fleet, queue_directory, redis_servers
from tenant_slots.contrib.prometheus import TenantSlotsCollector
from tenant_slots.repair import steps
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests.factories import worker_on_record
from tests.repair.test_doctor import doctor
from tests.sentinels import silent_servers

pytestmark = pytest.mark.django_db(transaction=True)

SILENT = 3

request: ContextVar[str] = ContextVar("request", default="nobody's")


def everybody(request: HttpRequest) -> bool:
    return True


@pytest.fixture
def silent() -> Iterator[list[int]]:
    """The ports of servers that say nothing, each of which has a queue. The other queues are on one that answers."""
    with silent_servers(SILENT) as ports:
        queues = {f"silent_{port}": {"URL": f"redis://127.0.0.1:{port}/0"} for port in ports}
        path = f"{__name__}.everybody"
        with override_settings(
            RQ_QUEUES=queues | settings.RQ_QUEUES, TENANT_SLOTS={"MAY_VIEW_HEALTH": path, "MAY_VIEW_METRICS": path}
        ):
            yield ports
    redis_servers.forget_absences()


class Together:
    """Nobody connects to a silent server before somebody is about to connect to each of the others."""

    def __init__(self, ports: list[int]) -> None:
        self.all_are_asked = Barrier(len(ports))
        self.times = Counter[int]()
        self.patience = 20.0
        self._ports = ports
        self._connect = redis.Connection._connect

    def connect(self, connection: redis.Connection) -> Any:
        if connection.port in self._ports:
            self.times[connection.port] += 1
            with suppress(BrokenBarrierError):
                self.all_are_asked.wait(self.patience)
        return self._connect(connection)


@pytest.fixture
def together(silent: list[int], monkeypatch: pytest.MonkeyPatch) -> Together:
    """Once they are known to be away they are not asked again, however long a busy machine takes for the rest."""
    monkeypatch.setattr(redis_servers, "AWAY_SECONDS", 60)
    together = Together(silent)
    monkeypatch.setattr(redis.Connection, "_connect", lambda connection: together.connect(connection))
    return together


def scrape() -> tuple[Counter[float], bool]:
    """Of how many queues the Redis is up or not; and whether there are workers."""
    families = {family.name: family.samples for family in TenantSlotsCollector().collect()}
    up = Counter(sample.value for sample in families["tenant_slots_redis_up"])
    return up, any(sample.value for sample in families["tenant_slots_workers"])


def findings(check: str) -> dict[str, int]:
    found: dict[str, int] = Client().get(reverse("health"), {"check": check}).json()["findings"]
    return found


def workers() -> tuple[set[str], int]:
    known = fleet.known()
    return {member.name for member in known.of("imports")}, len(known.unasked)


WAYS: dict[str, tuple[Callable[[], Any], Any]] = {
    "the workers": (workers, ({"works-for-imports"}, SILENT)),
    "a scrape": (scrape, ({0: SILENT, 1: len(settings.RQ_QUEUES)}, True)),
    "health": (lambda: findings("workers"), {"redis": SILENT}),
    "health of Redis": (lambda: findings("redis"), {"redis": SILENT}),
    "the probe of a container": (lambda: doctor("--here"), (0, "all is well\n")),
}


@pytest.mark.parametrize("way", WAYS)
def test_they_are_waited_for_together_and_the_others_queues_are_told_of(way: str, together: Together) -> None:
    worker_on_record("works-for-imports")
    ask, told = WAYS[way]
    assert ask() == told
    assert not together.all_are_asked.broken, "they are asked one after the other"
    assert together.times == dict.fromkeys(together.times, 1)
    assert together.times.total() == SILENT


def test_control_without_a_look_at_all_of_them_each_is_waited_for(
    together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_directory, "look_at_servers", lambda *_: None)
    together.patience = 0.1
    worker_on_record("works-for-imports")
    assert workers() == WAYS["the workers"][1]
    assert together.all_are_asked.broken


@pytest.mark.parametrize(
    ("look", "pause"),
    [
        (fleet.known, redis_servers.AWAY_SECONDS),
        pytest.param(lambda: steps.look_at_servers(Report(), Contact()), 2 * redis_servers.AWAY_SECONDS, id="control"),
    ],
)
@pytest.mark.usefixtures("silent")
def test_only_a_sweep_leaves_them_out_for_longer(look: Callable[[], object], pause: float) -> None:
    """What is enqueued in a web process after one is back would be left to a sweep for as long."""
    look()
    assert [absence.pause for absence in redis_servers.absences().values()] == [pause] * SILENT


@pytest.mark.usefixtures("silent")
def test_the_questions_are_in_the_trace_of_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def ping(connection: redis.Redis) -> bool:
        seen.append(request.get())
        return True

    monkeypatch.setattr(redis.Redis, "ping", ping)
    request.set("a scrape")
    queue_directory.look_at_servers(settings.RQ_QUEUES)
    assert seen == ["a scrape"] * (SILENT + 1)
