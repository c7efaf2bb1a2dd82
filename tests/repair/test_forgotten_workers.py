"""Redis forgets who listens: workers of RQ's own classes are registered again, which only say so when they begin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django_rq
import pytest
from rq import Worker
from rq.command import PUBSUB_CHANNEL_TEMPLATE

from tenant_slots import fair_order
from tenant_slots.repair import forgotten_workers
from tenant_slots.repair.contact import Contact
from tenant_slots.repair.report import Report
from tests.factories import another_process, running_job, tenant_queue, worker_on_record
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "stock"
KEY = f"rq:worker:{NAME}"


def redis() -> Any:
    return django_rq.get_connection("imports")


@contextmanager
def listening(name: str = NAME) -> Iterator[None]:
    """As a worker of RQ's does to the commands for it."""
    channel = PUBSUB_CHANNEL_TEMPLATE % name
    with redis().pubsub() as pubsub:
        pubsub.subscribe(channel)
        wait_until(lambda: redis().pubsub_numsub(channel)[0][1])
        yield


def sweep(contact: Contact) -> None:
    forgotten_workers.register_again(Report(), contact)


def known() -> list[str]:
    return [worker.name for worker in Worker.all(connection=redis())]


@pytest.fixture
def contact() -> Contact:
    """Of a sweeper that has seen the worker."""
    worker_on_record(NAME, of_ours=False)
    seen = Contact()
    sweep(seen)
    redis().flushall()
    return seen


def test_one_that_still_listens_is_registered_again(contact: Contact) -> None:
    with listening():
        sweep(contact)
    (worker,) = Worker.all(queue=django_rq.get_queue("imports"))
    assert (worker.name, worker.get_state(), worker.queue_names()) == (NAME, "idle", ["imports"])
    assert worker.birth_date is not None
    assert 90 < redis().ttl(KEY) <= 480
    assert fair_order.listens("imports")


def test_one_that_has_found_redis_later_is_too(contact: Contact) -> None:
    sweep(contact)
    assert known() == []
    with listening():
        sweep(contact)
    assert known() == [NAME]


def test_control_one_that_does_not_listen_is_not(contact: Contact) -> None:
    with listening("another"):
        sweep(contact)
    assert not redis().exists(KEY)


def test_nor_is_one_that_says_in_this_moment_that_it_ends(contact: Contact) -> None:
    redis().hset(KEY, "death", "now")
    with listening():
        sweep(contact)
    assert known() == []


def test_nor_is_one_that_was_seen_long_ago(contact: Contact, monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.monotonic() + forgotten_workers.SECONDS_REMEMBERED + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    sweep(contact)
    with listening():
        sweep(contact)
    assert known() == []


def test_nor_is_one_of_ours_which_does_it_by_itself() -> None:
    worker_on_record(NAME)
    contact = Contact()
    sweep(contact)
    redis().flushall()
    with listening():
        sweep(contact)
    assert known() == []


def test_what_it_has_said_since_stays_and_one_that_runs_a_job_is_busy(contact: Contact) -> None:
    running_job(tenant_queue(), another_process(NAME))
    redis().hset(KEY, "last_heartbeat", "2026-01-02T03:04:05.000000Z")
    with listening():
        sweep(contact)
    assert redis().hmget(KEY, "state", "last_heartbeat") == [b"busy", b"2026-01-02T03:04:05.000000Z"]
    assert redis().ttl(KEY) <= 90


def test_one_whose_place_one_of_ours_has_taken_is_not_forgotten(contact: Contact) -> None:
    """Under its name, but perhaps not at the same queues."""
    worker_on_record(NAME, "reports")
    with listening():
        sweep(contact)
    assert not redis().exists("rq:workers:imports")
