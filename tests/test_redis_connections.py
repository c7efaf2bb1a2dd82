"""No test is blamed for a connection to Redis that it, or another one, has left behind."""

from __future__ import annotations

import gc
import warnings
from contextlib import AbstractContextManager, nullcontext

import django_rq
import pytest

from tests.redis_connections import closed_at_the_end


@pytest.fixture(autouse=True)
def _redis_connections_closed() -> None:
    """Instead of what closes them for all other tests."""
    gc.collect()


def leave_one_behind() -> None:
    """In a cycle, and made on both sides of a collection."""
    connection = django_rq.get_connection("default").connection_pool.make_connection()
    gc.collect(0)
    connection.connect()
    connection.itself = connection


@pytest.mark.parametrize(
    ("way", "warned"), [(nullcontext(), 2), (closed_at_the_end(), 0)], ids=["the control", "closed"]
)
def test_no_connection_is_collected_with_its_socket_open(way: AbstractContextManager[None], warned: int) -> None:
    with warnings.catch_warnings(record=True) as of_sockets:
        warnings.simplefilter("always", ResourceWarning)
        with way:
            leave_one_behind()
            gc.collect()
            leave_one_behind()
        gc.collect()
    assert len(of_sockets) == warned


def test_nor_one_of_an_earlier_test_that_is_opened_again() -> None:
    with closed_at_the_end():
        connection = django_rq.get_connection("default").connection_pool.make_connection()
    with warnings.catch_warnings(record=True) as of_sockets:
        warnings.simplefilter("always", ResourceWarning)
        with closed_at_the_end():
            gc.collect(0)
            connection.connect()
            connection.itself = connection
            del connection
            gc.collect()
        gc.collect()
    assert of_sockets == []
