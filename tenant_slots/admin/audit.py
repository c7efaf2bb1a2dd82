"""The audit trail: a LogEntry for every action and object, with old and new value and the reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.http import HttpRequest
from django.utils.translation import gettext

from tenant_slots import limits
from tenant_slots.admin.words import moment
from tenant_slots.models import Change, KeptChange, TenantQueue

ENTRIES_SHOWN = 50

NO_MESSAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading an entry raises that is of another form than those of Django's admin."""


@dataclass(frozen=True)
class HistoryLine:
    """One change, as the history of a tenant queue shows it."""

    time: datetime
    user: str
    what: str
    old: str
    new: str
    reason: str


def log_changes(model_admin: Any, request: HttpRequest, row: TenantQueue, changes: Iterable[Change]) -> None:
    for change in changes:
        model_admin.log_change(request, row, [message_of(change)])


def note(
    model_admin: Any, request: HttpRequest, row: Model, what: str, old: str = "", new: str = "", reason: str = ""
) -> None:
    """One entry."""
    model_admin.log_change(request, row, [message(what, old, new, reason)])


def note_all(model_admin: Any, request: HttpRequest, what: str, new: str, reason: str) -> None:
    """One entry for many objects, which names none of them."""
    LogEntry.objects.create(
        user_id=int(request.user.pk or 0),
        content_type=ContentType.objects.get_for_model(model_admin.model, for_concrete_model=False),
        object_repr=str(model_admin.opts.verbose_name_plural),
        action_flag=CHANGE,
        change_message=json.dumps([message(what, "", new, reason)]),
    )


def message_of(change: Change) -> dict[str, Any]:
    """Of a change that is kept with the row as well, from where its history shows it."""
    made = message(**in_words(change), reason=change.reason)
    made["changed"]["kept"] = True
    return made


def message(what: str, old: str, new: str, reason: str) -> dict[str, Any]:
    """Django shows the sentence in ``fields``; the other keys, which it ignores, are for our own history."""
    facts = {"what": what, "old": old, "new": new, "reason": reason}
    return {"changed": {"fields": [sentence(**facts)], **facts}}


def sentence(what: str, old: str, new: str, reason: str) -> str:
    text = f"{what}: {old} → {new}" if old else f"{what} {new}".strip()
    return f"{text} ({reason})" if reason else text


def in_words(change: Change) -> dict[str, str]:
    if change.what == "paused":
        yes, no = gettext("paused"), gettext("not paused")
        names = {"what": gettext("pause"), "old": yes if change.old else no, "new": yes if change.new else no}
    elif change.what == "resting":
        names = {"what": gettext("rest"), "old": gettext("resting"), "new": gettext("not resting")}
    elif change.what == "rate":
        names = {"what": gettext("rate"), "old": _cap(change.old), "new": _cap(change.new)}
    elif change.what in limits.CAPS:
        what = str(TenantQueue._meta.get_field(change.what).verbose_name)  # type: ignore[union-attr]
        names = {"what": what, "old": _cap(change.old), "new": _cap(change.new)}
    else:
        names = {"what": gettext("limit"), "old": str(change.old), "new": str(change.new)}
    if change.until:
        names["new"] += " " + gettext("until %(time)s") % {"time": moment(change.until)}
    return names


def _cap(value: int | str | None) -> str:
    return gettext("no limit") if value is None else str(value)


def history_of(row: TenantQueue) -> list[HistoryLine]:
    """The latest changes of a tenant queue, whoever made them, and what else staff have done with it.

    Three queries at most.
    """
    kept = row.kept_changes.order_by("-pk")[:ENTRIES_SHOWN]
    lines = [*map(line_of, kept), *actions_on(row)]
    return sorted(lines, key=lambda line: line.time, reverse=True)[:ENTRIES_SHOWN]


def actions_on(row: Model) -> list[HistoryLine]:
    """What staff have done with it, the latest first, without what is kept as a change. Two queries at most."""
    entries = LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(row, for_concrete_model=False), object_id=str(row.pk)
    )
    return [
        HistoryLine(entry.action_time, entry.user.get_username(), **facts)
        for entry in entries.select_related("user").order_by("-action_time", "-pk")[:ENTRIES_SHOWN]
        for facts in _facts(entry)
    ]


def line_of(kept: KeptChange) -> HistoryLine:
    """In the language of whoever reads it."""
    old, new = (text == "True" if kept.what in ("paused", "resting") else text for text in (kept.old, kept.new))
    words = in_words(Change(kept.what, old, new, kept.by, kept.reason, kept.until))
    return HistoryLine(kept.at, kept.by or gettext("code"), reason=kept.reason, **words)


def _facts(entry: LogEntry) -> list[dict[str, str]]:
    """Those that are kept as changes too are left out."""
    try:
        changed = [message["changed"] for message in json.loads(entry.change_message)]
        return [
            {name: str(facts[name]) for name in ("what", "old", "new", "reason")}
            for facts in changed
            if not facts.get("kept")
        ]
    except NO_MESSAGE:
        return [{"what": _as_django_says(entry), "old": "", "new": "", "reason": ""}]


def _as_django_says(entry: LogEntry) -> str:
    try:
        return str(entry)
    except NO_MESSAGE:
        return entry.object_repr
