"""What decided a limit: an override, somebody, or a setting; and why, as far as the row's history still knows it."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext

from tenant_slots.admin.words import moment
from tenant_slots.conf import app_settings
from tenant_slots.models import KeptChange, LimitSource, TenantQueue
from tenant_slots.tenants import NO_TENANT


def sentences(row: TenantQueue, changes: Sequence[KeptChange]) -> list[str]:
    """Of the limit that holds now, and of the one that comes back after an override.

    Args:
        changes: the latest of the row, the last one first. The reason is found among them.
    """
    kept = [one for one in changes if one.what == "limit"]
    if row.override_until is None:
        return [_of_limit(row, row.max_job, kept)]
    then = gettext("After that: %(limit)s") % {"limit": _of_limit(row, row.limit_before_override, kept)}
    return [_of_override(row, kept), then]


def _of_override(row: TenantQueue, kept: Sequence[KeptChange]) -> str:
    facts = {"limit": row.max_job, "time": moment(row.override_until), "name": row.override_by or gettext("code")}
    text = gettext("%(limit)s until %(time)s, an override by %(name)s.") % facts
    made = (one for one in kept if one.until == row.override_until and one.by == row.override_by)
    return _with_reason(text, next(made, None))


def _of_limit(row: TenantQueue, limit: int | None, kept: Sequence[KeptChange]) -> str:
    if row.limit_source == LimitSource.DEFAULT:
        return gettext("%(limit)s, the default when it was given: %(setting)s.") % {
            "limit": limit,
            "setting": _setting(row),
        }
    if row.limit_source == LimitSource.SET:
        made = (one for one in kept if one.until is None and one.new == str(limit) and one.by == row.limit_set_by)
        change = next(made, None)
        facts = {"limit": limit, "name": row.limit_set_by or gettext("code"), "time": change and moment(change.at)}
        with_time = gettext("%(limit)s, set by %(name)s at %(time)s.")
        return _with_reason((with_time if change else gettext("%(limit)s, set by %(name)s.")) % facts, change)
    return gettext("%(limit)s. Who set it is not recorded.") % {"limit": limit}


def _setting(row: TenantQueue) -> str:
    """Which one gives the default, with the callable that knows the tenants' plans if there is one."""
    if row.tenant == NO_TENANT:
        return gettext("calls without a tenant have no limit of their own")
    named = app_settings.DEFAULT_MAX_JOB
    return f"DEFAULT_MAX_JOB, {named}" if isinstance(named, str) else "DEFAULT_MAX_JOB"


def _with_reason(text: str, change: KeptChange | None) -> str:
    if change is None or not change.reason:
        return text
    return gettext("%(text)s Reason: %(reason)s") % {"text": text, "reason": change.reason}
