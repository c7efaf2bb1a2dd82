"""Which workers there are, whatever they, their queues and their servers are called."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import django_rq
import pytest
import redis
from django.conf import settings
from django.test import override_settings
from rq.worker import Worker

from tenant_slots import fleet
from tenant_slots.models.queue_minute import ALL_QUEUES
from tenant_slots.queue_names import names_in
from tenant_slots.repair import minutes
from tests.factories import worker_on_record

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_workers")]

ELSEWHERE = "elsewhere"


@pytest.fixture
def _second_database() -> Iterator[None]:
    """Of the same server, which is another one to RQ: it has workers of its own."""
    url = urlsplit(settings.RQ_QUEUES["imports"]["URL"])._replace(query="db=7").geturl()
    with override_settings(RQ_QUEUES=settings.RQ_QUEUES | {ELSEWHERE: {"URL": url}}):
        django_rq.get_connection(ELSEWHERE).flushdb()
        yield
        django_rq.get_connection(ELSEWHERE).flushdb()


def takers(queue: str) -> list[str]:
    return [member.name for member in fleet.known().of(queue) if member.takes_jobs]


@pytest.mark.usefixtures("_second_database")
@pytest.mark.parametrize("lives", [True, False])
def test_a_worker_of_another_server_with_the_same_name_is_another_worker(lives: bool) -> None:
    """As a template of systemd names them, or a StatefulSet."""
    worker_on_record("worker-1", "imports")
    worker_on_record("worker-1", ELSEWHERE, says_so=lives)
    assert takers("imports") == ["worker-1"]
    assert takers(ELSEWHERE) == (["worker-1"] if lives else [])
    assert len(fleet.known().members) == 2
    assert minutes._looks()[ALL_QUEUES]["workers"] == 1 + lives


@pytest.mark.usefixtures("_second_database")
def test_a_queue_of_that_name_on_another_server_is_another_queue() -> None:
    connection = django_rq.get_connection(ELSEWHERE)
    worker = Worker(["imports"], name="of-another-project", connection=connection)
    worker.register_birth()
    assert takers("imports") == []


@pytest.mark.parametrize("queue", ["big, slow", "a,b,c"])
def test_a_queue_may_have_commas_in_its_name(queue: str) -> None:
    with override_settings(RQ_QUEUES=settings.RQ_QUEUES | {queue: settings.RQ_QUEUES["imports"]}):
        worker_on_record("its-own", queue)
        assert takers(queue) == ["its-own"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("imports,big, slow,reports", ["imports", "big, slow", "reports"]),
        ("big, slow", ["big, slow"]),
        ("imports,reports", ["imports", "reports"]),
        ("big,bigger", ["big", "bigger"]),
        ("a,b,c", ["a,b,c"]),
        ("a,b", ["a,b"]),
        ("a", ["a"]),
        ("", []),
    ],
)
def test_queues_of_a_worker_are_told_apart(text: str, names: list[str]) -> None:
    queues = dict.fromkeys(("big, slow", "a,b", "a,b,c", "imports,reports"), settings.RQ_QUEUES["imports"])
    with override_settings(RQ_QUEUES=settings.RQ_QUEUES | queues):
        assert names_in(text) == names


def of_a_key(connection: redis.Redis) -> None:
    connection.sadd(Worker.redis_workers_keys, b"rq:worker:\xff")


def of_a_field(connection: redis.Redis) -> None:
    connection.hset("rq:worker:well", b"\xff\xfe", b"\xff")


@pytest.mark.parametrize("write", [of_a_key, of_a_field])
def test_what_is_no_text_keeps_nobody_from_being_seen(write: object) -> None:
    worker_on_record("well")
    write(django_rq.get_connection("imports"))  # type: ignore[operator]
    assert takers("imports") == ["well"]
