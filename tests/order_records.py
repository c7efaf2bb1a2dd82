"""What Redis has of a tenant in the fair order."""

from __future__ import annotations

import struct
from typing import NamedTuple

import django_rq

KNOWN = "tenant_slots:known"
LAYOUT = "<ddddddfHHIHB16x"
"""Without the marks of what was charged last, at its end: what a test writes has none."""
SIZE = struct.calcsize(LAYOUT)


class Record(NamedTuple):
    done: float
    ahead: float
    begun: float
    left: float
    left_at: float
    offset: float
    mean: float
    jobs: int
    share: int
    offers: int
    frees: int
    parked: int


def packed(rq_queue: str, record: Record) -> bytes:
    """A length in bytes, a name and the values."""
    name = rq_queue.encode()
    return struct.pack("<H", len(name)) + name + struct.pack(LAYOUT, *record)


def records(tenant_queue_id: int, server: str = "imports") -> dict[str, Record]:
    """By RQ queue in which the tenant has been."""
    raw, found = django_rq.get_connection(server).hget(KNOWN, tenant_queue_id), {}
    while raw:
        (length,), raw = struct.unpack("<H", raw[:2]), raw[2:]
        name, raw = raw[:length].decode(), raw[length:]
        found[name], raw = Record(*struct.unpack(LAYOUT, raw[:SIZE])), raw[SIZE:]
    return found


def write(tenant_queue_id: int, rq_queue: str, record: Record) -> None:
    """The only one that the tenant has from now on."""
    django_rq.get_connection(rq_queue).hset(KNOWN, tenant_queue_id, packed(rq_queue, record))


TIMES_LAYOUT = "<ddddddHBdBB"
TIMES = struct.calcsize(TIMES_LAYOUT)


def given(rq_queue: str) -> list[int]:
    """The jobs of each turn that was given there and whose jobs are not pushed yet; those that are over by now too."""
    raw = django_rq.get_connection(rq_queue).hget(KNOWN, f":{rq_queue}") or b""
    return [jobs for _, jobs, _ in struct.iter_unpack("<dH8s", raw[TIMES:])]


def forget_given(rq_queue: str) -> None:
    """As if no turn had been given there."""
    redis = django_rq.get_connection(rq_queue)
    redis.hset(KNOWN, f":{rq_queue}", redis.hget(KNOWN, f":{rq_queue}")[:TIMES])


def age_given(rq_queue: str, seconds: float) -> None:
    """As if the turns had been given there so much earlier."""
    redis = django_rq.get_connection(rq_queue)
    raw = redis.hget(KNOWN, f":{rq_queue}")
    turns = [
        struct.pack("<dH8s", ends - seconds, jobs, name)
        for ends, jobs, name in struct.iter_unpack("<dH8s", raw[TIMES:])
    ]
    redis.hset(KNOWN, f":{rq_queue}", raw[:TIMES] + b"".join(turns))


def age_sweep(rq_queue: str, seconds: float) -> None:
    """As if the last sweep had charged what runs so much earlier."""
    redis = django_rq.get_connection(rq_queue)
    raw = redis.hget(KNOWN, f":{rq_queue}")
    virtual, sure, newcomers, mean, swept, believed, *others = struct.unpack(TIMES_LAYOUT, raw[:TIMES])
    times = struct.pack(TIMES_LAYOUT, virtual, sure, newcomers, mean, swept - seconds, believed - seconds, *others)
    redis.hset(KNOWN, f":{rq_queue}", times + raw[TIMES:])
