"""Of which form the JSON columns are: what our own code has written there, and can go on with."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.conf import settings

from tenant_slots.validation import HIGHEST_COUNT, HIGHEST_TOTAL, LATEST, is_number, is_whole, time_problem

FOR_EVER = -1
"""To RQ: a job with this timeout may take any time, what has this ttl is kept."""

MOST_SECONDS = 2**31 - 1
"""68 years. No timer of the system takes more, and a work-horse that is told to set one ends before its job has begun;
Redis refuses what is far more, and RQ's worker then ends.
"""

GAP = re.compile(r"([1-9]\d{0,18})(?:x([1-9]\d{0,5}))?", re.ASCII)
"""Between two primary keys of a part of a bulk change, and how often it comes in a row."""

VERSION = re.compile(r"\d{1,10}", re.ASCII)

MOST_RUNS_NUMBERED = 1_000_000
"""Of a job, all later ones have this number: a result of Django's Tasks has a list of all runs."""

HIGHEST_AMOUNT = 10**15
"""Of what a job reports. Above it JavaScript, which shows the numbers, rounds them."""


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def is_timeout(value: Any) -> bool:
    return value != 0 and is_ttl(value)


def is_ttl(value: Any) -> bool:
    return is_whole(value, FOR_EVER, MOST_SECONDS)


def are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(is_whole(count, 0) for count in value.values())


def are_options(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and (value.get("timeout") is None or is_timeout(value["timeout"]))
        and all(value.get(name) is None or is_ttl(value[name]) for name in ("result_ttl", "failure_ttl"))
        and isinstance(value.get("meta", {}), dict)
        and isinstance(value.get("description", ""), str)
        and ("retry" not in value or is_retry(value["retry"]))
        and ("unknown" not in value or _is_mark(value["unknown"]))
        and ("task" not in value or _is_call(value["task"]))
        and is_number(value.get("not_before", 0), 0, LATEST.timestamp())
    )


def is_progress(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_number(value.get("done"), 0, HIGHEST_AMOUNT)
        and "total" in value
        and (value["total"] is None or is_number(value["total"], 0, HIGHEST_AMOUNT))
    )


def are_form_values(value: Any) -> bool:
    """What was typed into a form; of the objects in JSON it has only times."""
    return isinstance(value, dict) and all(_is_stored_time(one) for one in value.values() if isinstance(one, dict))


def _is_stored_time(value: dict[str, Any]) -> bool:
    return value.keys() == {"time"} and _is_time(value["time"])


def are_parts(value: Any) -> bool:
    """What is left of a chunk of a bulk change."""
    return isinstance(value, list) and all(map(_is_part, value))


def _is_part(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in ("pks", "versions", "jobs"))
        and all(map(_are_primary_keys, (value["pks"], value["jobs"])))
        and all(map(VERSION.fullmatch, value["versions"].split()))
        and isinstance(value.get("one_by_one"), bool)
        and all(is_whole(value.get(name), 0) for name in ("of", "counted", "last"))
    )


def _are_primary_keys(text: str) -> bool:
    gaps = [GAP.fullmatch(gap) for gap in text.split()]
    return None not in gaps and sum(int(gap[1]) * int(gap[2] or 1) for gap in gaps if gap) <= HIGHEST_TOTAL


def is_limit_history(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and is_number(pair[0], 0, LATEST.timestamp())
        and is_whole(pair[1], 0, HIGHEST_COUNT)
        for pair in value
    )


def _is_mark(value: Any) -> bool:
    """When a worker first did not know a job's function, and at which attempt."""
    return isinstance(value, dict) and _is_time(value.get("since")) and is_whole(value.get("attempt"))


def _is_call(value: Any) -> bool:
    """Of one of Django's Tasks: its backend, and which of its facts were given."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("backend"), str)
        and isinstance(value.get("named", []), list)
        and (value.get("run_after") is None or _is_read(value["run_after"]))
    )


def are_ended_runs(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_ended_run, value))


def _is_ended_run(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_whole(value.get("number"), 1, MOST_RUNS_NUMBERED)
        and is_whole(value.get("attempt"), 0, HIGHEST_COUNT)
        and "started" in value
        and (value["started"] is None or _is_time(value["started"]))
        and _is_time(value.get("ended"))
        and "error" in value
        and (value["error"] is None or isinstance(value["error"], str))
        and all(isinstance(value.get(name), str) for name in ("worker", "text"))
    )


def _is_time(text: Any) -> bool:
    return _is_read(text) and not time_problem(datetime.fromisoformat(text), aware=settings.USE_TZ)


def _is_read(text: Any) -> bool:
    """Whether it is a time, with a zone or without."""
    try:
        return isinstance(text, str) and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def is_retry(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and is_whole(value.get("max"), 0)
        and isinstance(value.get("intervals"), list)
        and bool(value["intervals"])
        and all(is_number(seconds, 0) for seconds in value["intervals"])
    )
