"""Of which form the JSON columns are: what our own code has written there, and can go on with."""

from __future__ import annotations

from typing import Any

from tenant_slots.validation import is_number, is_whole

NUMBERS = ("timeout", "result_ttl", "failure_ttl")
"""Options of RQ that are whole seconds."""


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(is_whole(count, 0) for count in value.values())


def are_options(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(value.get(name) is None or is_whole(value[name]) for name in NUMBERS)
        and isinstance(value.get("meta", {}), dict)
        and isinstance(value.get("description", ""), str)
        and ("retry" not in value or _is_retry(value["retry"]))
        and isinstance(value.get("unknown", {}), dict)
    )


def is_progress(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_number(value.get("done"))
        and (value.get("total") is None or is_number(value["total"]))
    )


def is_limit_history(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair)) for pair in value
    )


def _is_retry(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_whole(value.get("max"))
        and isinstance(value.get("intervals"), list)
        and bool(value["intervals"])
        and all(map(is_number, value["intervals"]))
    )
