"""The audit trail: a LogEntry for every action and object, with old and new value and the reason."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, cast

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import DEFAULT_DB_ALIAS, router
from django.db.models import Model
from django.http import HttpRequest
from django.utils import timezone, translation
from django.utils.translation import gettext

from tenant_slots import limits, logs
from tenant_slots.admin.words import moment
from tenant_slots.conf import app_settings
from tenant_slots.db import copying
from tenant_slots.db.consequences import Consequence, inserted_then
from tenant_slots.db.transactions import bounded_at_once, is_open, kept_unbroken
from tenant_slots.models import BulkChange, Change, KeptChange, TenantJob, TenantQueue

logger = logging.getLogger("tenant_slots")

ENTRIES_SHOWN = 50

NO_MESSAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading an entry raises that is of another form than those of Django's admin."""

LONGEST_OBJECT = 200
"""Characters of an object's name in an entry."""


@dataclass(frozen=True)
class HistoryLine:
    """One change, as the history of a tenant queue shows it."""

    time: datetime
    user: str
    what: str
    old: str
    new: str
    reason: str


@contextmanager
def with_its_entries(model_admin: Any, row: Model) -> Iterator[None]:
    """A change of one row and its entries, which stand or fall together where both are in one database, and in a
    transaction of the caller's. Elsewhere the change stands by itself: nobody's row is held for another database, nor
    while code of the project makes the entry.

    Raises:
        TenantQueueLocked: somebody else keeps what is needed for longer than our patience; nothing was changed.
    """
    alias = app_settings.DATABASE
    if not (is_beside_slots(model_admin) or is_open(alias)):
        yield
        return
    with bounded_at_once(alias, row):
        yield


def log_changes(model_admin: Any, request: HttpRequest, row: TenantQueue, changes: Iterable[Change]) -> None:
    _log(model_admin, request, row, [message_of(change) for change in changes])


def note(
    model_admin: Any, request: HttpRequest, row: Model, what: Any, old: Any = "", new: Any = "", reason: str = ""
) -> None:
    """One entry. Texts are lazy, to be kept untranslated."""
    _log(model_admin, request, row, [message(what, old, new, reason)])


def note_what_stands(
    model_admin: Any, request: HttpRequest, row: Model, what: Any, old: Any = "", new: Any = "", reason: str = ""
) -> None:
    """As `note`, of what is committed by now: where the entry cannot be written, nothing is undone by that."""
    _is_written(row, partial(_log_each, model_admin, request, row, [message(what, old, new, reason)]))


def note_command(model_admin: Any, request: HttpRequest, change: BulkChange, what: Any) -> None:
    """As `note`, of what staff tell a bulk change to do, with the reason that it has."""
    _write(request, change, partial(note_all, model_admin, request, what, str(change), change.reason))


def _log(model_admin: Any, request: HttpRequest, row: Model, made: Sequence[dict[str, Any]]) -> None:
    """An entry for each message."""
    _write(request, row, partial(_log_each, model_admin, request, row, made))


def _write(request: HttpRequest, row: Model, write: Callable[[], None]) -> None:
    """The entries of what was done to a row. In a transaction an error undoes that too; without one it stands."""
    if is_open(app_settings.DATABASE):
        write()
    elif not _is_written(row, write):
        text = gettext("The change was made, but its entry in the log of the admin could not be written: %(row)s")
        messages.warning(request, text % {"row": row})


def _is_written(row: Model, write: Callable[[], None]) -> bool:
    """Whether its entries could be written; the log says why not."""
    try:
        with kept_unbroken():
            write()
    except Exception:  # of another database, or of the project's own
        known = {name: getattr(row, name, None) for name in ("tenant", "queue")}
        about_row = logs.about(row) if isinstance(row, TenantJob) else logs.about_named(**known)
        logger.exception("a change stands without its entry in the log of the admin", extra=about_row)
        return False
    return True


def _log_each(model_admin: Any, request: HttpRequest, row: Model, made: Sequence[dict[str, Any]]) -> None:
    for one in made:
        model_admin.log_change(request, row, [one])


def note_all(model_admin: Any, request: HttpRequest, what: Any, new: str, reason: str) -> None:
    """One entry for many objects, which names none of them. As of `note`, the texts are lazy."""
    LogEntry.objects.create(
        user_id=cast("int", request.user.pk),  # or of whatever type the project's users have
        content_type_id=ContentType.objects.get_for_model(model_admin.model, for_concrete_model=False).pk,
        object_repr=str(model_admin.opts.verbose_name_plural),
        action_flag=CHANGE,
        change_message=json.dumps([message(what, "", new, reason)]),
    )


def note_deletions(request: HttpRequest, rows: Sequence[TenantQueue], reason: str) -> None:
    """An entry for each, beforehand, as afterwards it has no primary key to name it by."""
    if rows:
        alike = _alike(request, rows[0]) | {"action_flag": DELETION}
        LogEntry.objects.bulk_create(
            [LogEntry(**alike, **_own(row), change_message=_deletion(row, reason)) for row in rows]
        )


def _deletion(row: TenantQueue, reason: str) -> str:
    """In Django's form, which has no place of its own for a reason. Django translates the name for whoever reads it."""
    with translation.override(None):
        name = str(row._meta.verbose_name)
    return json.dumps([{"deleted": {"name": name, "object": sentence(str(row), "", "", reason)}}])


def is_beside_slots(model_admin: Any) -> bool:
    """Whether an entry is made in Django's way, in the database of the slots: it can be a part of a change then."""
    is_ours = type(model_admin).log_change is ModelAdmin.log_change
    return is_ours and router.db_for_write(LogEntry) == app_settings.DATABASE


def logged_then(request: HttpRequest, row: TenantQueue, change: Change) -> Consequence:
    """As `log_changes`, as the consequence of an UPDATE. Where an entry `is_beside_slots`."""
    return inserted_then(LogEntry, _values(request, row, message_of(change)))


def log_all(model_admin: Any, request: HttpRequest, notes: Sequence[tuple[Model, dict[str, Any]]]) -> None:
    """An entry for each of these objects of one model, with its message. Many share one, which is written once."""
    if type(model_admin).log_change is ModelAdmin.log_change:
        texts = {key: json.dumps([made]) for key, made in {id(made): made for _, made in notes}.items()}
        alike = _alike(request, notes[0][0]) if notes else {}
        entries = [alike | _own(one) | {"change_message": texts[id(made)]} for one, made in notes]
        copying.insert(LogEntry, entries, router.db_for_write(LogEntry) or DEFAULT_DB_ALIAS)
    else:
        for one, made in notes:
            model_admin.log_change(request, one, [made])


def _values(request: HttpRequest, one: Model, made: dict[str, Any]) -> dict[str, Any]:
    """As Django's own `log_change` has them."""
    return _alike(request, one) | _own(one) | {"change_message": json.dumps([made])}


def _alike(request: HttpRequest, one: Model) -> dict[str, Any]:
    """What all entries of a user have about objects of its model."""
    kinds = ContentType.objects.db_manager(router.db_for_write(LogEntry))
    return {
        "action_time": timezone.now(),
        "user_id": request.user.pk,
        "content_type_id": kinds.get_for_model(one, for_concrete_model=False).pk,
        "action_flag": CHANGE,
    }


def _own(one: Model) -> dict[str, Any]:
    return {"object_id": str(one.pk), "object_repr": str(one)[:LONGEST_OBJECT]}


def message_of(change: Change) -> dict[str, Any]:
    """Of a change that is kept with the row as well, from where its history shows it while the row has it.

    In words for Django; for our own history as facts, to be worded for whoever reads them.
    """
    until = change.until and change.until.isoformat()
    facts = {"what": change.what, "old": change.old, "new": change.new, "until": until, "reason": change.reason}
    return {"changed": {"fields": [sentence(**in_words(change), reason=change.reason)], "change": facts}}


def message(what: Any, old: Any, new: Any, reason: str) -> dict[str, Any]:
    """Django shows the sentence in ``fields``, in the language of the writer; the other keys, which it ignores, are for
    our own history: untranslated, as readers have languages of their own.
    """
    facts = {"what": what, "old": old, "new": new, "reason": reason}
    made = sentence(**{name: str(text) for name, text in facts.items()})
    with translation.override(None):
        return {"changed": {"fields": [made], **{name: str(text) for name, text in facts.items()}}}


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


def kept_of(row: TenantQueue, most: int = ENTRIES_SHOWN) -> list[KeptChange]:
    """The latest changes of a tenant queue, the last one first, whoever made them."""
    return list(row.kept_changes.order_by("-pk")[:most])


def history_of(row: TenantQueue, kept: Sequence[KeptChange], most: int = ENTRIES_SHOWN) -> list[HistoryLine]:
    """`kept_of` the row, and what else staff have done with it. Two queries at most."""
    kept_since = kept[-1].at if len(kept) >= limits.CHANGES_KEPT else None
    lines = [*map(line_of, kept), *actions_on(row, most, kept_since)]
    return sorted(lines, key=lambda line: line.time, reverse=True)[:most]


def whole_history_of(one: TenantQueue | TenantJob, most: int) -> list[HistoryLine]:
    """As far as anything is known of it, but no more than so many lines, the latest first."""
    return history_of(one, kept_of(one, most), most) if isinstance(one, TenantQueue) else actions_on(one, most)


def actions_on(row: Model, most: int = ENTRIES_SHOWN, kept_since: datetime | None = None) -> list[HistoryLine]:
    """What staff have done with it, the latest first. Two queries at most.

    Args:
        most: so many.
        kept_since: changes from then on are kept with the row as well, from where its history shows them; None for all.
    """
    entries = LogEntry.objects.filter(
        content_type=ContentType.objects.get_for_model(row, for_concrete_model=False), object_id=str(row.pk)
    )
    return [
        HistoryLine(entry.action_time, entry.user.get_username(), **facts)
        for entry in entries.select_related("user").order_by("-action_time", "-pk")[:most]
        for facts in _facts(entry, is_kept=kept_since is None or entry.action_time >= kept_since)
    ]


def line_of(kept: KeptChange) -> HistoryLine:
    """In the language of whoever reads it."""
    old, new = (text == "True" if kept.what in ("paused", "resting") else text for text in (kept.old, kept.new))
    words = in_words(Change(kept.what, old, new, kept.by, kept.reason, kept.until))
    return HistoryLine(kept.at, kept.by or gettext("code"), reason=kept.reason, **words)


def _facts(entry: LogEntry, *, is_kept: bool) -> list[dict[str, str]]:
    """Those that are kept as changes too are left out, while they are."""
    try:
        changed = [message["changed"] for message in json.loads(entry.change_message)]
        return [_worded(facts) for facts in changed if not (is_kept and "change" in facts)]
    except NO_MESSAGE:
        return [{"what": _as_django_says(entry), "old": "", "new": "", "reason": ""}]


def _worded(facts: dict[str, Any]) -> dict[str, str]:
    """What `message_of` or `message` has written, in the language of whoever reads it."""
    if "change" in facts:
        change = _change_of(**facts["change"])
        return {"reason": change.reason, **in_words(change)}
    return {"reason": str(facts["reason"]), **{name: _translated(str(facts[name])) for name in ("what", "old", "new")}}


def _change_of(what: str, old: Any, new: Any, until: str | None, reason: str) -> Change:
    return Change(what, old, new, "", reason, datetime.fromisoformat(until) if until else None)


def _translated(text: str) -> str:
    return gettext(text) if text else ""


def _as_django_says(entry: LogEntry) -> str:
    try:
        return str(entry)
    except NO_MESSAGE:
        return entry.object_repr
