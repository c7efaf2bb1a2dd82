"""What Redis has of a tenant in the fair order."""

from __future__ import annotations

import struct
from typing import NamedTuple

import django_rq

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


def records(tenant_queue_id: int, server: str = "imports") -> dict[str, Record]:
    """By RQ queue in which the tenant has been: each is written as a length, a name and the values."""
    raw, found = django_rq.get_connection(server).hget("tenant_slots:tenants", tenant_queue_id), {}
    while raw:
        name, raw = raw[1 : 1 + raw[0]].decode(), raw[1 + raw[0] :]
        found[name], raw = Record(*struct.unpack(LAYOUT, raw[:SIZE])), raw[SIZE:]
    return found


def write(tenant_queue_id: int, rq_queue: str, record: Record) -> None:
    """The only one that the tenant has from now on."""
    raw = bytes([len(rq_queue)]) + rq_queue.encode() + struct.pack(LAYOUT, *record)
    django_rq.get_connection(rq_queue).hset("tenant_slots:tenants", tenant_queue_id, raw)
