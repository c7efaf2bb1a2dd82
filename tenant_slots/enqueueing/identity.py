"""What makes two jobs duplicates of each other, as a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tenant_slots.exceptions import InvalidKey
from tenant_slots.models import UNTIL_START
from tenant_slots.tasks.arguments import json_problem
from tenant_slots.tasks.duplicates import START
from tenant_slots.tasks.task import TaskCall
from tenant_slots.validation import is_name, name_text

DIGEST_LENGTH = 64


def digest_of(call: TaskCall, tenant: str, on: Mapping[str, str]) -> str:
    """What two duplicates have in common; "" for a task that knows none.

    Args:
        call, tenant: the call and its tenant.
        on: the fields that keep a method's object.

    Raises:
        InvalidKey: ``unique_key`` gave something else than a str, an int or a UUID.
    """
    task = call.task
    if task.debounce is not None:
        debounced = [*on.values()] if task.unique_key is None else _key(call)
        return _until_start(_digest([task.path, tenant, debounced, "debounce"]))
    if task.unique_for is None:
        return ""
    identity = [*on.values(), _arguments(call)] if task.unique_key is None else _key(call)
    digest = _digest([task.path, tenant, identity])
    return _until_start(digest) if task.unique_until == START else digest


def _digest(identity: list[Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _until_start(digest: str) -> str:
    return (UNTIL_START + digest)[:DIGEST_LENGTH]


def _key(call: TaskCall) -> str:
    assert call.task.unique_key is not None
    value = call.answer_of(call.task.unique_key)
    if not is_name(value):
        raise InvalidKey(value=value, task=call.task.path, problem="unique_key must give a str, an int or a UUID")
    return name_text(value)


def _arguments(call: TaskCall) -> dict[str, Any]:
    """The arguments by name, however they were passed, with the defaults of the others.

    A default that is not JSON is left out: nobody can pass it, so it is the same in every call that leaves it out.
    """
    named = call.stored_arguments.items()
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in named}
    return {name: value for name, value in plain.items() if not json_problem(value)}
