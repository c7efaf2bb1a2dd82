"""The keys of ``RQ_QUEUES``: which of them rows can have, as a row is not even asked for by another one, and which of
them RQ's record of a worker names.
"""

from __future__ import annotations

from tenant_slots.conf import rq_queues
from tenant_slots.models import TenantQueue
from tenant_slots.validation import text_problem

LONGEST_QUEUE: int = TenantQueue._meta.get_field("queue").max_length or 0


def queue_problem(queue: object) -> str | None:
    """Why a key of ``RQ_QUEUES`` cannot be the queue of a tenant queue; None if it can."""
    if not isinstance(queue, str):
        return "its name is no str; write it as one in RQ_QUEUES"
    if len(queue) > LONGEST_QUEUE:
        return f"its name has {len(queue)} characters, at most {LONGEST_QUEUE} fit; shorten it in RQ_QUEUES"
    if problem := text_problem(queue):
        return f"its name cannot be stored: {problem}; correct it in RQ_QUEUES"
    return None


def usable_queues() -> list[str]:
    """The keys of ``RQ_QUEUES`` that a tenant queue can be of. A system check reports the others."""
    return [name for name in rq_queues() if queue_problem(name) is None]


def names_in(text: str) -> list[str]:
    """The queues of a worker, as RQ writes them: with commas between them, which the name of a queue may have too.

    Not where its parts are queues too, which are taken for these then.
    """
    known = rq_queues()
    longer = [
        name.split(",") for name in known if "," in str(name) and not all(map(known.__contains__, name.split(",")))
    ]
    found, parts = [], text.split(",")
    while parts:
        count = max((len(name) for name in longer if parts[: len(name)] == name), default=1)
        found.append(",".join(parts[:count]))
        del parts[:count]
    return [name for name in found if name]
