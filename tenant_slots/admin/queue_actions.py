"""What the actions on tenant queues do: pause, resume, limit, share."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from tenant_slots import limits
from tenant_slots.admin import audit, spared
from tenant_slots.admin.bulk.ways import CHANGED_MEANWHILE, UNCHANGED, Limits
from tenant_slots.admin.changes import name_of, set_limit
from tenant_slots.admin.confirmed import DONE, Confirmed
from tenant_slots.admin.forms import LimitForm, ReasonForm, SeenForm, future_field, seen, share_field
from tenant_slots.admin.snapshots import forget_shared
from tenant_slots.admin.words import origin
from tenant_slots.db import clock
from tenant_slots.db.compiled import among
from tenant_slots.exceptions import StaleVersion
from tenant_slots.locks import locked
from tenant_slots.models import Change, TenantQueue

LEFT = {
    CHANGED_MEANWHILE: ngettext_lazy(
        "%(count)d tenant queue was left unchanged: somebody else has changed it in the meantime.",
        "%(count)d tenant queues were left unchanged: somebody else has changed them in the meantime.",
        "count",
    ),
    UNCHANGED: ngettext_lazy(
        "%(count)d tenant queue needed no change.", "%(count)d tenant queues needed no change.", "count"
    ),
    **spared.OF_QUEUES,
}


class PauseForm(SeenForm, ReasonForm):
    until = future_field(_("Resume at"), _("Leave empty to pause until somebody resumes it."))


class ResumeForm(SeenForm, ReasonForm):
    pass


class BulkLimitForm(SeenForm, LimitForm):
    version = None  # type: ignore[assignment]


class ShareForm(SeenForm, ReasonForm):
    share = share_field()

    field_order = ("share", "reason")


def describe(row: Any) -> str:
    return gettext("%(row)s: running %(running)s, limit %(limit)s, waiting %(waiting)s") % {
        "row": row,
        "running": row.in_use,
        "limit": row.max_job,
        "waiting": row.waiting,
    }


def describe_limit(row: Any) -> str:
    return f"{describe(row)}, {origin(row)}" if row.override_until else describe(row)


def _overrides_among(model_admin: Any, request: HttpRequest, pks: list[int], values: dict[str, Any]) -> list[str]:
    count = TenantQueue.objects.filter(among(pks), override_until__isnull=False).count()
    text = ngettext(
        "%(count)d of them has a temporary limit. It ends with this change, and the new limit replaces it.",
        "%(count)d of them have temporary limits. These end with this change, and the new limit replaces them.",
        count,
    )
    return [text % {"count": count}] if count else []


def describe_share(row: Any) -> str:
    return gettext("%(row)s: share %(share)s") % {"row": row, "share": row.share}


def _facts(request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> dict[str, Any]:
    return {"by": name_of(request), "reason": values["reason"], "version": values["seen"].get(row.pk)}


def _pause(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    return _changed(
        model_admin,
        request,
        row,
        lambda: row.pause(until=values["until"], **_facts(request, row, values)),
    )


def _resume(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    """Jobs may start again, whatever has kept them: a pause, or a rest."""
    facts = _facts(request, row, values)
    return _changed(model_admin, request, row, lambda: _let_go_of(row, facts))


def _let_go_of(row: TenantQueue, facts: dict[str, Any]) -> list[Change]:
    with locked(row.pk):  # both or none
        return [*row.end_rest(**facts), *row.resume(**facts)]


def _let_go(now: datetime) -> limits.Edit:
    def edit(row: TenantQueue) -> None:
        limits.rest_ended(row, now)
        limits.resumed(row)

    return edit


def _set_limit(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    limit = {"max_job": values["max_job"], "until": values["until"]}
    return _changed(model_admin, request, row, lambda: set_limit(row, **limit, **_facts(request, row, values)))


def _set_share(model_admin: Any, request: HttpRequest, row: TenantQueue, values: dict[str, Any]) -> str:
    return _changed(model_admin, request, row, lambda: row.set_share(values["share"], **_facts(request, row, values)))


def _changed(model_admin: Any, request: HttpRequest, row: TenantQueue, change: Any) -> str:
    """Each row in a transaction of its own, as none may hold several tenants' rows."""
    try:
        with audit.with_its_entries(model_admin, row):
            changes = change()
            audit.log_changes(model_admin, request, row, changes)
    except StaleVersion:
        return CHANGED_MEANWHILE
    forget_shared()
    return DONE if changes else UNCHANGED


def _limit_edit(values: dict[str, Any], by: str) -> limits.Edit:
    if values["until"] is not None:
        return limits.overridden(values["max_job"], values["until"], by)
    return limits.limited(values["max_job"], by)


PAUSE = Confirmed(
    permission="pause",
    label=_("Pause selected tenant queues"),
    title=_("Pause"),
    form=PauseForm,
    apply=_pause,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d tenant queue was paused.", "%(count)d tenant queues were paused.", "count"),
        **LEFT,
    },
    initial=seen,
    in_background=Limits(lambda values, by: limits.paused(values["until"])),
)
RESUME = Confirmed(
    permission="resume",
    label=_("Resume selected tenant queues"),
    title=_("Resume"),
    form=ResumeForm,
    apply=_resume,
    describe=describe,
    outcomes={
        DONE: ngettext_lazy("%(count)d tenant queue was resumed.", "%(count)d tenant queues were resumed.", "count"),
        **LEFT,
    },
    initial=seen,
    in_background=Limits(lambda values, by: _let_go(clock.now())),
)
SET_LIMIT = Confirmed(
    permission="set_limit",
    label=_("Set the limit of selected tenant queues"),
    title=_("Set limit"),
    form=BulkLimitForm,
    apply=_set_limit,
    describe=describe_limit,
    warnings=_overrides_among,
    outcomes={
        DONE: ngettext_lazy(
            "The limit of %(count)d tenant queue was set.", "The limits of %(count)d tenant queues were set.", "count"
        ),
        **LEFT,
    },
    initial=seen,
    in_background=Limits(_limit_edit),
)
SET_SHARE = Confirmed(
    permission="set_limit",
    label=_("Set the share of selected tenant queues"),
    title=_("Set share"),
    form=ShareForm,
    apply=_set_share,
    describe=describe_share,
    outcomes={
        DONE: ngettext_lazy(
            "The share of %(count)d tenant queue was set.", "The shares of %(count)d tenant queues were set.", "count"
        ),
        **LEFT,
    },
    initial=seen,
    in_background=Limits(lambda values, by: limits.setting("share", values["share"])),
)
