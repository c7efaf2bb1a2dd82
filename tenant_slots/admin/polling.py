"""What a page may ask for again and again."""

from __future__ import annotations

import hashlib

from django.http import HttpRequest, HttpResponse
from django.utils.cache import get_conditional_response

INTERVALS = (0, 2, 5, 15, 30)
"""Seconds between two polls that a viewer may choose; 0 is off."""

SHORTEST_INTERVAL = 2

MOST_ROWS = 500
"""Rows that one poll may ask for."""


def clamped(asked: str | None) -> int:
    """The interval that a poll may really have."""
    seconds = int(asked) if asked and asked.isdecimal() and len(asked) < 6 else INTERVALS[2]
    return max(SHORTEST_INTERVAL, seconds)


def asked_rows(request: HttpRequest) -> list[int]:
    """The primary keys that a poll names, without what is none."""
    return [int(pk) for pk in request.GET.get("rows", "").split(",") if pk.isdecimal() and len(pk) < 19][:MOST_ROWS]


def conditional(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """304 when the viewer has this answer already."""
    etag = f'"{hashlib.sha256(response.content).hexdigest()[:32]}"'
    answer = get_conditional_response(request, etag=etag, response=response) or response
    answer.headers["ETag"] = etag
    return answer
