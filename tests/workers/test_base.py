"""What the worker classes do once for all of their jobs."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from redis import Redis

from tenant_slots.workers import base


def connection(**options: Any) -> Redis:
    return Redis.from_url(settings.RQ_QUEUES["default"]["URL"], **options)


def made_by(redis: Redis) -> Any:
    """What one new connection of the pool says of its driver."""
    with redis.client() as client:
        assert client.ping()
        return client.connection.driver_info


def test_every_connection_of_a_worker_has_the_driver_that_was_named_once() -> None:
    pytest.importorskip("redis.driver_info", reason="redis-py below 8 names its driver without looking")
    redis = connection()
    base.name_driver_once(redis)
    named = redis.connection_pool.connection_kwargs["driver_info"]
    assert made_by(redis) is named
    assert (named.name, named.lib_version) == (made_by(connection()).name, made_by(connection()).lib_version)


def test_the_name_that_a_project_gives_its_driver_is_kept() -> None:
    driver_info = pytest.importorskip("redis.driver_info", reason="redis-py below 8 has no such option")
    mine = driver_info.DriverInfo(name="mine")
    redis = connection(driver_info=mine)
    base.name_driver_once(redis)
    assert made_by(redis) is mine
