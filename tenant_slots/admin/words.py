"""Numbers, times and states in the viewer's language."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils import formats, timezone
from django.utils.text import Truncator
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from tenant_slots import queue_directory, rates, rests
from tenant_slots.db import clock
from tenant_slots.models import LimitSource, State, TenantJob, TenantQueue
from tenant_slots.queue_names import usable_queues
from tenant_slots.stats.rows import Row
from tenant_slots.stats.states import QueueState
from tenant_slots.validation import storable

NOTHING = "\N{EN DASH}"

BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and a symbol that nothing is printed for: the fillers of Hangul, and Braille without a dot."""

STATES = {
    QueueState.STALE: _("Stale"),
    QueueState.PAUSED: _("Paused"),
    QueueState.RESTING: _("Rests"),
    QueueState.OVER: _("Over limit – draining"),  # noqa: RUF001  a dash, as printed
    QueueState.RATE: _("Rate used up"),
    QueueState.AT_LIMIT: _("At its limit"),
    QueueState.WAITS_FOR_WORKER: _("Waits for a worker"),
    QueueState.KEY_LIMIT: _("At its limit per key"),
    QueueState.ACTIVE: _("Active"),
    QueueState.IDLE: _("Idle"),
}


STATES_OF_JOBS: dict[str, Any] = dict(State.choices)


def state_of(job: TenantJob) -> Any:
    """The state, or what SQL from outside has written there.

    Django's `get_state_display` looks it up among all states, which takes long for very many.
    """
    return STATES_OF_JOBS.get(job.state, job.state)


def tenant(row: TenantQueue) -> str:
    """Quoted where there is nothing to see of it, as of a space, so that a link has something to click."""
    if not row.tenant:
        return gettext("no tenant")
    return row.tenant if any(map(_is_seen, row.tenant)) else ascii(row.tenant)


def _is_seen(mark: str) -> bool:
    """A letter, number, punctuation or symbol by itself: Python also calls printable what only changes another one."""
    return unicodedata.category(mark)[0] in "LNPS" and mark not in BLANK


def moment(time: datetime) -> str:
    return _with_zone(formats.date_format(timezone.localtime(time), "SHORT_DATETIME_FORMAT"), time)


def long_moment(time: datetime) -> str:
    return _with_zone(formats.date_format(timezone.localtime(time), "DATETIME_FORMAT"), time)


def second(time: datetime) -> str:
    """To the second, which the formats of most languages leave out."""
    local = timezone.localtime(time)
    return _with_zone(f"{formats.date_format(local, 'SHORT_DATE_FORMAT')} {local:%H:%M:%S}", time)


def _with_zone(text: str, time: datetime) -> str:
    """The server's zone need not be the reader's."""
    return f"{text} {timezone.localtime(time):%Z}"


def duration(seconds: float | None) -> str:
    """Coarse on purpose: a figure that changes every second would make every poll a new answer."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return gettext("< 1 s")
    if seconds < 60:
        return gettext("%(count)d s") % {"count": seconds}
    if seconds < 3600:
        return gettext("%(count)d min") % {"count": seconds // 60}
    if seconds < 48 * 3600:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": seconds // 3600, "minutes": seconds % 3600 // 60}
    return ngettext("%(count)d day", "%(count)d days", int(seconds // 86400)) % {"count": seconds // 86400}


def between(fewest: float, most: float) -> str:
    """Two durations, or one where they are the same in words."""
    facts = {"fewest": duration(fewest), "most": duration(most)}
    return facts["most"] if len({*facts.values()}) == 1 else gettext("%(fewest)s to %(most)s") % facts


REASON_IN_LIST = 60
"""Characters of the reason of a rest, or of a limit."""


def part_of(seconds: float, of_all: float) -> str:
    """A time and its part of all."""
    return f"{duration(seconds)} ({seconds / of_all:.0%})" if seconds else NOTHING


def state(row: Row) -> str:
    if row.state == QueueState.RESTING:
        return Truncator(rest(row)).chars(REASON_IN_LIST)
    if row.state == QueueState.RATE and row.bucket and row.bucket.next_at:
        text = gettext("Rate: next token in %(time)s")
        return text % {"time": duration((row.bucket.next_at - row.seen_at).total_seconds())}
    return str(STATES[QueueState(row.state)])


def rest(row: Row | TenantQueue) -> str:
    """Until when one that rests does so, and why."""
    facts = {"time": f"{timezone.localtime(row.rests_until):%H:%M:%S %Z}", "reason": row.rest_reason}
    text = gettext("Rests until %(time)s: %(reason)s") if row.rest_reason else gettext("Rests until %(time)s")
    return text % facts


def rest_now(row: TenantQueue) -> str:
    return rest(row) if rests.seconds_left(row) else NOTHING


def tokens(row: TenantQueue) -> str:
    """What the rate has left."""
    bucket = rates.bucket(row, clock.now()) if row.rate_number is not None else None
    if bucket is None:
        return NOTHING
    facts = {"tokens": bucket.tokens, "burst": row.rate_burst}
    if bucket.next_at is None:
        return gettext("%(tokens)d of %(burst)d left") % facts
    text = gettext("%(tokens)d of %(burst)d left, the next one comes at %(time)s")
    return text % {**facts, "time": second(bucket.next_at)}


def origin(row: Any) -> str:
    """Where the limit of a live row, or of a TenantQueue, comes from."""
    if row.override_until is not None:
        text = gettext("override until %(time)s, then %(limit)s") % {
            "time": moment(row.override_until),
            "limit": row.limit_before_override,
        }
        return f"{text} ({row.override_by})" if row.override_by else text
    if row.limit_source == LimitSource.DEFAULT:
        return gettext("default")
    if row.limit_source == LimitSource.SET:
        return gettext("set by %(name)s") % {"name": row.limit_set_by} if row.limit_set_by else gettext("set by code")
    return NOTHING


def origin_and_reason(row: Row) -> str:
    """As short as a list needs it."""
    text = origin(row)
    return f"{text}: {Truncator(row.limit_reason).chars(REASON_IN_LIST)}" if row.limit_reason else text


def activity_in_words(row: Row) -> str:
    return gettext("Running in the last 60 minutes: at most %(most)d, now %(now)d; limit %(limit)d") % {
        "most": max(row.activity, default=0),
        "now": row.running,
        "limit": row.max_job,
    }


def effect_of(limit: int, running: int) -> str:
    """What a limit will do, in words."""
    if limit >= running:
        return gettext("Running %(running)d, limit %(limit)d: none is stopped.") % {"running": running, "limit": limit}
    text = gettext(
        "Running %(running)d, limit %(limit)d: %(over)d too many. None is stopped, and none starts before the limit "
        "allows it."
    )
    return text % {"running": running, "limit": limit, "over": running - limit}


def told_to_rest(suspended: Sequence[str]) -> str:
    """Which workers are suspended, and how that ends; "" for none. The command of django-rq knows one server.

    Args:
        suspended: the queues whose workers are.
    """
    if not suspended:
        return ""
    if len(queue_directory.by_server(usable_queues())) == 1:
        return gettext("All workers are suspended, until somebody calls manage.py rqresume.")
    text = gettext(
        "The workers of these queues are suspended, until somebody calls rq resume for their Redis: %(queues)s."
    )
    return text % {"queues": ", ".join(storable(str(name)) for name in suspended)}
