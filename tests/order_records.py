"""What Redis has of a tenant in the fair order."""

from __future__ import annotations

import struct
from typing import NamedTuple

import django_rq

KNOWN = "tenant_slots:known"
LAYOUT = "<dddddfHHIB"
SIZE = struct.calcsize(LAYOUT)


class Record(NamedTuple):
    done: float
    ahead: float
    begun: float
    left: float
    left_at: float
    mean: float
    jobs: int
    share: int
    offers: int
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
